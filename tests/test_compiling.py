"""Functions compiled by numba."""

from __future__ import annotations

import sys
from typing import Any

import numba
import pytest

from simgpu.compiling import compiled
from simgpu.errors import MissingExtraError


def twice(number: int) -> int:
    return 2 * number


def test_a_missing_numba_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtraError, match=r"needs numba.*; install numba under a version of Python that it"):
        compiled(twice)


def test_a_function_is_compiled_even_without_a_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def refusing(function: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available for file")
        return njit(function, **options)

    monkeypatch.setattr(numba, "njit", refusing)
    assert compiled(twice)(21) == 42
