"""Kernels' accesses to the metadata of their blocks, and their hits in the metadata cache.

A *walk* is a kernel's sequence of accesses to one block. Thread blocks process tiles of all of a kernel's arrays
concurrently. So the walks of a kernel advance together, each in proportion to its length, in steps of one *tile*: for a
sequential walk, the accesses to the entries of one metadata line, of which only the first can miss; for a strided or
random walk, one access. The order of a kernel's thread blocks is unknown and not modelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simgpu.compression.buddy.metadata_cache import Bools, Ints, MetadataCache
from simgpu.compression.codecs.entries import ENTRY_BYTES, SECTOR_BYTES
from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import MetadataCacheSpec
from simgpu.trace.model import Access, AccessOrder, Block, Trace

#: The most accesses of a strided or random walk that are simulated in the cache. A longer walk is cut: the first half
#: of this number (32 times the lines of the paper's cache) count once each, so that the misses of a cold cache are not
#: multiplied; each later one represents several accesses, so that the sum is the number of all accesses. Because of the
#: omitted accesses, such a walk evicts fewer lines of other walks.
SAMPLE = 2**18
#: Accesses to lines that are cached for the second iteration; each takes 17 bytes.
_CACHED_ACCESSES = 2**23


@dataclass(frozen=True, slots=True)
class EntryAccesses:
    """A walk: the accesses of a kernel to one block.

    first_entry, entries: index of the block's first entry among all memory-entries, and its number of entries.
    accesses: number of accesses, each to `sectors` sectors of an entry and to its metadata. order: sequential, from the
    first entry to the last, repeatedly; strided, entries 0, stride, 2 stride, ... and then 1, stride + 1, ...; random,
    each drawn from all entries with `seed` (see `seed_of`). begin: entry of the block at which a sequential or strided
    walk starts; it wraps around at the block's end.
    """

    first_entry: int
    entries: int
    write: bool
    order: AccessOrder
    sectors: int
    accesses: int
    stride: int = 1
    seed: int = 0
    begin: int = 0


@dataclass(frozen=True, slots=True)
class LineStream:
    """Accesses to metadata lines in order, one for each tile.

    lines: line numbers. writes: whether each changes its line. stand_for: the number of accesses that each represents,
    among those that can miss; 1 unless a walk was cut (see `SAMPLE`).
    """

    lines: Ints
    writes: Bools
    stand_for: Ints


@dataclass(frozen=True, slots=True)
class Counts:
    """A kernel's accesses to memory-entries, and their metadata traffic.

    misses: metadata lines read from device memory; written_back: metadata lines written there.
    """

    accesses: int
    misses: int
    written_back: int

    @property
    def hit_rate(self) -> float:
        """Share of the accesses whose metadata were in the cache; 1 without accesses.

        >>> Counts(accesses=128, misses=2, written_back=0).hit_rate
        0.984375
        """
        return 1 - self.misses / self.accesses if self.accesses else 1.0


def side_by_side(blocks: Iterable[Block], spec: MetadataCacheSpec) -> dict[str, int]:
    """The first memory-entry of each block by block id: blocks follow one another and share no metadata line.

    Allocations do not share lines in the paper either: a page has one target ratio and is a multiple of metadata lines.

    >>> from simgpu.trace.model import BlockKind
    >>> blocks = [Block("x", 8193, BlockKind.INPUT), Block("y", 4, BlockKind.ACTIVATION)]
    >>> side_by_side(blocks, MetadataCacheSpec(4096, slices=32, ways=4, line=32, entries=64))
    {'x': 0, 'y': 128}
    """
    places, at = {}, 0
    for block in blocks:
        places[block.id] = at
        at += -(-_entries(block) // spec.entries) * spec.entries
    return places


def walks_of(trace: Trace, places: Mapping[str, int]) -> list[tuple[EntryAccesses, ...]]:
    """For each kernel, its walks through the blocks in `places`: first those that read, then those that write.

    places: first memory-entry of each block whose entries have metadata. A block without a row in `Trace.accesses` is
    accessed once from its first entry to its last, all sectors.

    >>> from simgpu.trace.chain import chain
    >>> forward, backward = walks_of(chain([100], [100], [8192]), {"x1": 64})
    >>> forward == (EntryAccesses(64, 64, False, AccessOrder.SEQUENTIAL, sectors=4, accesses=64),) == backward
    True
    """
    recorded = {(access.kernel, access.block, access.write): access for access in trace.accesses}
    blocks = {block.id: block for block in trace.blocks if block.id in places and block.bytes}

    def walks(kernel: str, touched: Iterable[str], write: bool) -> Iterator[EntryAccesses]:
        for block in touched:
            if block in blocks:
                yield _walk(recorded.get((kernel, block, write)), places[block], _entries(blocks[block]), write)

    return [
        (*walks(kernel.id, kernel.reads, False), *walks(kernel.id, kernel.writes, True)) for kernel in trace.kernels
    ]


def _walk(access: Access | None, first_entry: int, entries: int, write: bool) -> EntryAccesses:
    if access is None:
        return EntryAccesses(first_entry, entries, write, AccessOrder.SEQUENTIAL, ENTRY_BYTES // SECTOR_BYTES, entries)
    seed = seed_of(access.kernel, access.block) if access.order is AccessOrder.RANDOM else 0
    order, accesses = access.order, access.entries
    return EntryAccesses(
        first_entry, entries, write, order, access.sectors, accesses, access.stride, seed, access.first
    )


def _entries(block: Block) -> int:
    return -(-block.bytes // ENTRY_BYTES)


def seed_of(kernel: str, block: str) -> int:
    """The seed of a random walk: the first 8 bytes of the ids' BLAKE2b digest.

    A kernel that reads and writes a block at random draws the same entries for both: it writes the entries that it
    read.

    >>> seed_of("k0", "x")
    3046165746827382962
    """
    return int.from_bytes(hashlib.blake2b(f"{kernel}\0{block}".encode(), digest_size=8).digest(), "little")


def stream_of(walks: Sequence[EntryAccesses], entries_per_line: int) -> LineStream:
    """The accesses of a kernel's walks in the order in which they reach the metadata cache.

    Tile k (from 1) of a walk of n tiles is at step ceil(k N / n), where N is the number of tiles of the longest walk;
    tiles of the same step are in the order of the walks.

    >>> long = EntryAccesses(0, 256, False, AccessOrder.SEQUENTIAL, 4, accesses=256)
    >>> short = EntryAccesses(640, 64, True, AccessOrder.RANDOM, 1, accesses=2)
    >>> stream_of([long, short], 64).lines.tolist()
    [0, 1, 10, 2, 3, 10]
    """
    tiles = [_tiles(walk, entries_per_line) for walk in walks if walk.accesses]
    longest = max((tile.lines.size for tile in tiles), default=0)
    steps = [-(-np.arange(longest, longest * (n + 1), longest) // n) for n in (tile.lines.size for tile in tiles)]
    nothing = np.zeros(0, np.int64)
    order = np.argsort(np.concatenate([nothing, *steps]), kind="stable")
    return LineStream(
        np.concatenate([nothing, *(tile.lines for tile in tiles)])[order],
        np.concatenate([nothing.astype(bool), *(tile.writes for tile in tiles)])[order],
        np.concatenate([nothing, *(tile.stand_for for tile in tiles)])[order],
    )


def _tiles(walk: EntryAccesses, entries_per_line: int) -> LineStream:
    if walk.order is AccessOrder.SEQUENTIAL:
        lines = _sequential_lines(walk, entries_per_line)
        stand_for = np.ones(lines.size, np.int64)
    else:
        stand_for = _sampled(walk.accesses)
        visited = _strided if walk.order is AccessOrder.STRIDED else _random
        lines = (walk.first_entry + visited(walk, stand_for.size)) // entries_per_line
    return LineStream(lines, np.full(lines.size, walk.write), stand_for)


def _sequential_lines(walk: EntryAccesses, entries_per_line: int) -> Ints:
    """The lines of a sequential walk, each once per pass. A pass begins at the block's first entry."""
    first = walk.first_entry // entries_per_line
    lines = (walk.first_entry + walk.entries - 1) // entries_per_line + 1 - first

    def comings(access: int) -> int:
        """Number of line accesses that a walk from the block's first entry makes before that of this access."""
        passes, entry = divmod(access, walk.entries)
        return passes * lines + (walk.first_entry + entry) // entries_per_line - first

    came = np.arange(comings(walk.begin), comings(walk.begin + walk.accesses - 1) + 1)
    return first + came % lines


