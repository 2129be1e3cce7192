"""Digests of everything besides the inputs that determines results: simgpu's code, outside policies, library versions.

Results stored on disk are reused only while all of these are unchanged.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
#: Distributions whose code takes part in every run.
COMMON = ("numpy", "simpy", "networkx", "lz4")
#: All distributions that take part in some run; a policy lists its own in `Policy.libraries`.
LIBRARIES = (*COMMON, "scikit-learn", "scipy", "bayesian-optimization", "numba")
#: When this process had loaded this module, and may have loaded any other of simgpu.
LOADED_NS = time.time_ns()
#: Packages of simgpu that do not affect results: they request, judge and show them.
_SHOWING = ("cli/", "report/", "testing/", "explain/", "papers/")
#: In one of these packages, but it defines what a cell of a study is.
_DECIDING = ("papers/tasks.py",)
_REQUIRED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Code:
    """A body of code. digest: of the names and contents of its files. changed_ns: when the newest was last written.

    libraries: versions of the distributions that it imports, and of those that they require, by name.
    """

    digest: str
    changed_ns: int
    libraries: Mapping[str, str]


def own_code() -> Code:
    """The files of simgpu that decide results, without the configs, traces and scenarios that ship with it."""
    files = [(name, path) for name, path in _named(PACKAGE) if _decides(name) and path.suffix != ".md"]
    return Code(digest_of(files), _newest(path for _, path in files), {})


def _decides(name: str) -> bool:
    return name in _DECIDING or not name.startswith((*_SHOWING, "_shipped/"))


def digest_of(files: Iterable[tuple[str, Path]]) -> str:
    """16 hexadecimal digits of the SHA-256 of files, each with its name, in the order given."""
    result = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        result.update(f"{name}\0{len(content)}\0".encode())
        result.update(content)
    return result.hexdigest()[:16]


def files_below(folder: Path) -> Iterator[Path]:
    """The files below a folder, without caches of compiled code and hidden files."""
    paths = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        paths += [Path(root, name) for name in names if not name.startswith(".")]
    yield from (path for path in sorted(paths) if path.is_file())


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    return ((path.relative_to(folder).as_posix(), path) for path in files_below(folder))


def _newest(paths: Iterable[Path]) -> int:
    return max((path.stat().st_mtime_ns for path in paths), default=0)


def interpreter() -> dict[str, str]:
    """Versions of what runs the code: Python, and the zlib that a codec uses."""
    return {"Python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Versions of distributions by name; empty where one is not installed.

    >>> versions(["simpy", "no-such-library"])["no-such-library"]
    ''
    """
    return {library: _version(library) for library in libraries}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def code_behind(cls: type) -> Code:
    """The code of a class from outside simgpu: all files of the packages that define it and its bases.

    What these import counts too: packages of no installed distribution (a checkout, a folder on the path) as files,
    those of an installed one by its version. Not seen are imports whose module's name is computed while they run.
    """
    defining = {root for base in cls.__mro__ if (root := _root(base.__module__)) is not None}
    own = {name for root in defining for name in _distributions_of(root)}
    files: dict[str, Path] = {}
    libraries: set[str] = set()
    pending, known = sorted(defining), set(defining)
    while pending:
        root = pending.pop()
        result = list(_files_of(root))
        files.update((f"{root}/{name}", path) for name, path in result)
        for other in sorted(_imported(path for _, path in result) - known):
            known.add(other)
            installed = _distributions_of(other) - own
            if installed:
                libraries |= installed
            else:
                pending.append(other)
    return Code(digest_of(sorted(files.items())), _newest(files.values()), versions(sorted(_required(libraries))))


def _root(module: str) -> str | None:
    """The outermost package of a module that is no namespace; None of the standard library and of simgpu."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] == "simgpu":
        return None
    for end in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:end]))
        if spec is None:
            return None
        if spec.has_location:
            return ".".join(parts[:end])
    return None


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError):  # a parent that is no package, or a module without a spec
        return None


def _files_of(root: str) -> Iterator[tuple[str, Path]]:
    spec = _spec(root)
    if spec is None or spec.origin is None:
        return
    for folder in spec.submodule_search_locations or ():
        yield from _named(Path(folder))
    if spec.submodule_search_locations is None:
        path = Path(spec.origin)
        yield path.name, path


def _imported(paths: Iterable[Path]) -> set[str]:
    """The roots of all modules that these files import anywhere in them."""
    result = set()
    for path in paths:
        if path.suffix != ".py":
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # whoever imports it hears of it
            continue
        for node in ast.walk(tree):
            result |= {root for name in _names(node) if (root := _root(name)) is not None}
    return result


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module, *(f"{module}.{alias.name}" for alias in node.names if _is_namespace(module))]
    return []


def _is_namespace(module: str) -> bool:
    spec = _spec(module)
    return spec is not None and not spec.has_location and spec.submodule_search_locations is not None


@lru_cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def _distributions_of(root: str) -> set[str]:
    """The installed distributions that a package is from; none for one that is installed as an editable checkout."""
    return {name for name in _installed().get(root.partition(".")[0], ()) if not _editable(name)}


@lru_cache
def _editable(name: str) -> bool:
    try:
        origin = distribution(name).read_text("direct_url.json")  # PEP 610
    except PackageNotFoundError:
        return False
    return origin is not None and re.search(r'"editable"\s*:\s*true', origin) is not None


def _required(libraries: Iterable[str]) -> set[str]:
    """Distributions and all that they require, without their extras and what is not installed; simgpu is not one."""
    result: set[str] = set()
    pending = list(libraries)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()  # PEP 503
        if name in result or name == "simgpu" or not _version(name):
            continue
        result.add(name)
        for requirement in distribution(name).requires or ():
            if "extra ==" not in requirement and (match := _REQUIRED.match(requirement)):
                pending.append(match.group())
    return result
