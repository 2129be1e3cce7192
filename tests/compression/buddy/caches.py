"""A plain reference of the metadata cache: lists, and a hash computed digit by digit."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import xor

from hypothesis import strategies as st

from simgpu.compression.buddy.metadata_cache import CacheCounts
from simgpu.hardware.spec import MetadataCacheSpec

PAPERS = MetadataCacheSpec(size=4096, slices=32, ways=4, line=32, entries=64)


def spec(sets: int = 1, ways: int = 4, slices: int = 1, entries: int = 64) -> MetadataCacheSpec:
    return MetadataCacheSpec(32 * ways * sets, slices, ways, 32, entries)


#: Small ones, of any number of slices.
specs = st.builds(
    spec,
    sets=st.integers(1, 4),
    ways=st.integers(1, 5),
    slices=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12]),
    entries=st.integers(1, 9),
)


def place(line: int, spec: MetadataCacheSpec) -> tuple[int, int]:
    """Slice and set of a line."""
    odd, banks = spec.slices, 1
    while odd % 2 == 0:
        odd, banks = odd // 2, banks * 2
    digits, rest = [0], line
    while rest and banks > 1:
        rest, digit = divmod(rest, banks)
        digits.append(digit)
    above, group = divmod(line // banks, odd)
    return group * banks + reduce(xor, digits), above % spec.sets


class Reference:
    """For each set a list of [line, weight of its change], the most recently used last."""

    def __init__(self, spec: MetadataCacheSpec) -> None:
        self.spec = spec
        self.sets: dict[tuple[int, int], list[list[int]]] = defaultdict(list)

    def access(self, line: int, write: bool, many: int = 1) -> CacheCounts:
        held = self.sets[place(line, self.spec)]
        there = [each for each in held if each[0] == line]
        changed = there[0][1] if there else 0
        if there:
            held.remove(there[0])
        held.append([line, many if write and not changed else changed])
        written_back = held.pop(0)[1] if len(held) > self.spec.ways else 0
        return CacheCounts(many, 0, 0) if there else CacheCounts(0, many, written_back)


def added(accesses: list[CacheCounts]) -> CacheCounts:
    return CacheCounts(
        sum(each.hits for each in accesses),
        sum(each.misses for each in accesses),
        sum(each.written_back for each in accesses),
    )
