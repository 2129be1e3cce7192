"""The functions of `simgpu.planning.clocks` and what they call, compiled by numba where it is there (extra
``fast``)."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any

from simgpu.planning import clocks, columns, remaking
from simgpu.planning.tables import Ints, Scratch, Tables, Vectors

#: Works like `clocks.evaluate_all`.
EvaluateAll = Callable[[Tables, Scratch, Vectors, Ints], None]


def is_compiled() -> bool:
    """Whether numba is there to compile."""
    return find_spec("numba") is not None


@cache
def evaluate_all() -> EvaluateAll:
    """`clocks.evaluate_all`, compiled if that is possible. The first call of what is returned compiles, for seconds.

    What was compiled is kept for the next process where there is a place to keep it.
    """
    if not is_compiled():
        return clocks.evaluate_all
    import numba

    # numba takes what it kept for a function to be good as long as that function's own file has not changed. These
    # depend on each other's files, and on this one, so they are kept under names that change with any of them.
    sources = map(inspect.getsource, (clocks, columns, remaking, sys.modules[__name__]))
    digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
    # All functions get one set of names to look each other up in, where each is compiled.
    names: dict[str, Any] = vars(remaking) | vars(clocks)
    for name, value in names.copy().items():
        if isinstance(value, FunctionType):
            names[name] = _compile(numba, FunctionType(value.__code__, names, name), f"{name}_{digest}")
    compiled: EvaluateAll = names["evaluate_all"]
    return compiled


#: The functions make no arrays, so nobody needs to count references to those that they are given: counting them, which
#: threads do in turn, takes a third of the time. A call by itself takes longer than most of the functions.
_OPTIONS = {"nogil": True, "inline": "always", "_nrt": False}


def _compile(numba: Any, function: FunctionType, kept_as: str) -> Any:
    function.__qualname__ = kept_as
    try:
        return numba.njit(function, cache=True, **_OPTIONS)
    except RuntimeError:
        # There is no place where this user may write.
        return numba.njit(function, **_OPTIONS)
