"""Snapshots in one small file: the class of every memory-entry, without the data.

Lives here: the format of ``entries.npz``, read and written. Does not live here: other files (`simgpu.buddy.sources`).

It is an archive that `numpy.load` reads:

    format           "simgpu.entries/1"
    about            where the data come from, in words
    allocations      their names, in the order of their addresses as far as it is known
    bytes            of each allocation (int64)
    snapshots        their names
    seen             whether each allocation (row) is in each snapshot (column)
    classes_0, ...   of each allocation: a row for each snapshot it is in, in it a class for each entry of 128 bytes:
                     its size is 0, 8, 16, 32, 64, 80, 96 or 128 bytes for class 0 to 7 (uint8)
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.buddy.snapshots import Observed, Snapshots
from simgpu.buddy.targets import Allocation
from simgpu.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, histogram
from simgpu.errors import InputError
from simgpu.whole import whole_file

FILE = "entries.npz"
FORMAT = "simgpu.entries/1"
_HEAD = ("format", "about", "allocations", "bytes", "snapshots", "seen")
_REMEDY = f"give a file that simgpu wrote as {FILE}"
#: What reading an archive raises that is damaged or was cut off.
DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def save_entries(snapshots: Snapshots, path: str | Path) -> None:
    """Writes snapshots to a file, whole or not at all; the same snapshots give the same bytes.

    Raises `InputError` where only the histograms of an allocation are known, and when the system refuses.

    >>> import tempfile
    >>> from simgpu.buddy.snapshots import take_snapshots
    >>> file = Path(tempfile.mkdtemp()) / FILE
    >>> save_entries(take_snapshots({"a": np.zeros(640)}), file)
    >>> load_entries(file).allocations
    (Allocation(name='a', bytes=5120, snapshots=((40, 0, 0, 0, 0, 0, 0, 0),)),)
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
    with whole_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, array in {**head, **arrays}.items():
            _write(archive, name, array)


def load_entries(path: str | Path) -> Snapshots:
    """The snapshots in a file that `save_entries` wrote; they are named after the file, or its folder for `FILE`.

    Raises `InputError` for a file that is missing, of another kind, damaged, or whose arrays do not fit together.
    """
    file = Path(path)
    try:
        with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
            arrays: dict[str, NDArray[Any]] = dict(archive.items())
    except FileNotFoundError:
        raise InputError.single(file, "", "no such file", "check the path") from None
    except DAMAGE as error:
        raise InputError.single(file, "", f"is damaged or was cut off: {error}", _REMEDY) from None
    if what := _mistake(arrays):
        raise InputError.single(file, "", what, _REMEDY)
    observed = []
    for index, name in enumerate(arrays["allocations"].tolist()):
        classes = arrays[f"classes_{index}"]
        counts = tuple(histogram(row) for row in classes)
        at = tuple(np.flatnonzero(arrays["seen"][index]).tolist())
        observed.append(Observed(Allocation(name, int(arrays["bytes"][index]), counts), at, tuple(classes)))
    name = file.resolve().parent.name if file.name == FILE else file.stem
    return Snapshots(name, tuple(arrays["snapshots"].tolist()), tuple(observed), str(arrays["about"]))


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """An array as `numpy.savez_compressed` writes it, but of the same date and system wherever and whenever."""
    member = zipfile.ZipInfo(f"{name}.npy")
    member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, 3
    with archive.open(member, "w", force_zip64=array.nbytes >= 2**30) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def _mistake(arrays: Mapping[str, NDArray[Any]]) -> str:
    """What is wrong with the arrays of a file, empty where nothing is."""
    missing = [name for name in _HEAD if name not in arrays]
    if missing:
        return f"has no array {missing[0]!r}"
    if str(arrays["format"]) != FORMAT:
        return f"is of format {str(arrays['format'])!r}, not {FORMAT!r}"
    names, sizes, labels, seen = (arrays[name] for name in _HEAD[2:])
    texts = names.dtype.kind == labels.dtype.kind == "U" and names.ndim == labels.ndim == 1
    if not (texts and sizes.dtype == np.int64 and sizes.shape == names.shape):
        return "has allocations, bytes and snapshots that are not two lists of names and one of sizes"
    if seen.dtype != np.bool_ or seen.shape != (names.size, labels.size) or not seen.any(axis=1).all():
        return "does not tell of each allocation in which snapshots it is"
    if len(set(names.tolist())) < names.size or (sizes <= 0).any() or not names.size:
        return "has an allocation twice, an empty one, or none at all"
    for index in range(names.size):
        classes = arrays.get(f"classes_{index}")
        shape = (int(seen[index].sum()), -(-int(sizes[index]) // ENTRY_BYTES))
        if classes is None or classes.dtype != np.uint8 or classes.shape != shape:
            return f"has no classes_{index} of {shape[0]} x {shape[1]} bytes, for allocation {names[index]}"
        if int(classes.max()) >= len(ENTRY_SIZES):
            return f"has class {int(classes.max())} in classes_{index}, and classes go to {len(ENTRY_SIZES) - 1}"
    return ""
