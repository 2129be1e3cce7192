"""A plain reference of compressed memory, entry by entry: each has a size, each access requests some of its sectors.

It shares no code with the real one. Bytes are whole or, where it is left open which sectors an access asks for, means
over all the choices that it has, as fractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import combinations
from math import ceil, comb

SIZES = (0, 8, 16, 32, 64, 80, 96, 128)
SECTOR, ENTRY = 32, 128


@dataclass(frozen=True)
class Bytes:
    """decompressed, far: asked by accesses that wait for decompression, for buddy memory."""

    requested: Fraction = Fraction()
    device: Fraction = Fraction()
    read: Fraction = Fraction()
    written: Fraction = Fraction()
    decompressed: Fraction = Fraction()
    far: Fraction = Fraction()

    def times(self, factor: Fraction) -> Bytes:
        return Bytes(*(getattr(self, each.name) * factor for each in fields(self)))

    def rounded_up(self) -> tuple[int, ...]:
        return tuple(ceil(getattr(self, each.name)) for each in fields(self))


def added(parts: Iterable[Bytes]) -> Bytes:
    result = Bytes()
    for part in parts:
        result = Bytes(*(getattr(result, each.name) + getattr(part, each.name) for each in fields(Bytes)))
    return result


def entries_of(counts: Sequence[int]) -> list[int]:
    """The size of every entry."""
    return [size for size, count in zip(SIZES, counts, strict=True) for _ in range(count)]


def lies(size: int, target: int) -> tuple[int, int]:
    """Bytes of a whole entry's value in device memory, and in buddy memory where a sector is moved whole."""
    if size == 0:
        return 0, 0
    if size == ENTRY:
        return target, ENTRY - target
    near = far = 0
    for byte in range(size):
        if byte < target:
            near += 1
        else:
            far += 1
    # What is compressed fills sectors; at 16x a first part of 8 bytes shares its sector with those of three others.
    sectors_near = near if target < SECTOR else ceil(near / SECTOR) * SECTOR
    return sectors_near, ceil(far / SECTOR) * SECTOR


def access(size: int, target: int, sectors: tuple[int, ...], *, write: bool, alone: bool) -> Bytes:
    """One access to these sectors of an entry. alone: no other access shares its device sectors."""
    requested = Fraction(SECTOR * len(sectors))
    if target == ENTRY:
        return Bytes(requested, requested)
    if size == 0:
        return Bytes(requested)
    if size == ENTRY:
        wanted = [byte for sector in sectors for byte in range(SECTOR * sector, SECTOR * sector + SECTOR)]
        near = sum(byte < target for byte in wanted)
        far = Fraction(len(wanted) - near)
        device = Fraction(_of_device(near, target, alone=alone))
        if write:
            return Bytes(requested, device, written=far)
        return Bytes(requested, device, read=far, far=requested * (far > 0))
    near, beyond = lies(size, target)
    device, far = Fraction(_of_device(near, target, alone=alone)), Fraction(beyond)
    reading = Bytes(requested, device, read=far, decompressed=requested, far=requested * (far > 0))
    if not write:
        return reading
    if len(sectors) == 4:
        return Bytes(requested, device, written=far)
    # What is not written anew has to be known before the entry can be compressed again.
    return Bytes(requested, 2 * device, read=far, written=far, decompressed=requested, far=reading.far)


def _of_device(near: int, target: int, *, alone: bool) -> int:
    return SECTOR if near and target < SECTOR and alone else near


def visit_in_transfer(size: int, sectors: tuple[int, ...], *, write: bool) -> Bytes:
    """The same if only transfers between device memory and L2 are compressed."""
    requested = Fraction(SECTOR * len(sectors))
    if size == ENTRY:
        return Bytes(requested, requested)
    packets = max(1, ceil(size / SECTOR))
    fraction = Fraction(SECTOR * packets)
    if not write:
        return Bytes(requested, fraction, decompressed=requested)
    return Bytes(requested, fraction) if len(sectors) == 4 else Bytes(requested, 2 * fraction, decompressed=requested)


def walked(
    sizes: Sequence[int],
    target: int,
    accesses: int,
    sectors: int,
    *,
    write: bool,
    alone: bool,
    in_transfer: bool = False,
) -> Bytes:
    """`accesses` accesses spread evenly over all entries, each to `sectors` of the four, all choices equally likely."""
    choices = list(combinations(range(4), sectors))
    once = added(
        visit_in_transfer(size, choice, write=write)
        if in_transfer
        else access(size, target, choice, write=write, alone=alone)
        for size in sizes
        for choice in choices
    )
    return once.times(Fraction(accesses, len(sizes) * comb(4, sectors)))
