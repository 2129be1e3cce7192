"""Targets of compressed allocations: bytes of device memory for each of their memory-entries.

Source: "Buddy Compression" (Choukse et al.), sections 3.2, 3.4 and 3.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, SECTOR_BYTES, SECTORS
from simgpu.errors import InputError, Problem

Granularity = Literal["allocation", "program"]

#: An allocation with this target is stored uncompressed, without metadata.
RAW = ENTRY_BYTES
#: Device bytes per entry at the ratios 1, 1.33, 2 and 4.
TARGETS = (RAW, 96, 64, 32)
#: Device bytes per entry of an allocation that is mostly zero: ratio 16.
MOSTLY_ZERO = 8
#: Largest share of an allocation's entries that may overflow (section 3.5).
THRESHOLD = 0.30
#: Largest compression ratio of a program, for a buddy memory of three times the device memory (section 3.5).
LARGEST_RATIO = 4


@dataclass(frozen=True, slots=True)
class ProfiledAllocation:
    """An allocation, which gets one target, and histograms of its entries' compressed sizes.

    bytes: as allocated; the last entry may be partly filled. snapshots: for each snapshot that contains it, the number
    of entries of each of `ENTRY_SIZES`. Without a snapshot it counts as incompressible. Raises `InputError` if the
    counts of a snapshot do not add up to its number of entries.

    >>> ProfiledAllocation("conv1", 300, ((1, 0, 0, 0, 0, 0, 0, 2),)).entries
    3
    """

    name: str
    bytes: int
    snapshots: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        problems = [
            Problem("", f"allocation {self.name}, snapshot {number}", what, "count each entry of 128 bytes once")
            for number, counts in enumerate(self.snapshots, start=1)
            if (what := self._mistake(counts))
        ]
        if problems:
            raise InputError(problems)

    def _mistake(self, counts: Sequence[int]) -> str:
        if len(counts) != len(ENTRY_SIZES):
            return f"has counts of {len(counts)} sizes, not {len(ENTRY_SIZES)}"
        if min(counts) < 0:
            return f"counts {min(counts)} entries of a size"
        if sum(counts) != self.entries:
            return f"counts {sum(counts)} entries, {self.bytes} bytes have {self.entries}"
        return ""

    @property
    def entries(self) -> int:
        """Number of memory-entries; the last one may be partly filled."""
        return -(-self.bytes // ENTRY_BYTES)

    @property
    def histograms(self) -> tuple[tuple[int, ...], ...]:
        """Counts by size for each snapshot; without a snapshot, one histogram with all entries incompressible."""
        return self.snapshots or ((*(0 for _ in ENTRY_SIZES[1:]), self.entries),)


def overflowing(counts: Sequence[int], target: int) -> int:
    """Number of entries larger than the target. counts: number of entries of each of `ENTRY_SIZES`.

    >>> overflowing((1, 0, 0, 3, 0, 4, 0, 2), 64)
    6
    """
    return sum(count for size, count in zip(ENTRY_SIZES, counts, strict=True) if size > target)


def overflow_share(counts: Sequence[int], target: int) -> float:
    """The share of the entries larger than the target, 0 to 1: those that need the buddy memory.

    >>> overflow_share((1, 0, 0, 3, 0, 4, 0, 2), 64), overflow_share((0,) * 8, 32)
    (0.6, 0.0)
    """
    entries = sum(counts)
    return overflowing(counts, target) / entries if entries else 0.0


def mean_overflow(allocations: Iterable[ProfiledAllocation], targets: Iterable[int]) -> float:
    """The share of all entries that overflow at these targets, mean over snapshots ("buddy accesses", figure 7).

    >>> zeros = ProfiledAllocation("a", 256, ((2, *(0,) * 7),))
    >>> mixed = ProfiledAllocation("b", 256, ((1, *(0,) * 6, 1),))
    >>> mean_overflow([zeros, mixed], [32, 32])
    0.25
    """
    pairs = list(zip(allocations, targets, strict=True))
    entries = sum(allocation.entries for allocation, _ in pairs)
    over = sum((_mean_overflowing(allocation, target) for allocation, target in pairs), Fraction())
    return float(over / entries) if entries else 0.0


def device_bytes(allocations: Iterable[ProfiledAllocation], targets: Iterable[int]) -> int:
    """Device memory that allocations take at these targets, in bytes, without metadata.

    The rest of each entry, `ENTRY_BYTES` less its target, is reserved in the buddy memory.

    >>> device_bytes([ProfiledAllocation("a", 256, ()), ProfiledAllocation("b", 100, ())], [32, 128])
    192
    """
    return sum(allocation.entries * target for allocation, target in zip(allocations, targets, strict=True))


def compression_ratio(allocations: Sequence[ProfiledAllocation], targets: Iterable[int]) -> float:
    """Bytes of all allocations, rounded up to entries, divided by `device_bytes`; 1 without allocations.

    >>> compression_ratio([ProfiledAllocation("a", 256, ()), ProfiledAllocation("b", 256, ())], [32, 128])
    1.6
    """
    device = device_bytes(allocations, targets)
    return sum(allocation.entries for allocation in allocations) * ENTRY_BYTES / device if device else 1.0


def optimistic_ratio(allocations: Iterable[ProfiledAllocation]) -> float:
    """The compression ratio if every entry took its own compressed size (section 3.1 and figure 3), over all snapshots.

    Infinite if all entries are zero in all snapshots; 1 without allocations.

    >>> optimistic_ratio([ProfiledAllocation("a", 256, ((0, 0, 0, 1, 0, 0, 1, 0),))])
    2.0
    """
    return _ratio(allocations, ENTRY_SIZES)


def choose_targets(
    allocations: Iterable[ProfiledAllocation],
    *,
    threshold: float = THRESHOLD,
    granularity: Granularity = "allocation",
    mostly_zero: bool = True,
    largest_ratio: float = LARGEST_RATIO,
) -> tuple[int, ...]:
    """Device bytes per entry for each allocation (sections 3.4 and 3.5).

    granularity "allocation": for each allocation the smallest target at which the share of overflowing entries,
    averaged over the snapshots, is at most `threshold`. "program" (the naive choice): one target for all, with the
    largest ratio that does not exceed the program's own ratio in sectors over all snapshots; `threshold` is not used.
    mostly_zero (only for "allocation"): an allocation gets 8 bytes if in every snapshot at most `threshold` of its
    entries exceed 8 bytes. These allocations are tried in order of the memory saved, largest first and ties by name;
    one is skipped if it would raise the ratio of all allocations together above `largest_ratio`. All other targets have
    a ratio of at most `largest_ratio`. Raises `InputError` for a threshold outside 0 to 1 or a largest ratio below 1.

    >>> dense = ProfiledAllocation("dense", 1280, ((0,) * 7 + (10,),))
    >>> sparse = ProfiledAllocation("sparse", 1280, ((8, *(0,) * 6, 2),))
    >>> choose_targets([dense, sparse]), choose_targets([dense, sparse], granularity="program")
    ((128, 8), (96, 96))
    """
    known = tuple(allocations)
    _check(threshold, largest_ratio)
    allowed = tuple(target for target in TARGETS if ENTRY_BYTES / target <= largest_ratio)
    if granularity == "program":
        return (_target_of_ratio(_sector_ratio(known), allowed),) * len(known)
    chosen = [
        min(target for target in allowed if _share(allocation, target) <= threshold or target == RAW)
        for allocation in known
    ]
    if mostly_zero:
        zero = [all(overflow_share(counts, MOSTLY_ZERO) <= threshold for counts in each.histograms) for each in known]
        _keep_zeros_small(known, chosen, zero, largest_ratio)
    return tuple(chosen)


def targets_by_mean(
    allocations: Iterable[ProfiledAllocation], *, mostly_zero: bool = True, largest_ratio: float = LARGEST_RATIO
) -> tuple[int, ...]:
    """For each allocation, the target with the largest ratio that does not exceed its mean ratio, whatever overflows.

    Our reading of the best achievable ratio of figure 9, which does not limit accesses to the buddy memory: an
    allocation with alternating entry sizes reaches it although most of its entries overflow. If only a few large
    entries overflow, choosing by a threshold can give a larger ratio. The mean ratio is over `ENTRY_SIZES` and all
    snapshots; the other arguments are those of `choose_targets`.

    >>> striped = ProfiledAllocation("striped", 1280, ((2, 0, 0, 0, 0, 8, 0, 0),))
    >>> targets_by_mean([striped]), choose_targets([striped])
    ((64,), (96,))
    """
    known = tuple(allocations)
    _check(THRESHOLD, largest_ratio)
    allowed = tuple(target for target in TARGETS if ENTRY_BYTES / target <= largest_ratio)
    ratios = [optimistic_ratio([allocation]) for allocation in known]
    chosen = [_target_of_ratio(ratio, allowed) for ratio in ratios]
    if mostly_zero:
        _keep_zeros_small(known, chosen, [ratio >= ENTRY_BYTES / MOSTLY_ZERO for ratio in ratios], largest_ratio)
    return tuple(chosen)


def _keep_zeros_small(
    allocations: Sequence[ProfiledAllocation], chosen: list[int], zero: Sequence[bool], largest_ratio: float
) -> None:
    """Sets the target of mostly-zero allocations in `chosen`, if the program's ratio allows it."""
    everything = sum(allocation.entries for allocation in allocations) * ENTRY_BYTES
    device = device_bytes(allocations, chosen)
    gains = [
        allocation.entries * (target - MOSTLY_ZERO) for allocation, target in zip(allocations, chosen, strict=True)
    ]
    for index in sorted(range(len(gains)), key=lambda index: (-gains[index], allocations[index].name)):
        if zero[index] and everything <= largest_ratio * (device - gains[index]):
            device -= gains[index]
            chosen[index] = MOSTLY_ZERO


