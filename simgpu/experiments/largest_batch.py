"""The results of a search for the largest batch (`simgpu.experiments.max_batch`): `MaxBatch`, `LargestBatch`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from simgpu.analysis.tables import table_html, table_text
from simgpu.simulation.plain_peak import budget_text, part_facts
from simgpu.trace.model import Origin

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.experiments.compare import PolicyRun
    from simgpu.hardware.spec import NodeSpec
    from simgpu.simulation.run import Result
    from simgpu.trace.model import TraceInfo

#: Headings of `MaxBatch.rows`: first of the recommended batch, then of the largest.
MAX_BATCH_HEADINGS = ("policy", "batch", "samples/s", "slowdown", "largest", "samples/s", "vs. none", "note")
#: The meaning of these columns.
LEGEND = (
    "batch: recommended, the largest with at least 80% of the best throughput among those simulated (powers of two, "
    "the largest that fits, some between); slowdown: its step time over that in unlimited memory; largest: the largest "
    "batch that fits before the first failure going up; vs. none: over the largest of none"
)
#: Share of the best throughput that the recommended batch must reach.
NEAR_BEST = 0.8

_ABSENT = "-"
#: Matches the adopted program in a policy's note, without the reason; a label may have commas in its parentheses.
_ADOPTED = re.compile(r"adopted: the program of [^,(]+(\([^)]*\))?")


class Speed(NamedTuple):
    """The speed at a batch: samples per second, step time in ns, and the slowdown over the time without stalls."""

    batch: int
    samples_per_s: float
    iteration_ns: int
    slowdown: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite values, of an iteration that takes no time, are None."""
        return {name: value if isfinite(value) else None for name, value in self._asdict().items()}


