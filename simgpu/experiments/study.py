"""Runs a study: several policies on several traces over training epochs, compared with the numbers of a paper."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from simgpu.analysis.breakdown import PARTS
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.max_batch import max_batch
from simgpu.experiments.processes import Progress, check_jobs, in_jobs
from simgpu.experiments.study_measures import StudyCell, memory_of
from simgpu.experiments.study_tables import study_text
from simgpu.experiments.study_values import STUDY_REPORT_SCHEMA, StudyValues
from simgpu.experiments.training import Epoch, Training, train
from simgpu.policies.base import plain_parameters, policy_label
from simgpu.policies.registry import make_policy
from simgpu.simulation.plain_peak import part_facts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.study import Study, StudyRun
    from simgpu.trace.model import Trace


@dataclass(frozen=True, repr=False)
class StudyResult(StudyValues):
    """The result of a study. Prints as its tables; `frame` has all numbers."""

    def frame(self) -> pd.DataFrame:
        """One row per trace and run: batch, origin, measures, throughput over each baseline, policy, node and budget.

        Where a budget is given as a percentage, ``budget_part`` is that, and ``plain_peak_bytes`` what it is a part of.
        """
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
                **{f"vs_{label}": self._over(trace, runs[run], label) for label in self.study.baseline},
                **{f"{part}_ns": cell.parts.get(part) for part in PARTS},
                "traffic_bytes": cell.traffic_bytes,
                "energy_nj": cell.energy_nj,
                "average_power": cell.average_power,
                "peak_power": cell.peak_power,
                "peak_bytes": cell.peak_bytes,
                "compression_ratio": cell.ratio,
                "overflow": cell.overflow,
                "metadata_hit_rate": cell.metadata_hit_rate,
                "steady": cell.steady,
                "policy": policy_label(make_policy(*runs[run].on(trace)[0])),
                "node": runs[run].node.name,
                "gpus": how.gpus if (how := runs[run].data_parallel) is not None else 1,
                "budget_bytes": (budget := runs[run].on(trace)[1]),
                **(part_facts(budget) if budget is not None else {}),
            }
            for (trace, run), cell in self.cells.items()
        ]
        integers = [f"{part}_ns" for part in PARTS] + ["traffic_bytes", "energy_nj", "budget_bytes", "peak_bytes"]
        frame = pd.DataFrame(rows)
        integers += [column for column in ("plain_peak_bytes",) if column in frame]
        return frame.astype(dict.fromkeys(integers, "Int64")).set_index(["trace", "run"])

    def _over(self, trace: str, run: StudyRun, baseline: str) -> float | None:
        other = self.study.compared(run, baseline)
        return None if other is None else self.ratio(trace, run.label, other.label)

    def to_dict(self) -> dict[str, Any]:
        """The study and all its results as plain data for JSON."""
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
            "pool": study.pool,
            "largest_batch": study.largest_batch,
            "traces": {label: _about(trace) for label, trace in study.traces.items()},
            "networks": {label: list(batches) for label, batches in study.networks.items()},
            "runs": {run.label: _run(run) for run in study.runs},
            "results": [
                {"trace": trace, "run": run, **asdict(cell), "failure": cell.failure}
                | {"vs": {label: self._over(trace, runs[run], label) for label in study.baseline}}
                for (trace, run), cell in self.cells.items()
            ],
            "means": [asdict(means) for means in self.all_means()],
            "memory": {trace: dict(amounts) for trace, amounts in self.memory.items()},
            "published": [
                {
                    **asdict(row.published),
                    "simulated": row.simulated,
                    "difference": row.difference,
                    "traces": row.traces,
                    "values": row.values,
                }
                for row in self.comparisons()
            ],
        }

    def plot(self, what: Literal["measures", "throughput", "breakdown"]) -> Figure:
        """A matplotlib figure of the study.

        measures: every measure of the study's tables over each baseline, with published values
        throughput: samples/s by batch, of a study with a sweep of batches
        breakdown: the step-time breakdown

        Raises `InputError` if the study has no such sweep, or no measure.
        """
        from simgpu.experiments.study_charts import plot_study

        return plot_study(self, what)

    def __repr__(self) -> str:
        return study_text(self)


def run_study(study: Study, *, jobs: int = 1, progress: Progress | None = None) -> StudyResult:
    """Run every run of a study on every trace. The results do not depend on where they run.

    If a run is out of memory on a trace, or its policy refuses it, its cell has no numbers.

    jobs: number of worker processes on this machine; 1 runs everything in this process
    progress: called with the number of finished runs on traces and their total

    >>> from simgpu.experiments.scenarios.load_study import load_study
    >>> result = run_study(load_study("cswap-6a", {"epochs": [48]}))
    >>> round(result.ratio("Plain20", "CSWAP", "static"), 3), result.mean("vDNN", "vDNN")
    (1.0, 1.0)
    """
    check_jobs(jobs)
    work = _Cells(study)
    points = range(len(work.keys))
    finished = in_jobs(work, points, min(jobs, len(points) or 1), _numbered_cell, partial(_died, work))
    if progress:
        progress(0, len(points))
    cells = {}
    with closing(finished):
        for done, (point, cell) in enumerate(finished, 1):
            cells[point] = cell
            if progress:
                progress(done, len(points))
    wants_memory = any(row.memory is not None for row in study.published)
    return StudyResult(
        study,
        {(trace, run.label): cells[point] for point, (trace, run) in enumerate(work.keys)},
        {label: memory_of(trace) for label, trace in study.traces.items()} if wants_memory else {},
    )


@dataclass(frozen=True)
class _Cells:
    """The cells of a study as numbered points: every run on the first trace, then on the next."""

    study: Study

    @cached_property
    def keys(self) -> list[tuple[str, StudyRun]]:
        """The label of the trace, and the run, by number."""
        return [(trace, run) for trace in self.study.traces for run in self.study.runs]

    def points(self) -> _Cells:
        """Nothing has to be opened."""
        return self


def _numbered_cell(cells: _Cells, point: int) -> tuple[int, StudyCell]:
    trace, run = cells.keys[point]
    return point, cell_of(cells.study, trace, run)


def _died(cells: _Cells, point: int, reason: str) -> tuple[int, StudyCell]:
    trace, _ = cells.keys[point]
    return point, StudyCell(None, refused=reason, batch=cells.study.traces[trace].info.batch)


def _about(trace: Trace) -> dict[str, Any]:
    return {"name": trace.name, **asdict(trace.info), "origin": trace.info.origin.value}


def _run(run: StudyRun) -> dict[str, Any]:
    created = make_policy(*run.policy)
    return {
        "policy": created.name,
        "parameters": plain_parameters(created.parameters),
        "node": run.node.to_dict(context=False),
        "budget_bytes": run.budget,
        "data_parallel": asdict(run.data_parallel) if run.data_parallel else None,
        "sweep": run.sweep,
        "oversubscription": run.oversubscribed,
        "per_trace": {
            trace: {
                "policy": policy and policy.name,
                "parameters": plain_parameters(policy.parameters) if policy else None,
                "budget_bytes": budget,
                **(part_facts(budget) if budget is not None else {}),
            }
            for trace, (policy, budget) in run.changed.items()
        },
    }


def cell_of(study: Study, label: str, run: StudyRun) -> StudyCell:
    """The numbers of a run on the trace of this label, or why it was out of memory or refused."""
    try:
        return cell_with_extras(study, label, run)
    except MissingExtraError as error:
        return StudyCell(None, refused=str(error), batch=study.traces[label].info.batch)


def cell_with_extras(study: Study, label: str, run: StudyRun) -> StudyCell:
    """Like `cell_of`, but raises `MissingExtraError` if only a package is missing in this installation."""
    try:
        return StudyCell.of((_at_largest_batch if study.largest_batch else _trained)(study, label, run))
    except OutOfMemoryError as error:
        return StudyCell(None, out_of_memory=str(error), batch=study.traces[label].info.batch)
    except InputError as error:
        return StudyCell(None, refused=str(error), batch=study.traces[label].info.batch)


def _trained(study: Study, label: str, run: StudyRun) -> Training:
    (policy, parameters), budget = run.on(label)
    return train(
        study.traces[label],
        run.node,
        policy,
        parameters=parameters,
        epochs=study.epochs,
        iterations=study.iterations,
        seed=study.seed,
        budget=budget,
        pool=study.pool,
        **(run.data_parallel.arguments if run.data_parallel else {}),
    )


def _at_largest_batch(study: Study, label: str, run: StudyRun) -> Training:
    """The iteration at the largest batch that fits. Raises the run's error if there is none."""
    policy, budget = run.on(label)
    trace, (epoch,) = study.traces[label], study.epochs
    (result,) = max_batch(
        trace,
        run.node,
        [make_policy(*policy)],
        budget=budget,
        iterations=study.iterations,
        seed=study.seed,
        epoch=epoch,
        pool=study.pool,
        speeds=False,
    )
    if isinstance(result.run.outcome, Exception):
        raise result.run.outcome
    if result.batch is None:
        remedy = "remove the run, or the study's largest_batch"
        raise InputError.single(study.name, f"runs.{run.label}", "its memory is not limited, so any batch fits", remedy)
    info = replace(trace.info, batch=result.batch)
    return Training(result.run.label, info, trace.name, (Epoch(epoch, 1, result.run.outcome),))
