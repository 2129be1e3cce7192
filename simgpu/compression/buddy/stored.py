"""Saves snapshots in one small file: the size class of every memory-entry, without the data.

It is an archive that `numpy.load` reads:

    format           "simgpu.entries/1"
    about            the source of the data, as text
    allocations      their names, in the order of their addresses if it is known
    bytes            of each allocation (int64)
    snapshots        their names
    seen             whether each allocation (row) is in each snapshot (column)
    classes_0, ...   for each allocation: a row for each snapshot that contains it, a class for each entry of 128 bytes;
                     classes 0 to 7 are sizes of 0, 8, 16, 32, 64, 80, 96 and 128 bytes (uint8)
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.buddy.snapshots import Observed, Snapshots
from simgpu.compression.buddy.targets import ProfiledAllocation
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, histogram
from simgpu.errors import InputError, Problem
from simgpu.io.array_files import ArrayArchive, ArrayHeader, open_archive
from simgpu.io.atomic import atomic_file
from simgpu.io.free_memory import available_memory, too_large

FILE = "entries.npz"
FORMAT = "simgpu.entries/1"
#: The arrays that describe the others: kind of their dtype, and number of dimensions.
_HEAD = {
    "format": ("U", 0),
    "about": ("U", 0),
    "allocations": ("U", 1),
    "bytes": ("i", 1),
    "snapshots": ("U", 1),
    "seen": ("b", 2),
}
_REMEDY = f"give a file that simgpu wrote as {FILE}"
#: Largest size of one of them, bytes; the largest in a shipped file has 3 kB.
_HEAD_LIMIT = 64 * 2**20
#: Peak memory of reading, in bytes per byte of the arrays: one for the array, and eight while NumPy counts its values.
_MEMORY_FACTOR = 9


def save_entries(snapshots: Snapshots, path: str | Path) -> None:
    """Writes snapshots to a file, atomically; the same snapshots give the same bytes.

    Raises `InputError` if only the histograms of an allocation are known, or if the file cannot be written.

    >>> import tempfile
    >>> from simgpu.compression.buddy.snapshots import take_snapshots
    >>> file = Path(tempfile.mkdtemp()) / FILE
    >>> save_entries(take_snapshots({"a": np.zeros(640)}), file)
    >>> load_entries(file).allocations
    (ProfiledAllocation(name='a', bytes=5120, snapshots=((40, 0, 0, 0, 0, 0, 0, 0),)),)
    """
    seen = np.zeros((len(snapshots.observed), len(snapshots.labels)), np.bool_)
    arrays: dict[str, NDArray[Any]] = {}
    for index, each in enumerate(snapshots.observed):
        if each.classes is None:
            what = "only histograms are known, not which entry had which size"
            raise InputError.single("", f"allocation {each.allocation.name}", what, "save snapshots of arrays")
        seen[index, list(each.at)] = True
        arrays[f"classes_{index}"] = np.stack(each.classes)
    head = {
        "format": np.array(FORMAT),
        "about": np.array(snapshots.about),
        "allocations": np.array([each.name for each in snapshots.allocations], np.str_),
        "bytes": np.array([each.bytes for each in snapshots.allocations], np.int64),
        "snapshots": np.array(snapshots.labels, np.str_),
        "seen": seen,
    }
    with atomic_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, array in {**head, **arrays}.items():
            _write(archive, name, array)


def load_entries(path: str | Path) -> Snapshots:
    """The snapshots in a file that `save_entries` wrote, named after the file, or after the folder of `FILE`.

    Raises `InputError` for a file that is missing, of another kind, damaged, or whose arrays do not fit together.
    """
    file = Path(path)
    with open_archive(file) as archive:
        head = _head(file, archive)
        if problems := _mistakes(file, head, archive.headers):
            raise InputError(problems)
        size = sum(header.bytes for header in archive.headers.values())
        if (free := available_memory()) is not None and size * _MEMORY_FACTOR > free:
            raise too_large(file, size, _MEMORY_FACTOR, free)
        observed = []
        for index, name in enumerate(head["allocations"].tolist()):
            classes = archive.read(f"classes_{index}")
            if (largest := int(classes.max())) >= len(ENTRY_SIZES):
                what = f"contains class {largest}, but the largest class is {len(ENTRY_SIZES) - 1}"
                problems.append(Problem(str(file), f"classes_{index}", what, _REMEDY))
                continue
            counts = tuple(histogram(row) for row in classes)
            at = tuple(np.flatnonzero(head["seen"][index]).tolist())
            observed.append(Observed(ProfiledAllocation(name, int(head["bytes"][index]), counts), at, tuple(classes)))
    if problems:
        raise InputError(problems)
    name = file.resolve().parent.name if file.name == FILE else file.stem
    return Snapshots(name, tuple(head["snapshots"].tolist()), tuple(observed), str(head["about"]))


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Writes like `numpy.savez_compressed`, but with a fixed date and system: equal arrays give equal bytes."""
    member = zipfile.ZipInfo(f"{name}.npy")
    member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, 3
    with archive.open(member, "w", force_zip64=array.nbytes >= 2**30) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def _head(file: Path, archive: ArrayArchive) -> dict[str, NDArray[Any]]:
    """The arrays that describe the others; `InputError` where one is missing or of another type."""
    if missing := [name for name in _HEAD if name not in archive.headers]:
        raise InputError(Problem(str(file), "", f"has no array {name!r}", _REMEDY) for name in missing)
    result, problems = {}, []
    for name, (kind, dimensions) in _HEAD.items():
        header = archive.headers[name]
        if header.dtype.kind != kind or len(header.shape) != dimensions:
            what = f"is of type {header.dtype} and shape {header.shape}"
            problems.append(Problem(str(file), name, what, _REMEDY))
            continue
        result[name] = archive.read(name, _HEAD_LIMIT)
        try:
            result[name].tolist()
        except ValueError as error:  # invalid letters
            problems.append(Problem(str(file), name, f"is damaged: {error}", _REMEDY))
    if problems:
        raise InputError(problems)
    if str(result["format"]) != FORMAT:
        what = f"{str(result['format'])[:40]!r} is not {FORMAT!r}"
        raise InputError.single(file, "format", what, _REMEDY)
    return result


