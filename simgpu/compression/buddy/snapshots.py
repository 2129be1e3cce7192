"""Snapshots of a program's memory: for each allocation, the compressed size of each memory-entry at each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.buddy.targets import ProfiledAllocation
from simgpu.compression.codecs.entries import ENTRY_BYTES, histogram, size_classes
from simgpu.errors import InputError, Problem
from simgpu.units import format_bytes

#: The size class of each entry of an allocation, in memory order: the index of its size in `ENTRY_SIZES`.
Classes = NDArray[np.uint8]
Progress = Callable[[str], None]

#: Bytes of an array that are compressed at once, a multiple of an entry; limits the memory used besides a mapped file.
_CHUNK = 2**18 * ENTRY_BYTES


class Seen(NamedTuple):
    """An allocation in one snapshot: its bytes, and the size class of each of its entries."""

    bytes: int
    classes: Classes


@dataclass(frozen=True, eq=False, slots=True)
class Observed:
    """An allocation and the size classes of its entries in each snapshot that contains it.

    at: indices of those snapshots among all snapshots of the program. classes: one array for each of them; None if only
    the histograms of the allocation are known.
    """

    allocation: ProfiledAllocation
    at: tuple[int, ...]
    classes: tuple[Classes, ...] | None


@dataclass(frozen=True, eq=False, repr=False)
class Snapshots:
    """All allocations of a program at some times, in the order of their addresses if it is known.

    labels: the name of each snapshot. about: their source, as text. notes: omissions.
    """

    name: str
    labels: tuple[str, ...]
    observed: tuple[Observed, ...]
    about: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def allocations(self) -> tuple[ProfiledAllocation, ...]:
        """The allocations with their histograms."""
        return tuple(each.allocation for each in self.observed)

    @property
    def bytes(self) -> int:
        """Total bytes of all allocations."""
        return sum(allocation.bytes for allocation in self.allocations)

    @property
    def entries(self) -> int:
        """Number of memory-entries of all allocations."""
        return sum(allocation.entries for allocation in self.allocations)

    def in_snapshot(self, number: int) -> dict[int, ProfiledAllocation]:
        """The allocations in a snapshot, by index in `allocations`, each with its histogram in this snapshot."""
        return {
            index: replace(each.allocation, snapshots=(each.allocation.snapshots[each.at.index(number)],))
            for index, each in enumerate(self.observed)
            if number in each.at
        }

    def __repr__(self) -> str:
        size = format_bytes(self.bytes)
        return f"<Snapshots {self.name!r}: {len(self.observed)} allocations, {size}, at {len(self.labels)} times>"


def take_snapshots(
    snapshots: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    name: str = "arrays",
    progress: Progress = lambda what: None,
) -> Snapshots:
    """Snapshots of arrays: a mapping of allocation names to arrays for each snapshot, in order; or one such mapping.

    Arrays may have any dtype except Python objects; their bytes are compressed in memory order. An allocation may be
    missing from some snapshots. progress: called with the name of each array. Raises `InputError` with every value that
    is not an array or is empty, and every allocation whose size changes.

    >>> result = take_snapshots([{"a": np.zeros(64)}, {"a": np.arange(64.0), "b": np.zeros(3)}])
    >>> result.labels, [each.at for each in result.observed], result.allocations[0].snapshots[0]
    (('1', '2'), [(0, 1), (1,)], (4, 0, 0, 0, 0, 0, 0, 0))
    """
    in_order = [snapshots] if isinstance(snapshots, Mapping) else list(snapshots)
    labels = [str(number) for number in range(1, len(in_order) + 1)]
    arrays: list[dict[str, NDArray[Any]]] = []
    problems = []
    for label, snapshot in zip(labels, in_order, strict=True):
        arrays.append({})
        for allocation, value in snapshot.items():
            array, what = as_array(value)
            if what:
                problems.append(Problem("", f"snapshot {label}, allocation {allocation}", what, "give a NumPy array"))
            arrays[-1][str(allocation)] = array
    check_sizes(labels, [{name: array.nbytes for name, array in each.items()} for each in arrays], problems)
    seen: list[dict[str, Seen]] = []
    for label, snapshot in zip(labels, arrays, strict=True):
        seen.append({})
        for allocation, array in snapshot.items():
            progress(f"snapshot {label}: {allocation}")
            seen[-1][allocation] = Seen(array.nbytes, classes_of(array))
    return collect(name, labels, seen)


def as_array(value: object) -> tuple[NDArray[Any], str]:
    """A value as an array of numbers, and what is wrong with it; the text is empty if nothing is."""
    none = np.empty(0, np.uint8)
    if not hasattr(value, "__array__"):
        return none, f"{str(value)[:40]!r} is no array"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # tensors on a GPU, or of types that NumPy lacks
        return none, f"cannot be read as an array: {error}"
    if array.dtype.hasobject:
        return none, "holds Python objects"
    return array, "" if array.nbytes else "is empty"


def classes_of(array: NDArray[Any]) -> Classes:
    """The size class of each entry of an array, whose bytes are compressed in memory order.

    >>> classes_of(np.zeros((4, 32), np.float32, order="F"))
    array([0, 0, 0, 0], dtype=uint8)
    """
    raw = np.asarray(array).ravel(order="K").view(np.uint8)
    return np.concatenate([size_classes(raw[at : at + _CHUNK]) for at in range(0, max(raw.size, 1), _CHUNK)])


def check_sizes(labels: Sequence[str], sizes: Sequence[Mapping[str, int]], problems: Iterable[Problem] = ()) -> None:
    """Raises `InputError` with the given problems and each allocation whose size changes, or if there is none."""
    result = list(problems)
    first: dict[str, tuple[int, str]] = {}
    for label, snapshot in zip(labels, sizes, strict=True):
        for name, size in snapshot.items():
            then, when = first.setdefault(name, (size, label))
            if size != then and size and then:
                what = f"has {then} bytes in snapshot {when} and {size} bytes in snapshot {label}"
                remedy = "an allocation has one size: use another name for the new allocation"
                result.append(Problem("", f"allocation {name}", what, remedy))
    if not first and not result:
        result.append(Problem("", "", "there are no snapshots of any allocation", "give at least one array"))
    if result:
        raise InputError(result)


def collect(
    name: str,
    labels: Sequence[str],
    seen: Sequence[Mapping[str, Seen]],
    about: str = "",
    notes: tuple[str, ...] = (),
) -> Snapshots:
    """Snapshots of entries with known size classes. seen: for each label, the allocations of that snapshot.

    Allocations are in the order of their first appearance. Raises like `check_sizes`.

    >>> collect("a program", ["start"], [{"a": Seen(100, np.array([7], np.uint8))}]).allocations
    (ProfiledAllocation(name='a', bytes=100, snapshots=((0, 0, 0, 0, 0, 0, 0, 1),)),)
    """
    check_sizes(labels, [{each: result.bytes for each, result in snapshot.items()} for snapshot in seen])
    observed = []
    for allocation in dict.fromkeys(each for snapshot in seen for each in snapshot):
        at = tuple(number for number, snapshot in enumerate(seen) if allocation in snapshot)
        classes = tuple(seen[number][allocation].classes for number in at)
        counts = tuple(histogram(each) for each in classes)
        observed.append(Observed(ProfiledAllocation(allocation, seen[at[0]][allocation].bytes, counts), at, classes))
    return Snapshots(name, tuple(labels), tuple(observed), about, notes)
