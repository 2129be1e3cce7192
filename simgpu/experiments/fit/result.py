"""`Fit`, the result of `simgpu.fit`: the answer, a table of candidates, and their Pareto front as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simgpu.analysis.tables import table_html, table_text
from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.rows import FitRow, FitRun, speed_text
from simgpu.simulation.plain_peak import budget_text
from simgpu.trace.model import TraceInfo
from simgpu.units import format_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ABSENT = "-"
#: Memory that differs by less than this factor is the same.
_EQUAL = 1.02


@dataclass(frozen=True, repr=False)
class Fit:
    """Whether a model fits a GPU, with which options, and what each costs. Prints as an answer and a table.

    question: what was asked. rows: one per candidate, in the order of the table. info: of a trace that was run.
    context: bytes of the CUDA context that the budget does not include; None if the node does not say.
    larger_gpus: shipped GPUs on which the candidate of the least memory fits, where none fits here.
    """

    question: Question
    rows: tuple[FitRow, ...]
    info: TraceInfo
    context: int | None
    larger_gpus: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[FitRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, option: str) -> FitRow:
        for row in self.rows:
            if row.candidate.label == option:
                return row
        raise KeyError(option)

    @property
    def fitting(self) -> list[FitRow]:
        """The rows that fit and train what was requested."""
        return [row for row in self.rows if row.fits and not row.candidate.changes]

    @property
    def best(self) -> FitRow | None:
        """The fastest that fits; where a size is searched, of those of the largest size. None if none fits."""
        return max(self.fitting, key=lambda row: (row.size(self.question.searched), _speed(row)), default=None)

    @property
    def smallest(self) -> FitRow | None:
        """The row of the least memory, of several within 2% of it the fastest; None if every candidate was refused."""
        runs = [row for row in self.rows if row.run is not None and not row.candidate.changes]
        least = min((_run(row).reserved for row in runs), default=0)
        return max((row for row in runs if _run(row).reserved <= _EQUAL * least), key=_speed, default=None)

    @property
    def front(self) -> list[FitRow]:
        """The Pareto front, ascending: of memory and speed, or of the searched size and speed."""
        runs = [row for row in self.rows if row.run is not None and not row.candidate.changes]
        if self.question.searched:
            runs = [row for row in runs if row.fits]

        def along(row: FitRow) -> int:
            return -row.size(self.question.searched) if self.question.searched else _run(row).reserved

        front: list[FitRow] = []
        for row in sorted(runs, key=lambda row: (along(row), -_speed(row))):
            if not front or _speed(row) > _speed(front[-1]):
                front.append(row)
        return front[::-1] if self.question.searched else front

    def margin(self, row: FitRow) -> int:
        """Bytes of the budget that a row leaves; negative where it does not fit."""
        return self.question.budget - _run(row).reserved

    @property
    def speed_unit(self) -> str:
        """The unit of the speeds."""
        return "samples/s" if self.question.workload.longest is None else "tokens/s"

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of `table`."""
        sizes = (self.question.searched,) if self.question.searched else ()
        times = () if sizes else ("step",)
        parts = ("parts",) if self._divided else ()
        return ("option", *sizes, self._unit, *times, self.speed_unit, "cost", *parts, "note")

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
        size = (f"{row.size(searched):,}" if row.fits else _ABSENT,) if searched else ()
        times = () if searched else (format_time(run.step_ns),)
        parts = (str(run.micro_batches),) if self._divided else ()
        rest = *times, speed_text(run.speed), f"{run.cost:.1%}", *parts, ", ".join(self._marks(row, run))
        return (*size, self._size(run.reserved), *rest)

    def _size(self, size: int) -> str:
        """Bytes in the table's unit, rounded down."""
        return f"{size / 2**30:,.1f}" if self._unit == "GiB" else f"{size // 2**20:,}"

    def _marks(self, row: FitRow, run: FitRun) -> Iterator[str]:
        if not row.fits:
            yield "OOM"
        elif self.margin(row) < self.question.margin:
            yield "tight"
        if run.allocator:
            yield "segments"
        if row.capped:
            yield "largest tried"
        if row.candidate.changes:
            yield "other training"

    @property
    def answer(self) -> str:
        """The answer in a few sentences."""
        from simgpu.experiments.fit.answer import answer

        return answer(self)

    def facts(self) -> list[tuple[str, str]]:
        """Pairs of name and text: the model, the node, and the switches of the options that the answer names."""
        from simgpu.experiments.fit.answer import facts

        return facts(self)

    def notes(self) -> list[str]:
        """What the numbers include, and why candidates were refused."""
        from simgpu.experiments.fit.answer import notes

        return notes(self)

    def frame(self) -> pd.DataFrame:
        """One row per candidate, one column per number in base units, such as ``reserved`` in bytes."""
        import pandas as pd

        about: dict[str, Any] = {"model": self.question.workload.name, "node": self.question.node.name}
        about |= {"budget": self.question.budget, "origin": self.info.origin.value}
        rows = [row.values() for row in self.rows]
        return pd.DataFrame(rows).assign(**about).set_index("option")

    def plot(self) -> Figure:
        """A matplotlib figure: speed against memory or, where a size is searched, against the largest that fits."""
        from simgpu.analysis.curves import plot_front

        searched, runs = self.question.searched, [row for row in self.rows if row.run is not None]

        def at(row: FitRow) -> tuple[float, float]:
            return (row.size(self.question.searched) if searched else _run(row).reserved / 2**30, _speed(row))

        what = f"largest {searched} that fits" if searched else "peak of reserved memory (GiB)"
        figure = plot_front(
            {row.candidate.short: [at(row)] for row in runs if row.fits or not searched},
            [at(row) for row in self.front],
            title=self.caption,
            xlabel=f"{what}{' (tokens per sample)' if searched == 'length' else ''}",
            ylabel=self.speed_unit,
            where="pre" if searched else "post",
        )
        if not searched:
            budget, ax = self.question.budget / 2**30, figure.axes[0]
            ax.axvline(budget, linestyle="--", color="#BB4444", linewidth=1.2)
            ax.annotate("budget", (budget, 0.02), (3, 0), ("data", "axes fraction"), "offset points", fontsize=8)
        return figure

    @property
    def caption(self) -> str:
        """The model, the GPU and the size in one line."""
        asked, parts = self.question, []
        if asked.batch is not None:
            parts.append(f"batch {asked.batch}")
        if asked.length is not None:
            parts.append(f"{asked.length:,} tokens per sample")
        sizes = ", ".join(parts)
        return (
            f"{asked.workload.name}{f', {sizes}' if sizes else ''}, in {budget_text(asked.budget)} of {asked.node.name}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the question, the answer, and one entry per candidate."""
        asked = self.question
        question = {"model": asked.workload.name, "options": dict(asked.workload.options), "batch": asked.batch}
        question |= {"length": asked.length, "searched": asked.searched, "budget_bytes": asked.budget}
        best = None if self.best is None else self.best.candidate.label
        result: dict[str, Any] = {"answer": self.answer, "best": best, "margin_bytes": self.question.margin}
        result |= {"larger_gpus": list(self.larger_gpus), "front": [row.candidate.label for row in self.front]}
        trace = {**asdict(self.info), "origin": self.info.origin.value}
        about = {"question": question, "node": asked.node.to_dict(context=True), "trace": trace}
        return {**about, **result, "options": [row.values() for row in self.rows], "notes": self.notes()}

    def __repr__(self) -> str:
        return "\n".join((self.answer, self.caption, table_text(self.headings, self.table()), *self.notes()))

    def _repr_html_(self) -> str:
        return table_html(self.headings, self.table(), f"{self.answer} {self.caption}")


def _run(row: FitRow) -> FitRun:
    """The run of a row that has one."""
    assert row.run is not None, "the row has a run"
    return row.run


def _speed(row: FitRow) -> float:
    return _run(row).speed