def _mistakes(file: Path, head: Mapping[str, NDArray[Any]], headers: Mapping[str, ArrayHeader]) -> list[Problem]:
    """Mismatches between the arrays of a file, found from their headers before the large ones are read."""
    names, sizes, labels, seen = head["allocations"].tolist(), head["bytes"], head["snapshots"].tolist(), head["seen"]
    result: list[tuple[str, str]] = []
    if not names or len(set(names)) < len(names):
        result.append(("allocations", "names one twice, or none at all"))
    if sizes.dtype != np.int64 or sizes.shape != (len(names),) or (sizes <= 0).any():
        result.append(("bytes", f"is not a size above 0 for each of the {len(names)} allocations"))
    if seen.shape != (len(names), len(labels)) or not seen.any(axis=1).all():
        result.append(("seen", "does not say of each allocation in which of the snapshots it is"))
    if not result:
        for index, name in enumerate(names):
            header = headers.get(f"classes_{index}")
            shape = (int(seen[index].sum()), -(-int(sizes[index]) // ENTRY_BYTES))
            if header is None:
                result.append(("", f"has no classes_{index}, of allocation {name}"))
            elif header.dtype != np.uint8 or header.shape != shape:
                what = f"is of type {header.dtype} and shape {header.shape}; allocation {name} needs uint8, {shape}"
                result.append((f"classes_{index}", what))
    known = {*_HEAD, *(f"classes_{index}" for index in range(len(names)))}
    result += [(name, "belongs to no allocation") for name in headers if name not in known]
    return [Problem(str(file), place, what, _REMEDY) for place, what in result]
