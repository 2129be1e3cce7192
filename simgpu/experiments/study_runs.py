"""One run of a study on one trace: a training, or the largest batch that fits and an iteration of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.max_batch import max_batch
from simgpu.experiments.study_measures import Cell
from simgpu.experiments.training import Epoch, Training, train
from simgpu.policies.registry import make_policy

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import Study, StudyRun


def cell_of(study: Study, label: str, run: StudyRun) -> Cell:
    """The numbers of a run on the trace of that label; without any, and why, where it is out of memory or refused."""
    try:
        return cell_with_extras(study, label, run)
    except MissingExtraError as error:
        return Cell(None, refused=str(error), batch=study.traces[label].info.batch)


def cell_with_extras(study: Study, label: str, run: StudyRun) -> Cell:
    """The same. Raises `MissingExtraError` where it is only this installation that cannot run it."""
    try:
        return Cell.of((_at_largest_batch if study.largest_batch else _trained)(study, label, run))
    except OutOfMemoryError as error:
        return Cell(None, out_of_memory=str(error), batch=study.traces[label].info.batch)
    except InputError as error:
        return Cell(None, refused=str(error), batch=study.traces[label].info.batch)


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
        **(run.data_parallel.arguments if run.data_parallel else {}),
    )


def _at_largest_batch(study: Study, label: str, run: StudyRun) -> Training:
    """The iteration at the largest batch. Raises what a run raises where there is none."""
    policy, budget = run.on(label)
    trace, (epoch,) = study.traces[label], study.epochs
    (found,) = max_batch(
        trace,
        run.node,
        [make_policy(*policy)],
        budget=budget,
        iterations=study.iterations,
        seed=study.seed,
        epoch=epoch,
        speeds=False,
    )
    if isinstance(found.run.outcome, Exception):
        raise found.run.outcome
    if found.batch is None:
        remedy = "leave the run out, or the study's largest_batch"
        raise InputError.single(study.name, f"runs.{run.label}", "its memory is not limited, so any batch fits", remedy)
    info = replace(trace.info, batch=found.batch)
    return Training(found.run.label, info, trace.name, (Epoch(epoch, 1, found.run.outcome),))
