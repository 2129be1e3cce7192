"""Integer programs solved by HiGHS, which SciPy (extra ``calibrate``) has."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import MissingExtraError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: A limit of time would make answers depend on the machine; one this long is only for programs that never end.
TIME_LIMIT_S = 120.0


class Optimum(NamedTuple):
    """x: the variables' values. value: of the objective. bound: no solution is below it.

    is_timed_out: whether HiGHS was stopped after `TIME_LIMIT_S`, so that another machine may find another solution.
    """

    x: NDArray[np.float64]
    value: float
    bound: float
    is_timed_out: bool = False


def require_scipy(what: str) -> None:
    """Raises `MissingExtraError` without SciPy, which `what` needs."""
    if find_spec("scipy") is None:
        raise MissingExtraError(what, "scipy", "calibrate")


def minimize(
    cost: NDArray[np.float64],
    matrix: csr_array,
    least: NDArray[np.float64],
    upper: NDArray[np.float64],
    integral: NDArray[np.int64],
    *,
    nodes: int,
    gap: float,
) -> Optimum | None:
    """The variables from 0 to `upper` with the least cost, whose sums by the matrix reach `least`.

    None where there are none, or where HiGHS found none before it was stopped.

    matrix: rows x variables. integral: 1 for variables that are whole numbers. nodes: HiGHS branches so often at most.
    gap: it stops where its answer is this close to its bound, as a part of it.

    >>> from scipy.sparse import csr_array
    >>> one, whole = np.ones(2), np.ones(2, dtype=np.int64)
    >>> matrix = csr_array(np.array([[2.0, 5.0]]))
    >>> minimize(np.array([1.0, 3.0]), matrix, np.array([4.0]), one, whole, nodes=10, gap=0.0).value
    3.0
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    with without_output():
        answer = milp(
            cost,
            constraints=LinearConstraint(matrix, lb=least) if len(least) else (),
            integrality=integral,
            bounds=Bounds(np.zeros(len(cost)), upper),
            options={"node_limit": nodes, "time_limit": TIME_LIMIT_S, "mip_rel_gap": gap},
        )
    if answer.x is None:
        return None
    bound = answer.mip_dual_bound if answer.mip_dual_bound is not None else answer.fun
    return Optimum(answer.x, float(answer.fun), float(bound), "Time limit" in answer.message)


@contextmanager
def without_output() -> Iterator[None]:
    """Discards what is written to the process's standard output: HiGHS leaves lines of its own there."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            yield
    finally:
        with suppress(OSError, TypeError):  # what C has in its buffer; there is no such library on every system
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
