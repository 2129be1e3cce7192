"""A study: several traces under several policies over epochs of training, beside the numbers that a paper states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from simgpu.analysis.breakdown import PARTS
from simgpu.experiments.study_means import Means, means_of
from simgpu.experiments.study_measures import MEASURES, Cell
from simgpu.experiments.study_memory import memory_of
from simgpu.experiments.study_runs import cell_of
from simgpu.policies.base import plain_parameters, policy_label
from simgpu.policies.registry import make_policy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.study import Published, Study, StudyRun
    from simgpu.trace.model import Trace

STUDY_REPORT_SCHEMA = "simgpu.study-report/2"
#: What a published number may be of, beside one of the traces; a published mean is arithmetic.
_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}


def aggregate(of: str, values: list[float]) -> float | None:
    """The mean, min or max of values, the mean of those of a trace; None of none.

    >>> aggregate("max", [1.0, 3.0]), aggregate("VGG16", [3.0]), aggregate("mean", [])
    (3.0, 3.0, None)
    """
    return _AGGREGATES.get(of, fmean)(values) if values else None


@dataclass(frozen=True, slots=True)
class Beside:
    """A published number and ours.

    ours: None where a run it needs was out of memory. traces: how many it is of, of so many asked; values: on how many
    of their points, several for a trace where a sweep of budgets is told of, and points: how many there are.
    """

    published: Published
    ours: float | None
    traces: int
    values: int
    asked: int
    points: int

    @property
    def difference(self) -> float | None:
        """Ours less the published one."""
        return None if self.ours is None else self.ours - self.published.value


@dataclass(frozen=True, repr=False)
class StudyResult:
    """The cells of a study by labels of trace and run. Prints as its tables; `frame` has all numbers.

    memory: of each trace, where published numbers are of it: bytes by the names of `simgpu.experiments.study_memory`.
    """

    study: Study
    cells: Mapping[tuple[str, str], Cell]
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def value(self, measure: str, trace: str, run: str, over: str = "") -> float | None:
        """A measure of one run on a trace, told over another run where it is not of the run alone.

        trace: its label; that of a network, for a measure of all its batches together. None where one of the runs was
        out of memory, or where what is measured is not known.
        """
        if (of_sweep := MEASURES[measure].of_sweep) is not None:
            batches = self.study.networks[trace]
            return of_sweep(*([self.cells[batch, each] for batch in batches] for each in (run, over or run)))
        ours = self.cells[trace, run]
        theirs = self.cells[trace, over] if over else ours
        if ours.samples_per_s is None or theirs.samples_per_s is None:
            return None
        return MEASURES[measure].of(ours, theirs)

    def ratio(self, trace: str, run: str, over: str) -> float | None:
        """Throughput of one run over that of another, None where one of them was out of memory."""
        return self.value("throughput", trace, run, over)

    def values(
        self, measure: str, run: str, over: str = "", without: Iterable[str] = (), of: str = ""
    ) -> dict[str, list[float]]:
        """The values by trace, where there are any: of one run, or of every run of a sweep.

        over: a run, or a sweep, of which the run with the same budget is meant. without, of: see `_told_of`.
        """
        found = {}
        for trace in self._told_of(measure, of, without):
            values = [self.value(measure, trace, *pair) for pair in self._pairs(run, over)]
            if told := [value for value in values if value is not None]:
                found[trace] = told
        return found

    def mean(self, run: str, over: str = "", measure: str = "throughput") -> float | None:
        """Mean of a measure of one run over the traces on which every run of the study has a value; None without one.

        Geometric of ratios, else arithmetic; `means` says over which traces it is.
        """
        return self.means(measure, over).values[run]

    def means(self, measure: str, over: str = "") -> Means:
        """The means of a measure of all runs over a baseline, taken over the same traces."""
        return means_of(self, measure, over)

    def all_means(self) -> tuple[Means, ...]:
        """The means of every measure of the tables over each of its baselines, where means say something."""
        return tuple(
            self.means(measure, over)
            for measure in self.study.tables
            if measure != "breakdown" and MEASURES[measure].averaged
            for over in (self.study.baseline if not MEASURES[measure].alone else ("",))
        )

    def _told_of(self, measure: str, of: str = "", without: Iterable[str] = ()) -> list[str]:
        """The labels that a measure has values of: of traces, or of networks where it is of all their batches.

        of: one of them or a sweep of batches, in place of all. without: those that are left out.
        """
        study, left = self.study, set(without)
        whole = MEASURES[measure].of_sweep is not None
        names = {label: study.network(label) for label in (study.networks if whole else study.traces)}
        chosen = of in names or of in study.networks
        return [
            label
            for label, name in names.items()
            if left.isdisjoint((label, name)) and (not chosen or of in (label, name))
        ]

    def _pairs(self, run: str, over: str) -> list[tuple[str, str]]:
        """Labels of runs that are compared; the second is empty for a measure of runs alone."""
        members = self.study.members(run)
        if not over:
            return [(member.label, "") for member in members]
        pairs = [(member, self.study.compared(member, over)) for member in members]
        return [(member.label, other.label) for member, other in pairs if other is not None]

    def beside(self) -> tuple[Beside, ...]:
        """Every published number with ours."""
        return tuple(map(self.compared_with, self.study.published))

    def compared_with(self, row: Published) -> Beside:
        """A published number with ours."""
        each = 1 if row.memory is not None else len(self._pairs(row.run, row.over))
        asked = self._told_of(row.measure, row.of, row.without)
        of = self.values_of(row)
        values = [value for told in of.values() for value in told]
        ours = self._of_sums(row, of) if row.of == "sum" else aggregate(row.of, values)
        return Beside(row, ours, len(of), len(values), len(asked), each * len(asked))

    def values_of(self, row: Published) -> dict[str, list[float]]:
        """The values that a published number is of by trace, where there are any; several where a sweep is told of."""
        if row.memory is not None:
            told = self._told_of(row.measure, row.of, row.without)
            return {trace: [self._of_memory(row, trace)] for trace in told}
        return self.values(row.measure, row.run, row.over, row.without, row.of)

    def cells_of(self, row: Published) -> list[tuple[str, str]]:
        """The labels of trace and run of every cell that a published number is told from."""
        networks, labels = self.study.networks, self._told_of(row.measure, row.of, row.without)
        traces = [trace for label in labels for trace in networks.get(label, (label,))]
        runs = dict.fromkeys(run for pair in self._pairs(row.run, row.over) for run in pair if run)
        return [(trace, run) for trace in traces for run in runs]

    def _of_sums(self, row: Published, traces: Iterable[str]) -> float | None:
        """The sum over traces of what a measure divides, over the sum of what it is divided by."""
        part = MEASURES[row.measure].quotient_of
        ours, theirs = (
            sum(self.value(part, trace, run) or 0 for trace in traces for run in runs)
            for runs in zip(*self._pairs(row.run, row.over), strict=True)
        )
        return ours / theirs if theirs else None

    def _of_memory(self, row: Published, trace: str) -> float:
        together, amount = self.memory[trace]["all_at_once"], self.memory[trace][row.memory or ""]
        return 1 - amount / together if row.measure == "memory_saved" else together / amount

    @property
    def nothing_fitted(self) -> bool:
        """Whether there are runs with limited memory, and every one of them was out of it on every trace."""
        limited = [cell for cell in self.cells.values() if cell.limited]
        return bool(limited) and all(cell.samples_per_s is None for cell in limited)

    def frame(self) -> pd.DataFrame:
        """One row a trace and run: batch, origin, samples/s, throughput over each baseline, policy and node."""
        import pandas as pd

        runs = {run.label: run for run in self.study.runs}
        rows = [
            {
                "trace": trace,
                "run": run,
                "network": self.study.network(trace),
                "batch": cell.batch,
                "origin": self.study.traces[trace].info.origin.value,
                "failure": cell.failure,
                "samples_per_s": cell.samples_per_s,
                **{f"over_{label}": self._over(trace, runs[run], label) for label in self.study.baseline},
                **{f"{part}_ns": cell.parts.get(part) for part in PARTS},
                "bytes_moved": cell.bytes_moved,
                "energy_nj": cell.energy_nj,
                "average_power": cell.average_power,
                "largest_power": cell.largest_power,
                "peak_bytes": cell.peak_bytes,
                "compression_ratio": cell.ratio,
                "overflow": cell.overflow,
                "metadata_hits": cell.metadata_hits,
                "steady": cell.steady,
                "policy": policy_label(make_policy(*runs[run].on(trace)[0])),
                "node": runs[run].node.name,
                "gpus": how.gpus if (how := runs[run].data_parallel) is not None else 1,
                "budget_bytes": runs[run].on(trace)[1],
            }
            for (trace, run), cell in self.cells.items()
        ]
        whole = [f"{part}_ns" for part in PARTS] + ["bytes_moved", "energy_nj", "budget_bytes", "peak_bytes"]
        return pd.DataFrame(rows).astype(dict.fromkeys(whole, "Int64")).set_index(["trace", "run"])

    def _over(self, trace: str, run: StudyRun, baseline: str) -> float | None:
        other = self.study.compared(run, baseline)
        return None if other is None else self.ratio(trace, run.label, other.label)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        study = self.study
        runs = {run.label: run for run in study.runs}
        return {
            "schema": STUDY_REPORT_SCHEMA,
            "study": study.name,
            "description": study.description,
            "paper": study.paper,
            "notes": list(study.notes),
            "epochs": list(study.epochs),
            "iterations": study.iterations,
            "seed": study.seed,
            "largest_batch": study.largest_batch,
            "traces": {label: _about(trace) for label, trace in study.traces.items()},
            "networks": {label: list(batches) for label, batches in study.networks.items()},
            "runs": {run.label: _run(run) for run in study.runs},
            "results": [
                {"trace": trace, "run": run, **asdict(cell), "failure": cell.failure}
                | {"over": {label: self._over(trace, runs[run], label) for label in study.baseline}}
                for (trace, run), cell in self.cells.items()
            ],
            "means": [asdict(means) for means in self.all_means()],
            "memory": {trace: dict(amounts) for trace, amounts in self.memory.items()},
            "published": [
                {
                    **asdict(row.published),
                    "ours": row.ours,
                    "difference": row.difference,
                    "traces": row.traces,
                    "values": row.values,
                }
                for row in self.beside()
            ],
        }

    def plot(self, what: Literal["measures", "throughput", "breakdown"]) -> Figure:
        """A matplotlib figure: every measure of the study's tables over each baseline, with what is published of it;
        throughput against batch, of a study with a sweep of batches; or what the time went to.

        `InputError` where the study has no such sweep, or no measure.
        """
        from simgpu.experiments.study_charts import plot_study

        return plot_study(self, what)

    def __repr__(self) -> str:
        from simgpu.experiments.study_tables import study_text

        return study_text(self)


def run_study(study: Study, *, progress: Callable[[str], None] | None = None) -> StudyResult:
    """Every run of a study on every trace.

    A run that is out of memory on a trace, or whose policy refuses it, leaves that cell without a number. progress:
    called with a line before each trace.

    >>> from simgpu.experiments.scenarios.load_study import load_study
    >>> result = run_study(load_study("cswap-6a", {"epochs": [48]}))
    >>> round(result.ratio("Plain20", "CSWAP", "static"), 3), result.mean("vDNN", "vDNN")
    (1.0, 1.0)
    """
    cells = {}
    for label in study.traces:
        if progress:
            progress(f"{label}, {len(study.runs)} runs of {len(study.epochs)} epochs")
        for run in study.runs:
            cells[label, run.label] = cell_of(study, label, run)
    asked = any(row.memory is not None for row in study.published)
    return StudyResult(
        study, cells, {label: memory_of(trace) for label, trace in study.traces.items()} if asked else {}
    )


def _about(trace: Trace) -> dict[str, Any]:
    return {"name": trace.name, **asdict(trace.info), "origin": trace.info.origin.value}


def _run(run: StudyRun) -> dict[str, Any]:
    made = make_policy(*run.policy)
    return {
        "policy": made.name,
        "parameters": plain_parameters(made.parameters),
        "node": asdict(run.node),
        "budget_bytes": run.budget,
        "data_parallel": asdict(run.data_parallel) if run.data_parallel else None,
        "sweep": run.sweep,
        "oversubscription": run.oversubscribed,
        "for_trace": {
            trace: {
                "policy": policy and policy.name,
                "parameters": plain_parameters(policy.parameters) if policy else None,
                "budget_bytes": budget,
            }
            for trace, (policy, budget) in run.changed.items()
        },
    }
