"""Functions compiled by numba, which is imported when the first of them is needed."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

from simgpu.errors import MissingExtraError

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, depends_on: Iterable[ModuleType] = (), **options: Any) -> Function:
    """The function, compiled at its first call; `options` are those of `numba.njit`.

    The machine code is cached on disk where this user may write and there is room. numba invalidates it when the
    function's own file changes, so a cached function calls only functions of that file and of the modules in
    `depends_on`, whose source is made part of its name in the cache. Raises `MissingExtraError` without numba.
    """
    sources = "".join(map(inspect.getsource, depends_on))
    if sources:
        function.__qualname__ += f"_{hashlib.sha256(sources.encode()).hexdigest()[:16]}"
    try:
        import numba
    except ImportError:
        raise MissingExtraError("running compiled functions", "numba") from None
    dispatcher = numba.njit(function, **options)
    with suppress(RuntimeError):  # numba finds no folder that this user may write to
        dispatcher._cache = _forgiving_cache(function)
    return cast("Function", dispatcher)


def compiled_together(
    entry: str, modules: Sequence[ModuleType], depends_on: Iterable[ModuleType] = (), **options: Any
) -> Any:
    """The function `entry` of one of these modules, whose functions call each other and also run as plain Python.

    All are compiled at the first call of `entry`, in one shared namespace; `options` are those of `numba.njit`. numba
    invalidates its cache of a function when that function's own file changes; these depend on each other's files, and
    on those of `depends_on`, so their names in the cache change with any of them.
    """
    import numba

    digest = hashlib.sha256("".join(map(inspect.getsource, (*modules, *depends_on))).encode()).hexdigest()[:16]
    names: dict[str, Any] = {name: value for module in modules for name, value in vars(module).items()}
    for name, value in names.copy().items():
        if isinstance(value, FunctionType):
            names[name] = _cached(numba, FunctionType(value.__code__, names, name), f"{name}_{digest}", options)
    return names[entry]


def _cached(numba: Any, function: FunctionType, cache_name: str, options: dict[str, Any]) -> Any:
    function.__qualname__ = cache_name
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # numba has no writable folder for its cache
        return numba.njit(function, **options)


def _forgiving_cache(function: Function) -> Any:
    """Numba's cache of a function on disk, where neither a full disk nor a damaged file is an error."""
    from numba.core.caching import FunctionCache

    cache = FunctionCache(function)
    save, load = cache.save_overload, cache.load_overload

    def save_if_possible(*compiled: Any) -> None:
        with suppress(OSError):
            save(*compiled)

    def load_if_possible(*wanted: Any) -> Any:
        try:
            return load(*wanted)
        except Exception:  # whatever unpickling a damaged file raises: compile again
            return None

    cache.save_overload, cache.load_overload = save_if_possible, load_if_possible
    return cache


def is_cached(module: str, function: str) -> bool:
    """Whether an earlier process has compiled a function of a module, and numba has kept it on disk."""
    path = Path(__file__).parents[1].joinpath(*module.split("."))
    return any(next(folder.glob(f"{path.name}.{function}[_-]*.nbi"), None) for folder in _cache_folders(path.parent))


def _cache_folders(package: Path) -> list[Path]:
    """Where numba keeps what it has compiled of a package: in the folder that NUMBA_CACHE_DIR names, else next to the
    modules, or for this user where these cannot be written. Found without loading numba."""
    own = f"{package.name}_{hashlib.sha1(str(package).encode(), usedforsecurity=False).hexdigest()}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(named) / own]
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return [package / "__pycache__"]
    return [package / "__pycache__", caches / "numba" / own]


def is_ready(module: str, function: str) -> bool:
    """Whether a function of a module is compiled already, or kept by an earlier process while numba is loaded here."""
    return module in sys.modules or ("numba" in sys.modules and is_cached(module, function))