def recommended(speeds: Iterable[Speed]) -> Speed | None:
    """The largest batch with at least `NEAR_BEST` of the best throughput; None if there are no speeds.

    >>> recommended([Speed(1, 50.0, 1, 1.0), Speed(2, 100.0, 1, 1.0), Speed(3, 80.0, 1, 1.0), Speed(4, 79.0, 1, 1.0)])
    Speed(batch=3, samples_per_s=80.0, iteration_ns=1, slowdown=1.0)
    """
    results = list(speeds)
    best = max((each.samples_per_s for each in results), default=0.0)
    near = (each for each in results if each.samples_per_s >= NEAR_BEST * best)
    return max(near, key=lambda each: each.batch, default=None)


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch of one policy.

    batch: the largest that fits before the first failure going up; None if there is none
    run: the run at that batch; else the run that shows why: out of memory with one sample, refused, unlimited memory
    tried: every batch that was tried and whether it fits, ascending
    limit: the largest batch to try
    speeds: of the simulated batches, ascending: powers of two, the largest that fits, some around the recommended one
    """

    run: PolicyRun
    batch: int | None
    tried: tuple[tuple[int, bool], ...]
    limit: int
    speeds: tuple[Speed, ...] = ()

    @property
    def recommended(self) -> Speed | None:
        """The largest batch in `speeds` with at least 80% of their best throughput; None if `speeds` is empty."""
        return recommended(self.speeds)

    @property
    def result(self) -> Result | None:
        """The result at the largest batch; None if there is none."""
        return None if self.batch is None else self.run.result

    @property
    def unlimited(self) -> bool:
        """Whether any batch fits: memory is unlimited, or no block needs to be in device memory."""
        program = None if self.run.result is None else self.run.result.program
        return program is not None and (program.unlimited_memory or program.residency is not None)

    @property
    def islands(self) -> tuple[int, ...]:
        """Batches beyond a failure that were tried and fit."""
        return tuple(batch for batch, fits in self.tried if fits and self.batch is not None and batch > self.batch)

    @property
    def note(self) -> str:
        """A short note on the number, such as ``unlimited`` or ``capped``; empty if there is nothing to note."""
        if self.run.refused:
            return self.run.failure
        if self.unlimited:
            return "unlimited"
        if self.batch is None:
            return "failed" if any(fits for _, fits in self.tried) else "none fits"
        notes = ["capped"] if self.batch == self.limit else []
        notes += ["islands"] if self.islands else []
        notes += ["unsteady"] if self.result is not None and self.result.steady is False else []
        return ", ".join([*notes, *self._adopted()])

    def _adopted(self) -> list[str]:
        """The policy's notes on a program adopted from another policy, without the reason."""
        notes = () if self.result is None else self.result.program.notes
        texts = [note for note in notes if note.startswith("adopted:")]
        return [match.group() if (match := _ADOPTED.match(note)) else note for note in texts]

    def sentences(self) -> Iterator[str]:
        """Its note in sentences: why there is no number, or what limits its meaning."""
        if self.unlimited:
            paged = self.run.result is not None and self.run.result.program.residency is not None
            why = "no block has to be in device memory" if paged else "unlimited memory"
            yield f"{why}, so any batch fits"
        elif self.run.result is None:
            predicted = any(fits for _, fits in self.tried)
            yield f"predicted to fit, but ran out: {self.run.outcome}" if predicted else str(self.run.outcome)
        elif self.batch == self.limit:
            yield f"batches larger than {self.limit} were not tried; raise `limit` to try them"
        if self.islands:
            listed = ", ".join(map(str, self.islands[-3:])) + (" among others" if len(self.islands) > 3 else "")
            yield f"larger batches fit again ({listed}): convolutions change their algorithm, or blocks fit into holes"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the batches, what was tried, and the run."""
        tried = [{"batch": batch, "fits": fits} for batch, fits in self.tried]
        results = {"largest_batch": self.batch, "note": self.note, "limit": self.limit, "islands": list(self.islands)}
        best = self.recommended
        speeds = {"recommended": best and best.to_dict(), "speeds": [each.to_dict() for each in self.speeds]}
        return {**speeds, **results, "tried": tried, "run": self.run.to_dict()}


@dataclass(frozen=True, repr=False)
class MaxBatch:
    """The largest batches of policies, for one network and node. Prints as a table, in notebooks too.

    Use ``result["vdnn(mode=conv)"]`` for a policy by its label, `frame` for all numbers.

    trace: the trace that other batches were derived from
    budget: device memory, bytes
    """

    results: tuple[LargestBatch, ...]
    trace: TraceInfo
    trace_name: str
    node: NodeSpec
    budget: int

    def __iter__(self) -> Iterator[LargestBatch]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, label: str) -> LargestBatch:
        for each in self.results:
            if each.run.label == label:
                return each
        raise KeyError(label)

    @property
    def nothing_fits(self) -> bool:
        """Whether no policy fits a single sample; policies that are refused or have unlimited memory do not count."""
        shown = [each for each in self.results if not each.unlimited and not each.run.refused]
        return bool(shown) and all(each.batch is None for each in shown)

    def vs_none(self, each: LargestBatch) -> float | None:
        """A largest batch over that of the policy none; None if one of them is not known."""
        base = next((other.batch for other in self.results if other.run.label == "none"), None)
        return each.batch / base if each.batch and base else None

    def rows(self) -> list[tuple[str, ...]]:
        """The cells under `MAX_BATCH_HEADINGS`, one row per policy."""
        return [(each.run.label, *self._cells(each), each.note) for each in self.results]

    def _cells(self, each: LargestBatch) -> tuple[str, ...]:
        if each.result is None:
            return (_ABSENT,) * (len(MAX_BATCH_HEADINGS) - 2)
        best, times = each.recommended, self.vs_none(each)
        near = (str(best.batch), _rate(best.samples_per_s), f"{best.slowdown:.3f}x") if best else (_ABSENT,) * 3
        return (
            *near,
            str(each.batch),
            _rate(each.result.metrics.samples_per_s),
            _ABSENT if times is None else f"{times:.2f}x" if times < 100 else f"{times:.0f}x",
        )

    def facts(self) -> list[tuple[str, str]]:
        """The network, its provenance and the node, as pairs of name and text."""
        others = "" if self.trace.origin is Origin.MODELLED else f"; modelled at batches other than {self.trace.batch}"
        device = f"{self.node.name}: {self.node.gpu.name}, {budget_text(self.budget)}"
        return [
            ("network", self.trace_name or self.trace.model),
            ("origin", f"{self.trace.provenance}{others}"),
            ("node", device),
        ]

    @property
    def caption(self) -> str:
        """The facts in one line."""
        return "; ".join(text for _, text in self.facts())

    def notes(self) -> list[str]:
        """Notes on the numbers, as sentences with their policy."""
        return [f"{each.run.label}: {text}" for each in self.results for text in each.sentences()]

    def frame(self) -> pd.DataFrame:
        """One row per policy: its recommended batch, its largest, and the numbers there in base units.

        Columns of the recommended batch begin with ``recommended_``. Cells are empty if there is no such batch. The
        last columns are trace, node, budget, origin, device and date.
        """
        import pandas as pd

        info = self.trace
        about: dict[str, Any] = {
            "trace": self.trace_name or info.model,
            "node": self.node.name,
            "budget_bytes": self.budget,
        }
        about |= {"origin": info.origin.value, "device": info.device, "date": info.date}
        rows = {each.run.label: {**_numbers(each), "vs_none": self.vs_none(each)} for each in self.results}
        near = [f"recommended_{name}" for name in Speed._fields]
        columns = [*near, "batch", "vs_none", *_NUMBERS, "steady", "islands", "tried", "note"]
        numbers = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        return numbers.assign(**about).rename_axis("policy")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: trace, node and budget, and one entry per policy."""
        trace = {"name": self.trace_name, **asdict(self.trace), "origin": self.trace.origin.value}
        caching = any(each.result is not None and each.result.pool == "caching" for each in self.results)
        about = {
            "trace": trace,
            "node": self.node.to_dict(context=caching),
            "budget_bytes": self.budget,
            **part_facts(self.budget),
        }
        policies = [{**each.to_dict(), "vs_none": self.vs_none(each)} for each in self.results]
        return {**about, "policies": policies}

    def __repr__(self) -> str:
        return "\n".join((self.caption, table_text(MAX_BATCH_HEADINGS, self.rows()), LEGEND, *self.notes()))

    def _repr_html_(self) -> str:
        return table_html(MAX_BATCH_HEADINGS, self.rows(), self.caption)


_NUMBERS = ("samples_per_s", "iteration_ns", "device_peak_bytes", "d2h_bytes", "h2d_bytes")


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:.4g}" if samples_per_s < 1000 else f"{samples_per_s:.0f}"


def _numbers(each: LargestBatch) -> dict[str, Any]:
    rows = each.result.metrics.by_key if each.result else {}
    numbers: dict[str, Any] = {key: rows[key] for key in _NUMBERS if key in rows}
    steady = each.result.steady if each.result else None
    near = each.recommended
    numbers |= {f"recommended_{name}": value for name, value in near._asdict().items()} if near else {}
    about = {"batch": each.batch, "islands": len(each.islands), "tried": len(each.tried), "note": each.note}
    return {**numbers, "steady": steady, **about}
