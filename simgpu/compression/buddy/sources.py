"""Snapshots of memory in files: arrays, folders of arrays, archives, stored entries, traces.

A ``.npy`` file is one snapshot of an allocation with the file's name; a second file with that name is its second
snapshot. A folder of such files or a ``.npz`` archive contains allocations of one snapshot: they are added to the last
snapshot, or to a new one if the last one already contains one of these names. In a folder of such folders, each inner
folder is a snapshot, in the order of their names. A trace or a file of stored entries contains all snapshots of a
program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from simgpu.compression.buddy.histograms import trace_histograms, trace_snapshots
from simgpu.compression.buddy.snapshots import Progress, Seen, Snapshots, check_sizes, classes_of, collect
from simgpu.compression.buddy.stored import FILE, load_entries
from simgpu.errors import InputError, Problem
from simgpu.io.array_files import ARCHIVE_MAGIC, ARRAY_MAGIC, member_names, open_archive, open_array
from simgpu.io.free_memory import available_memory
from simgpu.io.input_files import first_bytes
from simgpu.io.shipped import find, shipped_names
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace

_TRACE = "trace.yaml"
_KINDS = "give .npy or .npz files, folders of .npy files, or a trace"


class _Array(NamedTuple):
    """An array that has not been read yet: its file, its place in it, its bytes, and a function that reads it."""

    file: Path
    place: str
    bytes: int
    read: Callable[[], NDArray[Any]]


@dataclass
class _Collected:
    """Contents of the paths so far: labels and arrays of the snapshots in order, and all problems."""

    labels: list[str] = field(default_factory=list)
    snapshots: list[dict[str, _Array]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_one(self, name: str, array: _Array) -> None:
        """Adds the array to the snapshot after the last one that contains the allocation."""
        last = max((at for at, snapshot in enumerate(self.snapshots) if name in snapshot), default=-1)
        if last + 1 == len(self.snapshots):
            self.begin(str(last + 2))
        self.snapshots[last + 1][name] = array

    def add_together(self, label: str, arrays: dict[str, _Array]) -> None:
        """Adds allocations of one time to the last snapshot, or to a new one if a name is already in the last one."""
        if not self.snapshots or not self.snapshots[-1].keys().isdisjoint(arrays):
            self.begin(label)
        self.snapshots[-1] |= arrays

    def begin(self, label: str) -> None:
        """Begins an empty snapshot."""
        self.labels.append(label if label not in self.labels else f"{label} ({len(self.labels) + 1})")
        self.snapshots.append({})


def read_snapshots(paths: Iterable[str | Path], progress: Progress = lambda what: None) -> Snapshots:
    """The snapshots in files and folders (see the module's docstring); big ``.npy`` files are read in parts.

    paths: files and folders; a shipped trace also by its name. progress: called with the name of each input. Raises
    `InputError` with every path that is missing or of an unknown kind, every array that is damaged, empty or of Python
    objects, and every allocation whose size changes.

    >>> import tempfile
    >>> import numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> for time in ("early", "late"):
    ...     (folder / time).mkdir()
    ...     np.save(folder / time / "weights.npy", np.zeros(64))
    >>> result = read_snapshots([folder])
    >>> result.labels, result.allocations[0].name
    (('early', 'late'), 'weights')
    """
    resolved = [find("traces", path) if path in shipped_names("traces") else Path(path).expanduser() for path in paths]
    if len(resolved) == 1 and (snapshots := _all_snapshots(resolved[0], progress)) is not None:
        return snapshots
    result = _Collected()
    for path in resolved:
        _look(path, result)
    sizes = [{name: array.bytes for name, array in snapshot.items()} for snapshot in result.snapshots]
    check_sizes(result.labels, sizes, result.problems)
    seen: list[dict[str, Seen]] = [{} for _ in result.snapshots]
    for number, (label, snapshot) in enumerate(zip(result.labels, result.snapshots, strict=True)):
        for name, array in snapshot.items():
            progress(f"{label}: {name}" if len(result.labels) > 1 else name)
            try:
                seen[number][name] = Seen(array.bytes, classes_of(array.read()))
            except InputError as error:
                result.problems += error.problems
    if result.problems:
        raise InputError(result.problems)
    return collect(_name(resolved), result.labels, seen)


def read_trace_and_entries(path: str | Path) -> tuple[Trace, Snapshots | None]:
    """The trace in a folder, and the entries stored next to it; None instead of these if there are none.

    Raises `InputError` with every problem of both, and every mismatch of the trace with the entries or with its table
    of compressibility.

    >>> trace, entries = read_trace_and_entries(find("traces", "hpc-ep"))
    >>> len(trace.blocks), len(entries.labels)
    (13, 10)
    """
    folder = Path(path)
    problems: list[Problem] = []
    trace = stored = None
    try:
        trace = read_trace(folder)
    except InputError as error:
        problems += error.problems
    try:
        stored = load_entries(folder / FILE) if os.path.lexists(folder / FILE) else None
    except InputError as error:
        problems += error.problems
    if trace is not None and not problems:
        try:
            if stored is None:
                trace_histograms(trace)
            else:
                trace_snapshots(trace, stored)
        except InputError as error:  # the problems name the trace's files without their folder
            problems += [replace(each, file=str(folder / each.file)) for each in error.problems]
    if trace is None or problems:
        raise InputError(problems)
    return trace, stored


def _all_snapshots(path: Path, progress: Progress) -> Snapshots | None:
    """The snapshots of a trace, or of stored entries; None if the path contains neither."""
    if path.is_dir() and (path / _TRACE).exists():
        progress(f"reading {path}")
        trace, stored = read_trace_and_entries(path)
        try:
            return trace_snapshots(trace, stored)
        except InputError as error:
            raise InputError(replace(each, file=str(path / each.file)) for each in error.problems) from None
    if path.is_dir():
        return load_entries(path / FILE) if (path / FILE).exists() else None
    is_stored = path.is_file() and _begins(path).startswith(ARCHIVE_MAGIC) and _is_stored(path)
    return load_entries(path) if is_stored else None


def _look(path: Path, collected: _Collected) -> None:
    """Adds the snapshots at a path."""
    try:
        if path.is_dir():
            _look_into(path, collected)
        elif (begin := _begins(path)).startswith(ARRAY_MAGIC):
            collected.add_one(path.stem, _array(path))
        elif begin.startswith(ARCHIVE_MAGIC) and _is_stored(path):
            collected.problems.append(_not_alone(path))
        elif begin.startswith(ARCHIVE_MAGIC):
            collected.add_together(path.stem, _members(path))
        else:
            what = "is no array" if begin else "is empty"
            collected.problems.append(Problem(str(path), "", what, _KINDS))
    except InputError as error:
        collected.problems += error.problems


def _look_into(folder: Path, collected: _Collected) -> None:
    if any((folder / name).exists() for name in (_TRACE, FILE)):
        collected.problems.append(_not_alone(folder))
        return
    inner = sorted((each for each in folder.iterdir() if not each.name.startswith(".")), key=_natural)
    folders = [each for each in inner if each.is_dir()]
    files = [each for each in inner if each.suffix == ".npy"]
    if folders and files:
        what = f"contains both snapshots (folder {folders[0].name}) and allocations of one (file {files[0].name})"
        collected.problems.append(Problem(str(folder), "", what, "move the files into a folder of their own"))
    elif files:
        collected.add_together(folder.resolve().name, _arrays(files, collected))
    elif not folders:
        collected.problems.append(Problem(str(folder), "", "contains no .npy files", _KINDS))
    for each in folders if not files else ():
        arrays = _arrays(sorted(each.glob("[!.]*.npy"), key=_natural), collected)
        collected.begin(each.name)
        collected.snapshots[-1] |= arrays
        if not any(each.glob("[!.]*.npy")):
            collected.problems.append(Problem(str(each), "", "contains no .npy files", "move it elsewhere"))


def _arrays(files: Sequence[Path], collected: _Collected) -> dict[str, _Array]:
    arrays = {}
    for file in files:
        try:
            arrays[file.stem] = _array(file)
        except InputError as error:
            collected.problems += error.problems
    return arrays


def _array(file: Path) -> _Array:
    """Describes an array without keeping it: a mapped file would stay open as long as its array exists."""
    size = open_array(file).nbytes
    if not size:
        raise InputError.single(file, "", "is an empty array", "leave it out")
    return _Array(file, "", size, partial(open_array, file))


def _members(file: Path) -> dict[str, _Array]:
    """The arrays of an archive."""
    with open_archive(file) as archive:
        headers = archive.headers
    empty = [name for name, header in headers.items() if not header.bytes]
    if empty:
        raise InputError(Problem(str(file), name, "is an empty array", "leave it out") for name in empty)
    if not headers:
        raise InputError.single(file, "", "contains no arrays", "give arrays of numbers as numpy.savez writes them")
    return {name: _Array(file, name, header.bytes, partial(_member, file, name)) for name, header in headers.items()}


def _member(file: Path, name: str) -> NDArray[Any]:
    with open_archive(file) as archive:
        return archive.read(name, available_memory())


def _is_stored(file: Path) -> bool:
    """Whether an archive contains stored entries, valid or not."""
    try:
        return {"format", "allocations", "seen"} <= {name.removesuffix(".npy") for name in member_names(file)}
    except InputError:
        return file.name == FILE


def _begins(file: Path) -> bytes:
    if not file.exists():
        raise InputError.single(file, "", "no such file or folder", "check the path")
    return first_bytes(file, len(ARRAY_MAGIC), "an array")


def _not_alone(path: Path) -> Problem:
    return Problem(str(path), "", "contains all snapshots of a program", "profile it by itself")


def _natural(path: Path) -> tuple[tuple[int, int, str], ...]:
    """A sort key that orders numbers in names by value: epoch-2 before epoch-10."""
    parts = re.split(r"(\d+)", path.stem if path.suffix == ".npy" else path.name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part)


def _name(paths: Sequence[Path]) -> str:
    if len(paths) == 1:
        return paths[0].resolve().name if paths[0].is_dir() else paths[0].stem
    homes = {path.resolve().parent for path in paths}
    return f"{len(paths)} files of {homes.pop().name}" if len(homes) == 1 else f"{len(paths)} files"
