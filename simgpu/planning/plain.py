"""Evaluates vectors of decisions in plain Python, which is faster than to load numba where there are few."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from simgpu.compiling import is_cached
from simgpu.planning import clocks
from simgpu.planning.columns import COMPUTE, PEAK, RELAUNCHED, SHORT, WAITED
from simgpu.planning.tables import Ints, Scratch, Tables, Vectors

#: Evaluated kernels from which loading the compiled functions, or compiling them, takes less time than it saves.
_WORTH_LOADING, _WORTH_COMPILING = 10**5, 10**6


@dataclass(slots=True)
class _Past:
    """How many kernels this process has evaluated in plain Python."""

    kernels: int = 0


_past = _Past()


def is_enough(t: Tables, rows: int) -> bool:
    """Whether plain Python is faster for so many vectors, after all that it has evaluated in this process."""
    _past.kernels += rows * len(t.kernels)
    cached = is_cached(clocks.__name__, clocks.evaluate_all.__name__)
    if cached and "numba" in sys.modules:
        return False
    return _past.kernels <= (_WORTH_LOADING if cached else _WORTH_COMPILING)


def evaluate_all(t: Tables, s: Scratch, vectors: Vectors, results: Ints) -> None:
    """The same as `clocks.evaluate_all`, on views whose elements are Python's integers: these are faster one by one."""
    tables = Tables(*map(_view, t))
    scratch = Scratch(*map(_view, s))
    for row, vector in zip(results, vectors, strict=True):
        clocks.evaluate(tables, scratch, _view(vector))
        row[:] = [s.now[column] for column in (COMPUTE, PEAK, SHORT, WAITED, RELAUNCHED)]


def _view(array: Any) -> Any:
    return memoryview(array)
