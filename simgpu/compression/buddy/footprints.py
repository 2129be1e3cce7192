"""Task graphs in compressed memory: targets follow the profiled compressibility, traffic the true one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

from simgpu.compression.buddy.rereads import rereads
from simgpu.compression.buddy.streams import Counts, EntryAccesses, misses_of, side_by_side, walks_of
from simgpu.compression.buddy.targets import RAW, ProfiledAllocation, choose_targets, overflowing
from simgpu.compression.buddy.traffic import Moved, demand_of, moved_by
from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.errors import InputError
from simgpu.graph.compressed import MILLION, NO_DEMAND, CompressedMemory, Demand
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import uncompressed
from simgpu.graph.work import traffic_of
from simgpu.hardware.spec import BuddyMode, BuddySpec, NodeSpec
from simgpu.trace.entries import apportioned
from simgpu.trace.model import AccessOrder, BlockKind, Origin

Histogram = tuple[int, ...]
Row = TypeVar("Row", Sequence[tuple[int, ...]], tuple[int, ...])


@dataclass(frozen=True, eq=False)
class WithFootprints:
    """Stores a task graph's blocks compressed on a node with compressed memory (Buddy Compression, section 3).

    profiled: by block id, the number of entries of each size in every snapshot of the profile; targets are chosen from
    these. now: the same at the simulated epoch; traffic is computed from these. A block without a row is
    incompressible. In bandwidth-only mode, blocks keep their size and the buddy memory is unused.
    """

    node: NodeSpec
    profiled: Mapping[str, Sequence[Histogram]]
    now: Mapping[str, Histogram]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the footprints and times of compressed memory. A compressed graph is compressed again."""
        plain, buddy = uncompressed(graph), self.buddy
        targets = self._targets(plain)
        counts = [self._counts(plain, b) for b in range(len(plain.blocks))]
        walks = _walks(plain, buddy)
        metadata = _metadata(walks, targets, buddy)
        link, dram = buddy.link or self.node.link, self.node.gpu.dram_bandwidth or 1
        demands = []
        for each, result in zip(walks, metadata, strict=True):
            if all(targets[b] == RAW and not self._in_transfer(counts[b]) for b, _ in each):
                demands.append(NO_DEMAND)
                continue
            moved = reduce(Moved.plus, (moved_by(walk, counts[b], targets[b], buddy.mode) for b, walk in each))
            lines = result.misses + result.written_back
            demands.append(demand_of(moved, result.accesses, result.misses, lines, buddy, link, dram))
        return _compressed(plain, self, targets, counts, demands, metadata)

    @property
    def buddy(self) -> BuddySpec:
        """The node's compressed memory; `InputError` where it has none."""
        buddy = self.node.gpu.buddy
        if buddy is None:
            what = f"node {self.node.name} has no compressed memory"
            raise InputError.single("", "node.gpu.buddy", what, "choose a node that has it, such as buddy-gpu")
        return buddy

    def _in_transfer(self, counts: Histogram | None) -> bool:
        return counts is not None and self.buddy.mode is BuddyMode.BANDWIDTH_ONLY

    def _targets(self, graph: TaskGraph) -> tuple[int, ...]:
        """Device bytes per entry of each block."""
        buddy = self.buddy
        if buddy.mode is BuddyMode.BANDWIDTH_ONLY:
            return (RAW,) * len(graph.blocks)
        allocations = []
        for block in graph.blocks:
            entries = -(-block.bytes // ENTRY_BYTES)
            result = _named(self.profiled, block.id) or ()
            snapshots = tuple(tuple(apportioned(each, entries)) for each in result)
            allocations.append(ProfiledAllocation(block.id, block.bytes, snapshots))
        chosen = choose_targets(
            allocations,
            threshold=buddy.threshold,
            granularity=buddy.granularity.value,
            mostly_zero=buddy.mostly_zero,
            largest_ratio=1 + buddy.carve_out,
        )
        # A block smaller than an entry, such as a scalar, stays uncompressed.
        known = zip(allocations, chosen, strict=True)
        return tuple(target if each.entries * target < each.bytes else RAW for each, target in known)

    def _counts(self, graph: TaskGraph, b: int) -> Histogram | None:
        block = graph.blocks[b]
        result = _named(self.now, block.id)
        return None if result is None else tuple(apportioned(result, -(-block.bytes // ENTRY_BYTES)))


def _named(table: Mapping[str, Row], block: str) -> Row | None:
    """The row of a block; for a block of a smaller last round, the row of the block that it is a part of."""
    return table.get(block) or table.get(block.rpartition("@")[0])


def _walks(graph: TaskGraph, buddy: BuddySpec) -> list[list[tuple[int, EntryAccesses]]]:
    """For each kernel, the index of each block that it accesses, except workspaces, and its walk through that block.

    A kernel without a recorded access pattern accesses them in proportion to its traffic; modelled convolutions also
    read their input again for each column of tiles (`simgpu.compression.buddy.rereads`).
    """
    lasting = [block for block in graph.blocks if block.kind is not BlockKind.WORKSPACE]
    places = side_by_side(lasting, buddy.cache)
    recorded = {access.kernel for access in graph.trace.accesses}
    modelled = graph.trace.info.origin is Origin.MODELLED
    result = []
    for kernel, walks in zip(graph.kernels, walks_of(graph.trace, places), strict=True):
        numbers = [graph.block_number[name] for name in (*kernel.reads, *kernel.writes) if name in places]
        pairs = list(zip([b for b in numbers if graph.blocks[b].bytes], walks, strict=True))
        once = sum(walk.accesses for walk in walks) * ENTRY_BYTES
        if once and kernel.id not in recorded:
            traffic = traffic_of(graph, kernel)
            again = rereads(graph, kernel) if modelled else {}
            pairs = [
                (b, replace(walk, accesses=walk.accesses * (1 if walk.write else again.get(b, 1)) * traffic // once))
                for b, walk in pairs
            ]
        result.append(pairs)
    return result


def _metadata(
    walks: Sequence[Sequence[tuple[int, EntryAccesses]]], targets: Sequence[int], buddy: BuddySpec
) -> list[Counts]:
    """Hits and misses of the metadata cache for each kernel; blocks that are not compressed have no metadata."""
    return misses_of([[walk for b, walk in each if targets[b] != RAW] for each in walks], buddy.cache)


def _compressed(
    plain: TaskGraph,
    how: WithFootprints,
    targets: tuple[int, ...],
    counts: Sequence[Histogram | None],
    demands: Sequence[Demand],
    metadata: Sequence[Counts],
) -> TaskGraph:
    device = tuple(demand.device_ns(ns) for demand, ns in zip(demands, plain.durations, strict=True))
    entries = [-(-block.bytes // ENTRY_BYTES) for block in plain.blocks]
    beyond = []
    for b, target in enumerate(targets):
        walk = EntryAccesses(
            0, max(entries[b], 1), write=False, order=AccessOrder.SEQUENTIAL, sectors=4, accesses=entries[b]
        )
        beyond.append(moved_by(walk, counts[b], target).read)
    memory = CompressedMemory(
        tuple(demands),
        device,
        targets,
        carved=tuple(count * (ENTRY_BYTES - target) for count, target in zip(entries, targets, strict=True)),
        overflow=tuple(beyond),
        overflowing=tuple(
            0 if result is None or target == RAW else overflowing(result, target)
            for result, target in zip(counts, targets, strict=True)
        ),
        hidden=round(how.buddy.overlap * MILLION),
        accesses=sum(result.accesses for result in metadata),
        misses=sum(result.misses for result in metadata),
    )
    return replace(
        plain,
        durations=tuple(map(memory.alone_ns, range(len(device)))),
        sizes=tuple(
            size if target == RAW else count * target
            for size, count, target in zip(plain.sizes, entries, targets, strict=True)
        ),
        compressed=memory,
        compression=how,
        plain=plain,
    )
