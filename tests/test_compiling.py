"""Functions compiled by numba."""

from __future__ import annotations

import errno
import sys
from typing import Any

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
    def refusing(function: Any) -> Any:
        raise RuntimeError("cannot cache function 'twice': no locator available for file")

    monkeypatch.setattr("numba.core.caching.FunctionCache", refusing)
    assert compiled(twice)(21) == 42


def test_a_function_is_compiled_even_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def full(cache: Any, key: Any, data: Any) -> None:
        tried.append(key)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.load", lambda cache, key: None)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert compiled(twice)(21) == 42
    assert tried