def _share(allocation: ProfiledAllocation, target: int) -> float:
    return mean_overflow([allocation], [target])


def _mean_overflowing(allocation: ProfiledAllocation, target: int) -> Fraction:
    histograms = allocation.histograms
    return Fraction(sum(overflowing(counts, target) for counts in histograms), len(histograms))


def _sector_ratio(allocations: Iterable[ProfiledAllocation]) -> float:
    return _ratio(allocations, tuple(sectors * SECTOR_BYTES for sectors in SECTORS))


def _ratio(allocations: Iterable[ProfiledAllocation], sizes: Sequence[int]) -> float:
    """Bytes divided by compressed bytes, averaged over snapshots. sizes: compressed bytes of each size class."""
    everything, taken = 0, Fraction()
    for allocation in allocations:
        histograms = allocation.histograms
        everything += allocation.entries * ENTRY_BYTES
        sums = (sum(size * count for size, count in zip(sizes, counts, strict=True)) for counts in histograms)
        taken += Fraction(sum(sums), len(histograms))
    if not taken:
        return float("inf") if everything else 1.0
    return float(everything / taken)


def _target_of_ratio(ratio: float, allowed: Sequence[int]) -> int:
    """The smallest target whose ratio is at most `ratio`."""
    return min(target for target in allowed if ENTRY_BYTES / target <= ratio or target == RAW)


def _check(threshold: float, largest_ratio: float) -> None:
    problems = []
    if not 0 <= threshold <= 1:
        what = f"{threshold!r} is not a share from 0 to 1"
        problems.append(Problem("", "argument threshold", what, "the paper's default is 0.30"))
    if not largest_ratio >= 1:
        what = f"{largest_ratio!r} is not a ratio of at least 1"
        problems.append(Problem("", "argument largest_ratio", what, "a buddy memory of 3x allows 4"))
    if problems:
        raise InputError(problems)
