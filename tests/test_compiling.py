"""Functions compiled by numba."""

from __future__ import annotations

import errno
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import simgpu.machine.compiled
from simgpu.compiling import compiled, compiled_together, is_cached
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


@pytest.mark.parametrize("setting", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_functions_kept_outside_the_package_are_seen(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba itself says where it keeps them."""
    from numba.core import caching

    path = Path(simgpu.machine.compiled.__file__)
    folder = tmp_path if setting == "NUMBA_CACHE_DIR" else tmp_path / "numba"
    kept = folder / caching.UserWideCacheLocator.get_suitable_cache_subpath(str(path))
    kept.mkdir(parents=True)
    monkeypatch.setenv(setting, str(tmp_path))
    monkeypatch.setattr("simgpu.compiling.Path.glob", lambda self, pattern: iter([path] if self == kept else []))
    assert is_cached("simgpu.machine.compiled", "execute")


def test_a_function_is_compiled_again_where_the_kept_one_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(cache: Any, key: Any) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.load", damaged)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", lambda cache, key, data: None)
    assert compiled(twice)(21) == 42


def test_functions_of_several_modules_are_compiled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`more` calls a function of another module by its name there. A changed file gives other names in the cache."""
    names = []
    for number, more in enumerate((5, 6)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adding.py").write_text(f"def add(number):\n    return number + {more}\n", encoding="utf-8")
        (folder / "calling.py").write_text("def more(number):\n    return 2 * add(number)\n", encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
        for name in ("adding", "calling"):
            sys.modules.pop(name, None)
        adding, calling = (importlib.import_module(name) for name in ("adding", "calling"))
        function = compiled_together("more", (adding, calling))
        assert function(10) == 2 * (10 + more)
        names.append(function.py_func.__qualname__)
    assert names[0] != names[1]
    with pytest.raises(NameError):
        calling.more(10)