def _strided(walk: EntryAccesses, accesses: int) -> Ints:
    """Entries of a strided walk: those of the block in rows of `stride`, column by column, from `begin`."""
    stride = min(walk.stride, walk.entries)
    rows, longer = divmod(walk.entries, stride)
    at = np.arange(accesses) % walk.entries
    # The first `longer` columns have one row more than the others.
    behind = at >= longer * (rows + 1)
    at[behind] -= longer * (rows + 1)
    column, row = np.divmod(at, np.where(behind, rows, rows + 1))
    return (walk.begin + row * stride + column + np.where(behind, longer, 0)) % walk.entries


def _random(walk: EntryAccesses, accesses: int) -> Ints:
    """Entries of a random walk: Philox's raw numbers modulo the entries; they are the same in all versions of NumPy."""
    return (np.random.Philox(key=walk.seed).random_raw(accesses) % np.uint64(walk.entries)).astype(np.int64)


def _sampled(accesses: int) -> Ints:
    """For each access simulated in the cache, the number of accesses that it represents; the sum is `accesses`."""
    if accesses <= SAMPLE:
        return np.ones(accesses, np.int64)
    half = SAMPLE // 2
    rest = accesses - half
    many = -(-rest // half)
    sampled = -(-rest // many)
    stand_for = np.ones(half + sampled, np.int64)
    stand_for[half:] = many
    stand_for[-1] = rest - many * (sampled - 1)
    return stand_for


def misses_of(kernels: Sequence[Sequence[EntryAccesses]], spec: MetadataCacheSpec) -> list[Counts]:
    """Hits and misses of each kernel in a steady-state iteration.

    The kernels run in order twice; the second time counts.

    >>> walk = EntryAccesses(0, 8192, False, AccessOrder.SEQUENTIAL, 4, accesses=8192)
    >>> misses_of([[walk], [walk]], MetadataCacheSpec(4096, slices=1, ways=4, line=32, entries=64))
    [Counts(accesses=8192, misses=0, written_back=0), Counts(accesses=8192, misses=0, written_back=0)]
    """
    return _second_of_two(kernels, [spec])[0]


def hit_rates(
    kernels: Sequence[Sequence[EntryAccesses]], spec: MetadataCacheSpec, sizes: Sequence[int]
) -> tuple[float, ...]:
    """Share of an iteration's accesses that hit, for each cache size (Buddy Compression, figure 5b).

    sizes: bytes of all slices together; `spec` gives the other parameters. Raises `InputError` for a size that is not a
    multiple of one set in each slice.

    >>> walk = EntryAccesses(0, 8192, False, AccessOrder.SEQUENTIAL, 4, accesses=8192)
    >>> hit_rates([[walk]], MetadataCacheSpec(4096, slices=1, ways=4, line=32, entries=64), [2048, 4096])
    (0.984375, 1.0)
    """
    if not sizes:
        return ()
    return tuple(_total(counts).hit_rate for counts in _second_of_two(kernels, _of_sizes(spec, sizes)))


def _of_sizes(spec: MetadataCacheSpec, sizes: Sequence[int]) -> list[MetadataCacheSpec]:
    smallest = spec.slices * spec.ways * spec.line
    wrong = [size for size in sizes if size < smallest or size % smallest]
    if wrong:
        why = f"is not a multiple of sets of {spec.ways} lines of {spec.line} B in each of {spec.slices} slices"
        remedy = f"give a multiple of {smallest} B"
        raise InputError(Problem("", "size of the metadata cache", f"{size} B {why}", remedy) for size in wrong)
    return [replace(spec, size=size // spec.slices) for size in sizes]


def _total(counts: Sequence[Counts]) -> Counts:
    return Counts(
        sum(count.accesses for count in counts),
        sum(count.misses for count in counts),
        sum(count.written_back for count in counts),
    )


def _second_of_two(
    kernels: Sequence[Sequence[EntryAccesses]], specs: Sequence[MetadataCacheSpec]
) -> list[list[Counts]]:
    """For each cache, the counts of each kernel in the second iteration. All caches have equal lines.

    Streams are kept for the second iteration up to `_CACHED_ACCESSES` accesses; later ones are recomputed.
    """
    caches = [MetadataCache(spec) for spec in specs]
    result: list[list[Counts]] = [[] for _ in caches]
    retained: list[LineStream] = []
    available = _CACHED_ACCESSES
    for counting in (False, True):
        for k, walks in enumerate(kernels):
            stream = retained[k] if k < len(retained) else stream_of(walks, specs[0].entries)
            available -= stream.lines.size
            if k == len(retained) and available >= 0:
                retained.append(stream)
            accesses = sum(walk.accesses for walk in walks)
            for counts, cache in zip(result, caches, strict=True):
                seen = cache.access(stream.lines, stream.writes, stream.stand_for)
                if counting:
                    counts.append(Counts(accesses, seen.misses, seen.written_back))
    return result
