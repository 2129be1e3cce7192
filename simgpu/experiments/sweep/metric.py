"""The numeric columns of a sweep's results, checked by name before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from simgpu.analysis.metrics import metric_keys
from simgpu.errors import InputError, did_you_mean
from simgpu.experiments.sweep.point import NUMBERS
from simgpu.experiments.sweep.table import PARAMETERS, axis_kind

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep


def check_metric(sweep: Sweep, metric: str) -> None:
    """Raise `InputError` for a metric that no run of the sweep can have.

    Some columns have a number only in some runs, so a metric that passes may still have none in the results.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> check_metric(load_sweep("memory-sweep"), "slowdown")
    """
    known = set(_names(sweep))
    if metric not in known:
        raise no_metric("metric", metric, known)


def no_metric(argument: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a column that is no metric. argument: by which it is given. known: the columns with numbers."""
    what = f"{name!r} is not a numeric column of this sweep"
    return InputError.single("", f"argument {argument}", what, did_you_mean(name, set(known) - {"point"}))


def _names(sweep: Sweep) -> Iterator[str]:
    """The columns that have numbers in some run."""
    yield from (column.name for column in PARAMETERS if column.kind == "int")
    yield from (path for path in sweep.paths if axis_kind(sweep, path) in ("int", "float"))
    yield from NUMBERS
    for node in sweep.points().nodes():
        yield from metric_keys(node)
