"""`Fit`, the result of `simgpu.fit`: the answer, a table of candidates, and their Pareto front as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simgpu.analysis.tables import table_html, table_text
from simgpu.experiments.fit.answer import answer, facts, notes
from simgpu.experiments.fit.outcome import FitOutcome, run_of
from simgpu.experiments.fit.rows import FitRow, speed_text
from simgpu.simulation.plain_peak import budget_text
from simgpu.units import format_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ABSENT = "-"
#: A budget that is so many times the largest peak is far: drawn to scale, the peaks would be on top of each other.
_FAR = 1.5
#: Speeds from here on have separators of thousands.
_GROUPED = 10_000


@dataclass(frozen=True, repr=False)
class Fit(FitOutcome):
    """Whether a model fits a GPU, with which options, and what each costs. Prints as an answer and a table."""

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of `table`."""
        sizes = (self.question.searched,) if self.question.searched else ()
        times = () if sizes else ("step",)
        parts = ("parts",) if self._divided else ()
        sharing = ("sharing",) if self.question.gpus > 1 else ()
        return ("option", *sizes, self._unit, *times, self.speed_unit, "cost", *sharing, *parts, "note")

    @property
    def _unit(self) -> str:
        """The unit of memory in tables."""
        return "GiB" if self.question.budget >= 2**30 else "MiB"

    @property
    def _divided(self) -> bool:
        return any(row.run is not None and row.run.micro_batches > 1 for row in self.rows)

    def table(self) -> list[tuple[str, ...]]:
        """The cells under `headings`, one row per candidate."""
        return [(row.candidate.short, *self._cells(row)) for row in self.rows]

    def _cells(self, row: FitRow) -> tuple[str, ...]:
        if row.run is None:
            return (*(_ABSENT,) * (len(self.headings) - 2), "refused")
        run, searched = row.run, self.question.searched
        if searched and not row.fits:  # at the smallest size, whose speed says nothing about others
            return (_ABSENT, self._size(run.reserved), _ABSENT, _ABSENT, ", ".join(self.marks(row)))
        size = (f"{row.size(searched):,}",) if searched else ()
        times = () if searched else (format_time(run.step_ns),)
        parts = (str(run.micro_batches),) if self._divided else ()
        sharing = (f"{run.sharing:.1%}",) if self.question.gpus > 1 else ()
        rest = *times, speed_text(run.speed), f"{run.cost:.1%}", *sharing, *parts, ", ".join(self.marks(row))
        return (*size, self._size(run.reserved), *rest)

    def _size(self, size: int) -> str:
        """Bytes in the table's unit, rounded down."""
        return f"{size / 2**30:,.1f}" if self._unit == "GiB" else f"{size // 2**20:,}"

    def marks(self, row: FitRow) -> list[str]:
        """What is special about a row with a run, for tables."""
        run = run_of(row)
        tight = 0 <= self.margin(row) < self.question.margin
        marks = {
            "OOM": not row.fits and not tight,
            "tight": tight,
            "segments": bool(run.allocator),
            "largest tried": row.capped,
            "other training": row.candidate.changes,
        }
        return [mark for mark, applies in marks.items() if applies]

    @property
    def answer(self) -> str:
        """The answer in a few sentences."""
        return answer(self)

    def facts(self) -> list[tuple[str, str]]:
        """Pairs of name and text: the model, the node, and the switches of the options that the answer names."""
        return facts(self)

    def notes(self) -> list[str]:
        """What the numbers include, and why candidates were refused."""
        return notes(self)

    def frame(self) -> pd.DataFrame:
        """One row per candidate, one column per number in base units, such as ``reserved`` in bytes, or text."""
        import pandas as pd

        about: dict[str, Any] = {"model": self.question.workload.name, "node": self.question.node.name}
        about |= {"budget": self.question.budget, "origin": self.info.origin.value}
        rows = [row.cells() for row in self.rows]
        kinds = {name: {type(row[name]) for row in rows if row.get(name) is not None} for row in rows for name in row}
        whole = {name: "Int64" for name, kind in kinds.items() if kind == {int}}
        return pd.DataFrame(rows).astype(whole).assign(**about).set_index("option")

    def plot(self) -> Figure:
        """A matplotlib figure: speed against memory or, where a size is searched, against the largest that fits.

        Options on the Pareto front are numbered along it; all others are alike.
        """
        from simgpu.analysis.curves import plot_front

        searched, runs = self.question.searched, [row for row in self.rows if row.run is not None]
        front = self.front

        def at(row: FitRow) -> tuple[float, float]:
            return (row.size(self.question.searched) if searched else run_of(row).reserved / 2**30, run_of(row).speed)

        what = f"largest {searched} that fits" if searched else "peak of reserved memory (GiB)"
        numbers = [str(number) for number, _ in enumerate(front, 1)]
        figure = plot_front(
            {f"{number}  {row.candidate.short}": [at(row)] for number, row in zip(numbers, front, strict=True)},
            [at(row) for row in front],
            names=numbers,
            others=[at(row) for row in runs if (row.fits or not searched) and row not in front],
            title=self.caption,
            xlabel=f"{what}{' (tokens per sample)' if searched == 'length' else ''}",
            ylabel=self.speed_unit,
            where="pre" if searched else "post",
        )
        if max(run_of(row).speed for row in runs) >= _GROUPED:
            figure.axes[0].yaxis.set_major_formatter("{x:,.0f}")
        if not searched:
            self._draw_budget(figure.axes[0], max(run_of(row).reserved for row in runs))
        return figure

    def _draw_budget(self, ax: Axes, most: int) -> None:
        """The budget as a line; one far above the largest peak as a text, so that the peaks stay apart."""
        budget = self.question.budget / 2**30
        if self.question.budget > _FAR * most:
            text, where = f"budget: {budget:,.1f} GiB", (1.0, 0.02)
            ax.annotate(text, where, (-3, 0), "axes fraction", "offset points", fontsize=8, ha="right")
            return
        ax.axvline(budget, linestyle="--", color="#BB4444", linewidth=1.2)
        ax.annotate("budget", (budget, 0.02), (3, 0), ("data", "axes fraction"), "offset points", fontsize=8)

    @property
    def caption(self) -> str:
        """The model, the GPU and the size in one line."""
        question, parts = self.question, []
        if question.batch is not None:
            parts.append(f"batch {question.batch}")
        if question.length is not None:
            parts.append(f"{question.length:,} tokens per sample")
        parts += question.workload.sizes.texts()
        where = f"in {budget_text(question.budget)} of {question.node.name}"
        return ", ".join((question.workload.name, *parts, where))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the question, the answer, and one entry per candidate."""
        question = self.question
        options = dict(question.workload.options)
        size = {
            "gpus": question.gpus,
            "batch": question.batch,
            "length": question.length,
            "target_length": question.workload.sizes.target_length,
            "sample_size": question.workload.sizes.sample_size,
            "searched": question.searched,
        }
        given = {"model": question.workload.name, "options": options, **size, "budget_bytes": question.budget}
        best = None if self.best is None else self.best.candidate.label
        result: dict[str, Any] = {"answer": self.answer, "best": best, "margin_bytes": self.question.margin}
        result |= {"larger_gpus": list(self.larger_gpus), "front": [row.candidate.label for row in self.front]}
        trace = {**asdict(self.info), "origin": self.info.origin.value}
        about = {"question": given, "node": question.node.to_dict(context=True), "trace": trace}
        return {**about, **result, "options": [row.values() for row in self.rows], "notes": self.notes()}

    def __repr__(self) -> str:
        return "\n".join((self.answer, self.caption, table_text(self.headings, self.table()), *self.notes()))

    def _repr_html_(self) -> str:
        return table_html(self.headings, self.table(), f"{self.answer} {self.caption}")
