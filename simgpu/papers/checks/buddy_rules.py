"""Rules of Buddy Compression's design, each tried on cases against a form of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, log2
from typing import Any

import numpy as np

from simgpu.compression.buddy.metadata_cache import MetadataCache, sets_of
from simgpu.compression.buddy.streams import EntryAccesses
from simgpu.compression.buddy.targets import (
    LARGEST_RATIO,
    THRESHOLD,
    ProfiledAllocation,
    choose_targets,
    compression_ratio,
)
from simgpu.compression.buddy.traffic import Moved, demand_of, moved_by
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, SECTOR_BYTES, size_classes
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import BuddySpec, NodeSpec
from simgpu.papers.checks.found import rule
from simgpu.program.paging import PAGE
from simgpu.trace.model import AccessOrder

#: The node of the paper's table 2, and the frequency of its memory, with which cycles are counted.
NODE, DRAM_MHZ = "buddy-gpu", 875
#: Random programs, and random allocations, that a rule is tried on.
TRIED = 400


def _node() -> tuple[NodeSpec, BuddySpec]:
    node = load_node(NODE)
    assert node.gpu.buddy is not None
    return node, node.gpu.buddy


def entry() -> dict[str, Any]:
    """Entries, sectors and targets (section 3.2), on every size and target and on random arrays.

    sectors: which bytes a walk over compressed entries takes from device and from buddy memory. targets: those that
    random allocations get. codes: every entry takes the smallest of eight sizes that holds its bit-plane code.
    """
    wrong = [(size, target) for size in ENTRY_SIZES for target in (128, 96, 64, 32, 8) if _split_wrongly(size, target)]
    given = {target for program in _programs() for target in choose_targets(program)}
    codes, missed = _codes()
    return {
        "sectors": rule(
            (ENTRY_BYTES, SECTOR_BYTES) == (128, 32) and not wrong,
            f"{len(ENTRY_SIZES)} sizes at 5 targets, device and buddy bytes" + (f"; not {wrong}" if wrong else ""),
        ),
        "targets": rule(
            given == {128, 96, 64, 32, 8},
            f"device bytes of an entry in {TRIED} random programs: {', '.join(map(str, sorted(given)))}",
        ),
        "codes": rule(not missed, f"{codes} random entries beside the bits of their codes, {missed} not in their size"),
    }


def _split_wrongly(size: int, target: int) -> bool:
    """Whether a walk from end to end over entries of one size finds other bytes than the figure 4 draws."""
    count = 64
    counts = [count if each == size else 0 for each in ENTRY_SIZES]
    found = moved_by(EntryAccesses(0, count, False, AccessOrder.SEQUENTIAL, 4, accesses=count), counts, target)
    stored = size if size == 128 else 32 * ceil(size / 32)
    if target == 128:
        device, buddy = 128, 0
    elif target == 8:
        # What 8 bytes do not hold lies in whole sectors of the buddy memory, of an incompressible entry as it is.
        device = min(stored, 8)
        buddy = 120 if size == 128 else 32 * ceil(max(size - 8, 0) / 32)
    else:
        device = min(stored, target)
        buddy = stored - device
    return (found.device, found.read) != (count * device, count * buddy)


def _codes() -> tuple[int, int]:
    """Random entries of several kinds of numbers: how many, and how many are in another size than holds their code."""
    draw = np.random.default_rng(3)
    words = np.concatenate(
        [
            draw.standard_normal(1280).astype("<f4").view("<i4"),
            (np.maximum(draw.standard_normal(1280), 0) * (draw.random(1280) < 0.2)).astype("<f4").view("<i4"),
            draw.integers(-50, 50, 1280, np.int32),
            np.cumsum(draw.integers(0, 3, 1280, np.int32)),
            np.zeros(128, np.int32),
        ]
    ).astype("<i4")
    wrong = 0
    for row, found in zip(words.reshape(-1, 32).tolist(), size_classes(words), strict=True):
        held = next((size for size in ENTRY_SIZES if 8 * size >= code_bits(row)), 128) if any(row) else 0
        wrong += ENTRY_SIZES[found] != held
    return words.size // 32, wrong


def code_bits(words: Sequence[int]) -> int:
    """Length of the bit-plane code of an entry, 32 signed words, counted plane by plane (Kim et al., ISCA 2016).

    >>> code_bits([0] * 32), code_bits([5] * 32), code_bits([0, 1] * 16)
    (10, 14, 74)
    """
    first = abs(words[0] + (words[0] < 0))
    bits = 3 if words[0] == 0 else next((4 + n - 1 for n in (4, 8, 16) if first < 1 << (n - 1)), 33)
    steps = [(later - earlier) & ((1 << 33) - 1) for earlier, later in pairwise(words)]
    planes = [sum((step >> place & 1) << at for at, step in enumerate(steps)) for place in range(32, -1, -1)]
    zeros = 0
    for before, plane in pairwise([0, *planes, None]):
        change = None if plane is None else plane ^ (before or 0)
        if change == 0:
            zeros += 1
            continue
        bits += 0 if not zeros else 3 if zeros == 1 else 7
        zeros = 0
        if change is not None:
            bits += _change_bits(change, plane == 0)
    return bits


def _change_bits(change: int, of_zeros: bool) -> int:
    if change == 2**31 - 1 or of_zeros:
        return 5
    ones = change.bit_count()
    return 10 if ones == 1 or (ones == 2 and change & change >> 1) else 32


def metadata() -> dict[str, Any]:
    """Metadata (section 3.2): what they take, and the cache, on visits that tell its lines, ways and size apart.

    page_table: bits that an entry of a page table needs for whether its page is compressed, at which of five targets,
    and where its buddy page is in the carve-out, in pages of what Unified Memory moves.
    """
    node, buddy = _node()
    bits = Fraction(8 * node.gpu.reserved * ENTRY_BYTES, node.gpu.memory)
    pages = buddy.carve_out * node.gpu.memory // PAGE
    page_table = 1 + ceil(log2(5)) + ceil(log2(pages))
    spec, told = buddy.cache, "4 KiB in each of 32 slices, 4 ways"
    lines, ways, size = _lines(buddy), _ways(buddy), _size(buddy)
    return {
        "entry": rule(bits == 4, f"{bits} bits for each of 128 bytes, {float(bits) / 1024:.2%} of the memory"),
        "page_table": rule(
            page_table == 24,
            f"1 + 3 + {page_table - 4} bits: the carve-out is {pages} pages of {PAGE // 1024} KiB",
        ),
        "line": rule(lines and spec.line == 32, "one miss in 64 neighbouring entries, whichever comes first; 32 B"),
        "ways": rule(ways, "4 lines of a set stay, of 5 the one that was used least recently leaves"),
        "size": rule(size, f"{told}: {spec.total // 32} lines stay, one more does not; as plain Python has it"),
        "share": float(bits) / 1024,
    }


def _lines(buddy: BuddySpec) -> bool:
    """Whether each of 64 neighbours brings the metadata of the others, and of nobody else."""
    for first in range(64):
        cache = MetadataCache(buddy.cache)
        neighbours = np.roll(np.arange(640, 704), -first)
        if cache.access_entries(neighbours, np.zeros(64, bool)).misses != 1:
            return False
        if cache.access_entries(np.array([639, 704]), np.zeros(2, bool)).misses != 2:
            return False
    return True


def _ways(buddy: BuddySpec) -> bool:
    lines = np.arange(2**16)
    sets = sets_of(lines, buddy.cache)
    for number in range(0, buddy.cache.slices * buddy.cache.sets, 37):
        a, b, c, d, e = lines[sets == number][:5].tolist()
        cache = MetadataCache(buddy.cache)
        visits = [a, b, c, d, a, b, c, d, e, b, a]
        #         four come and stay; e takes the place of a, and a that of c
        found = [cache.access(np.array([line]), np.zeros(1, bool)).misses for line in visits]
        if found != [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1]:
            return False
    return True


def _size(buddy: BuddySpec) -> bool:
    """Whether as many lines as the slices hold stay, and what random visits miss is what plain sets of four miss."""
    held = 32 * 4096 // 32
    cache = MetadataCache(buddy.cache)
    first, again = (cache.access(np.arange(held), np.zeros(held, bool)) for _ in range(2))
    more = MetadataCache(buddy.cache).access(np.tile(np.arange(held + 1), 2), np.zeros(2 * held + 2, bool))
    drawn = np.random.default_rng(5).integers(0, 3 * held, 20_000)
    sets: dict[int, OrderedDict[int, None]] = {}
    missed = 0
    for line, number in zip(drawn.tolist(), sets_of(drawn, buddy.cache).tolist(), strict=True):
        lines = sets.setdefault(number, OrderedDict())
        missed += line not in lines
        lines[line] = None
        lines.move_to_end(line)
        if len(lines) > 4:
            lines.popitem(last=False)
    found = MetadataCache(buddy.cache).access(drawn, np.zeros(drawn.size, bool))
    return (first.misses, again.misses, found.misses) == (held, 0, missed) and more.misses > held + 1


def carveout() -> dict[str, Any]:
    """The buddy memory's size, and that no program's targets need more (sections 3.2 and 3.4), on random programs.

    most: beside any incompressible allocations, as many of zeros get a sixteenth as a ratio of 4 leaves room for.
    """
    node, buddy = _node()
    programs = list(_programs())
    ratios = [compression_ratio(program, choose_targets(program)) for program in programs]
    needed = [_buddy_over_device(program) for program in programs]
    grid = [(dense, zeros) for dense in range(4) for zeros in range(1, 20)]
    wrong = [(dense, zeros) for dense, zeros in grid if _zeros_small(dense, zeros) != min(zeros, 4 * dense)]
    return {
        "size": rule(
            buddy.carve_out == 3 and buddy.carve_out + 1 == LARGEST_RATIO,
            f"{node.name}: {buddy.carve_out} times the device memory, for ratios up to {LARGEST_RATIO}",
        ),
        "cap": rule(
            max(ratios) <= 4 and max(needed) <= 3,
            f"{len(programs)} random programs: ratio at most {max(ratios):.3f}, buddy over device {max(needed):.3f}",
        ),
        "most": rule(not wrong, f"{len(grid)} programs of dense and zero allocations, closed form" + str(wrong or "")),
    }


def _buddy_over_device(program: Sequence[ProfiledAllocation]) -> float:
    pairs = list(zip(program, choose_targets(program), strict=True))
    return sum(each.entries * (128 - target) for each, target in pairs) / sum(each.entries * t for each, t in pairs)


def _zeros_small(dense: int, zeros: int) -> int:
    """How many of equal allocations, some dense and some zeros, get 8 bytes of an entry."""
    full, empty = (0,) * 7 + (10,), (10, *(0,) * 7)
    program = [ProfiledAllocation(f"dense{n}", 1280, (full,)) for n in range(dense)]
    program += [ProfiledAllocation(f"zeros{n}", 1280, (empty,)) for n in range(zeros)]
    return choose_targets(program).count(8)


def threshold() -> dict[str, Any]:
    """The Buddy Threshold (section 3.4): the default, as allocations of 1000 entries find it, and what it decides.

    default: the largest share of them that may exceed a target which the allocation still gets.
    """
    _, buddy = _node()
    tolerated = [over for over in range(1001) if _target_of_overflow(over) == 32]
    wrong = 0
    for program in _programs():
        for allocation in program:
            (found,) = choose_targets([allocation], mostly_zero=False, threshold=buddy.threshold)
            wrong += found != _least_target(allocation)
    return {
        "default": max(tolerated) / 1000,
        "kept": rule(
            wrong == 0 and buddy.threshold == THRESHOLD and tolerated == list(range(301)),
            f"{TRIED} random programs, every allocation at the least target that 30% of its entries may exceed",
        ),
    }


def _target_of_overflow(over: int) -> int:
    counts = (0, 0, 0, 1000 - over, 0, 0, 0, over)
    return choose_targets([ProfiledAllocation("a", 128_000, (counts,))], mostly_zero=False)[0]


def _least_target(allocation: ProfiledAllocation) -> int:
    """By trying targets on every entry of every snapshot."""
    sizes = [
        size for counts in allocation.snapshots for size, n in zip(ENTRY_SIZES, counts, strict=True) for _ in range(n)
    ]
    return min(t for t in (32, 64, 96, 128) if 10 * sum(size > t for size in sizes) <= 3 * len(sizes))


def latency() -> dict[str, Any]:
    """Decompression (section 4.1), as a read of one compressed entry feels it, in whole cycles of device memory.

    cycles: how much longer it takes than without. kept: an entry that does not compress, and a write, feel nothing.
    """
    node, buddy = _node()
    longer = _longer(node, buddy, Moved(128, 128, decompressed=128))
    cycles = max(count for count in range(100) if ceil(count * 1000 / DRAM_MHZ) <= longer)
    whole = EntryAccesses(0, 64, False, AccessOrder.SEQUENTIAL, 4, accesses=64)
    untouched = [
        moved_by(whole, (0,) * 7 + (64,), 64).decompressed,
        moved_by(
            EntryAccesses(0, 64, True, AccessOrder.SEQUENTIAL, 4, accesses=64), (0, 0, 0, 64, 0, 0, 0, 0), 64
        ).decompressed,
    ]
    return {
        "cycles": cycles,
        "felt": rule(
            untouched == [0, 0] and moved_by(whole, (0, 0, 0, 64, 0, 0, 0, 0), 64).decompressed == 64 * 128,
            f"{longer} ns for each read of a compressed entry; none for one that does not compress, or is written",
        ),
    }


def _longer(node: NodeSpec, buddy: BuddySpec, moved: Moved) -> int:
    """Nanoseconds that one visit waits longer than one without compression, where one entry is under way at a time."""
    alone = replace(buddy, in_flight=ENTRY_BYTES)
    demand = demand_of(moved, 1, 0, 0, alone, node.link, node.gpu.dram_bandwidth or 1)
    return demand.compressed_ns - demand.memory_ns


def _programs() -> Iterator[list[ProfiledAllocation]]:
    """Random programs of one to eight allocations, of which some are mostly zero and some hardly compress."""
    draw = np.random.default_rng(4)
    for _ in range(TRIED):
        program = []
        for number in range(draw.integers(1, 9)):
            entries = int(draw.integers(1, 200))
            shares = draw.dirichlet(draw.choice([0.05, 0.3, 2.0]) * np.ones(8))
            snapshots = [tuple(draw.multinomial(entries, shares).tolist()) for _ in range(draw.integers(1, 4))]
            program.append(ProfiledAllocation(f"a{number}", entries * 128, tuple(snapshots)))
        yield program
