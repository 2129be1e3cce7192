"""A study: several traces under several policies over epochs of training, beside the numbers that a paper states.

Lives here: `run_study` and its answer. Does not live here: one training (`simgpu.experiments.training`), what a study
is (`simgpu.scenario.study`), or the texts of its tables (`simgpu.experiments.study_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simgpu.analysis.labels import policy_label
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.training import train
from simgpu.policies.registry import make_policy

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.scenario.study import Published, Study, StudyRun
    from simgpu.trace.model import Trace

STUDY_REPORT_SCHEMA = "simgpu.study-report/1"
#: What a published number may be of, beside one of the traces.
_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace under one run.

    samples_per_s: over all epochs, each weighted equally; None when the run was out of memory or the policy
    refused the trace, of which out_of_memory and refused tell. iteration_ns: of each epoch. compressed: blocks
    that leave compressed, of each epoch. steady: whether the last two iterations were equal in every epoch.
    limited: whether memory has an end.
    """

    samples_per_s: float | None
    iteration_ns: tuple[int, ...] = ()
    compressed: tuple[int, ...] = ()
    steady: bool | None = None
    limited: bool = True
    out_of_memory: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    """A published number and ours. ours: None where a run it needs was out of memory; traces: how many it is of."""

    published: Published
    ours: float | None
    traces: int

    @property
    def difference(self) -> float | None:
        """Ours less the published one."""
        return None if self.ours is None else self.ours - self.published.value


@dataclass(frozen=True, repr=False)
class StudyResult:
    """The cells of a study by labels of trace and run. Prints as its tables; `frame` has all numbers."""

    study: Study
    cells: Mapping[tuple[str, str], Cell]

    def ratio(self, trace: str, run: str, over: str) -> float | None:
        """Throughput of one run over that of another, None where one of them was out of memory."""
        ours, theirs = (self.cells[trace, label].samples_per_s for label in (run, over))
        return ours / theirs if ours is not None and theirs else None

    def ratios(self, run: str, over: str, without: Iterable[str] = ()) -> dict[str, float]:
        """The same by trace, where both runs fitted."""
        left = set(without)
        found = {trace: self.ratio(trace, run, over) for trace in self.study.traces if trace not in left}
        return {trace: ratio for trace, ratio in found.items() if ratio is not None}

    def mean(self, run: str, over: str) -> float | None:
        """Arithmetic mean of the ratios of all traces where both runs fitted."""
        found = list(self.ratios(run, over).values())
        return fmean(found) if found else None

    def beside(self) -> tuple[Beside, ...]:
        """Every published number with ours."""
        return tuple(map(self._beside, self.study.published))

    def _beside(self, row: Published) -> Beside:
        ratios = self.ratios(row.run, row.over, row.without)
        if row.measure == "time_saved":
            ratios = {trace: 1 - 1 / ratio for trace, ratio in ratios.items()}
        if row.of in self.study.traces:
            return Beside(row, ratios.get(row.of), int(row.of in ratios))
        values = list(ratios.values())
        return Beside(row, _AGGREGATES[row.of](values) if values else None, len(values))

    @property
    def nothing_fitted(self) -> bool:
        """Whether every run with limited memory was out of it on every trace."""
        return all(cell.samples_per_s is None for cell in self.cells.values() if cell.limited)

    def frame(self) -> pd.DataFrame:
        """One row a trace and run: batch, origin, samples/s, throughput over each baseline, policy and node."""
        import pandas as pd

        runs = {run.label: run for run in self.study.runs}
        rows = [
            {
                "trace": trace,
                "run": run,
                "batch": self.study.traces[trace].info.batch,
                "origin": self.study.traces[trace].info.origin.value,
                "samples_per_s": cell.samples_per_s,
                **{f"over_{label}": self.ratio(trace, run, label) for label in self.study.baseline},
                "steady": cell.steady,
                "policy": policy_label(make_policy(*runs[run].policy)),
                "node": runs[run].node.name,
            }
            for (trace, run), cell in self.cells.items()
        ]
        return pd.DataFrame(rows).set_index(["trace", "run"])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        study = self.study
        return {
            "schema": STUDY_REPORT_SCHEMA,
            "study": study.name,
            "description": study.description,
            "paper": study.paper,
            "notes": list(study.notes),
            "epochs": list(study.epochs),
            "iterations": study.iterations,
            "seed": study.seed,
            "traces": {label: _about(trace) for label, trace in study.traces.items()},
            "runs": {run.label: _run(run) for run in study.runs},
            "results": [
                {"trace": trace, "run": run, **asdict(cell)}
                | {"over": {label: self.ratio(trace, run, label) for label in study.baseline}}
                for (trace, run), cell in self.cells.items()
            ],
            "mean_of_ratios": {
                label: {run.label: self.mean(run.label, label) for run in study.runs} for label in study.baseline
            },
            "published": [
                {**asdict(row.published), "ours": row.ours, "difference": row.difference, "traces": row.traces}
                for row in self.beside()
            ],
        }

    def __repr__(self) -> str:
        from simgpu.experiments.study_tables import study_text

        return study_text(self)


def run_study(study: Study, *, progress: Callable[[str], None] | None = None) -> StudyResult:
    """Every run of a study on every trace.

    A run that is out of memory on a trace, or whose policy refuses it, leaves that cell without a number. progress:
    called with a line before each trace.

    >>> from simgpu.scenario.load_study import load_study
    >>> result = run_study(load_study("cswap-6a", {"epochs": [48]}))
    >>> round(result.ratio("Plain20", "CSWAP", "static"), 3), result.mean("vDNN", "vDNN")
    (1.0, 1.0)
    """
    cells = {}
    for label, trace in study.traces.items():
        if progress:
            progress(f"{label}, {len(study.runs)} runs of {len(study.epochs)} epochs")
        for run in study.runs:
            cells[label, run.label] = _cell(study, trace, run)
    return StudyResult(study, cells)


def _cell(study: Study, trace: Trace, run: StudyRun) -> Cell:
    policy, parameters = run.policy
    try:
        training = train(
            trace,
            run.node,
            policy,
            parameters=parameters,
            epochs=study.epochs,
            iterations=study.iterations,
            seed=study.seed,
        )
    except OutOfMemoryError as error:
        return Cell(None, out_of_memory=str(error))
    except (InputError, MissingExtraError) as error:
        return Cell(None, refused=str(error))
    results = [epoch.result for epoch in training.epochs]
    steady = [result.steady for result in results]
    return Cell(
        training.samples_per_s,
        tuple(result.iteration_ns for result in results),
        training.counts,
        None if None in steady else all(steady),
        not all(result.program.unlimited_memory for result in results),
    )


def _about(trace: Trace) -> dict[str, Any]:
    return {"name": trace.name, **asdict(trace.info), "origin": trace.info.origin.value}


def _run(run: StudyRun) -> dict[str, Any]:
    made = make_policy(*run.policy)
    return {"policy": made.name, "parameters": dict(made.parameters), "node": asdict(run.node)}
