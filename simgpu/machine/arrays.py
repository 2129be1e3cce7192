"""A checked program as tables of integers, with sizes, durations and links filled in, for the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.containers import Memories
from simgpu.machine.engines import Engines, Lane
from simgpu.memory.caching.pool import CachingPool
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.memory.pool import CountingPool
from simgpu.memory.transfer import NANO, copy_ns
from simgpu.program.check import CheckedProgram
from simgpu.program.code import Ints, Numbers, SmallInts
from simgpu.program.columns import Columns
from simgpu.program.opcodes import (
    ACQUIRE,
    COPY,
    COPY_AS,
    DECODE,
    ENCODE,
    LAUNCH,
    RELAUNCH,
    RELEASE,
)
from simgpu.timeline.model import SpanKind

#: Times and amounts of memory below this can be added without passing 64 bits.
SAFE = 2**61
#: Billionths of so many bytes pass 64 bits.
_MOST_BYTES = 2**63 // NANO
#: Links that a copy passes, at most: its own, and two switches.
_HOPS = 3
#: Requests that are looked up together: all at once would take several times the memory of their table.
_PART = 2**16


@dataclass(slots=True, eq=False)
class ProgramTables:
    """The tables that `simgpu.machine.compiled` describes.

    numbers[row]: of a kernel or a codec, a position in `durations`; of a copy, a row of `copies`; of a request, a row
    of `requests`, whose blocks are a part of `pieces`. places[stream, memory]: of the columns' memories, among all of
    the run. sources[event]: the row that signals it, and that row's segment. engines: how many. capacities: of the
    links in the copies' paths. sizes, resources: bytes of the copies, and their engines' positions among the timeline's
    resources. labels, memories: what the log says of codes, and of the columns' memories.
    """

    numbers: SmallInts
    places: SmallInts
    durations: Ints
    copies: Ints
    requests: Ints
    pieces: Ints
    sources: SmallInts
    engines: int
    capacities: Ints
    sizes: Ints
    resources: SmallInts
    labels: SmallInts
    memories: SmallInts


class TableWriter:
    """Makes the tables of one program on one node. Raises `OverflowError` for numbers of more than 64 bits."""

    def __init__(
        self, checked: CheckedProgram, columns: Columns, node: NodeSpec, engines: Engines, memories: Memories
    ) -> None:
        self.columns = columns
        self.graph: TaskGraph = checked.graph
        self.node = node
        self.engines = engines
        self.memories = memories
        self._bytes = 0.0  # that the requests so far have asked for
        self.gpus = np.array([stream.gpu for stream in checked.program.streams], dtype=np.int64)
        self.code, self.first, self.second, self.third = columns.rows.T
        self.numbers = np.zeros(len(self.code), dtype=np.int32)

    def tables(self) -> ProgramTables:
        """All tables."""
        known = self.memories.names
        names = np.array([known.index(each) if each in known else -1 for each in self.columns.memories], dtype=np.int32)
        places = np.where(names == 0, self.gpus[:, None], len(self.memories.devices) - 1 + names).astype(np.int32)
        durations = self._durations()
        copies, engines, capacities, sizes, resources = self._copies()
        requests, pieces = self._requests(places)
        sources, labels = self._sources(), self._labels()
        return ProgramTables(
            self.numbers, places, durations, copies, requests, pieces, sources, engines, capacities, sizes, resources,
            labels, names,
        )  # fmt: skip

    def _rows(self, *codes: int) -> Ints:
        return np.flatnonzero(reduce(or_, [self.code == code for code in codes]))

    def _durations(self) -> Ints:
        """Those of kernels, then of encoding and decoding, one for each such row."""
        parts = [self.graph.columns.durations]
        rows = self._rows(LAUNCH, RELAUNCH)
        self.numbers[rows] = self.first[rows]
        for code in (ENCODE, DECODE):
            rows = self._rows(code)
            self.numbers[rows] = np.arange(len(rows)) + sum(map(len, parts))
            forms = [self.graph.encoded[form] for form in self.first[rows].tolist()]
            times = [form.encode_ns if code == ENCODE else form.decode_ns for form in forms]
            parts.append(np.array(times, dtype=np.int64))
        return np.concatenate(parts) if any(map(len, parts[1:])) else parts[0]

    def _copies(self) -> tuple[Ints, int, Ints, Ints, SmallInts]:
        """The table of copies, one for each way of a block; how many engines; the capacities of links; and the sizes
        and the engines' positions of the copies."""
        rows, names, flows = self._rows(COPY, COPY_AS), self.columns.memories, self.engines.flows
        count, blocks = len(names), max(len(self.graph.blocks), 1)
        ways = (self.gpus[self.columns.streams_of(rows)] * count + self.second[rows]) * count + self.third[rows]
        distinct, self.numbers[rows] = np.unique(ways * blocks + self.first[rows], return_inverse=True)
        used, way = np.unique(distinct // blocks, return_inverse=True)
        lanes, resources = [], []
        for gpu, pair in (divmod(each, count**2) for each in used.tolist()):
            lane, resource = self._lane(gpu, names[pair // count], names[pair % count])
            lanes.append(lane)
            resources.append(resource)
        copied = distinct % blocks
        table = self._copy_table(lanes, way, copied)
        capacities = [flows.capacities[link] for link in sorted(flows.capacities)] if flows is not None else []
        return (
            table,
            int(table[:, 0].max(initial=-1)) + 1,
            np.array(capacities, dtype=np.int64),
            self.graph.columns.copy_sizes[copied],
            np.array(resources, dtype=np.int32)[way],
        )

    def _copy_table(self, lanes: list[Lane], way: Ints, blocks: Ints) -> Ints:
        """A row for each copied block, over the lane of its way."""
        flows, sizes = self.engines.flows, self.graph.columns.copy_sizes[blocks]
        links = sorted(flows.capacities) if flows is not None else []
        engines, each = Numbers(), []
        for lane in lanes:
            path = [links.index(link) for link in lane.path] if links else []
            each.append((engines[id(lane.engine)], lane.latency, *(*path, -1, -1, -1)[:_HOPS]))
        of_lane = table_of(each, 2 + _HOPS)[way]
        table = np.empty((len(blocks), 8), dtype=np.int64)
        table[:, 0], table[:, 2], table[:, 5:] = of_lane[:, 0], of_lane[:, 1], of_lane[:, 2:]
        for number, lane in enumerate(lanes):
            here = way == number
            raws = [self.graph.blocks[block].bytes for block in blocks[here].tolist()] if lane.compresses else []
            table[here, 4] = [*map(lane.cap, sizes[here].tolist(), raws)] if raws else lane.rate
        table[:, 1] = -1 if flows is not None else _alone(sizes, table[:, 4], table[:, 2])
        if links and len(sizes) and sizes.max() >= _MOST_BYTES:
            raise OverflowError("billionths of a copy's bytes pass 64 bits")
        table[:, 3] = sizes * NANO if links else 0
        return table

    def _lane(self, gpu: int, src: str, dst: str) -> tuple[Lane, int]:
        """The lane from one memory to another for a GPU, and its engine's place among the timeline's resources."""
        for number, link in enumerate(self.node.links):
            if link.ends in ((src, dst), (dst, src)):
                direction = int(link.ends != (src, dst))
                return self.engines.lanes[gpu][number][direction], len(self.memories.names) + 2 * number + direction
        raise KeyError(f"no link from {src} to {dst}")

    def _requests(self, places: SmallInts) -> tuple[Ints, Ints]:
        """The table of requests, one for each row that asks for memory or releases it, and that of their pieces."""
        rows, compressed = self._rows(ACQUIRE, RELEASE), self.graph.compressed
        carved = [compressed.carved_by((b,)) for b in range(len(self.graph.blocks))] if compressed else []
        owned = np.array(carved, dtype=np.int64)
        # The last row is not a request: it says where the pieces end.
        requests = np.zeros((len(rows) + 1, 4), dtype=np.int64)
        pieces, count = [np.empty((0, 3), dtype=np.int64)], 0
        for begin in range(0, len(rows), _PART):
            part = rows[begin : begin + _PART]
            self.numbers[part] = np.arange(begin, begin + len(part))
            place = places[self.columns.streams_of(part), self.first[part]]
            sums, kept, ends = self._requested(part, place, owned)
            own = requests[begin : begin + len(part) + 1]
            own[:-1, :3], own[1:, 3] = sums, count + ends
            pieces.append(kept)
            count += len(kept)
        return requests, np.concatenate(pieces)

    def _requested(self, rows: Ints, place: SmallInts, owned: Ints) -> tuple[Ints, Ints, Ints]:
        """Bytes without and with padding and of buddy memory that rows request; their pieces, and where each row's end.

        place: of the row's memory. owned: bytes of buddy memory of each block.
        """
        begin, counts = self.second[rows], self.third[rows] - self.second[rows]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        blocks, of_memory = self.columns.blocks[_ranges(begin, counts)], np.repeat(place, counts)
        live, used = self._sizes(blocks, of_memory)
        carved = (
            np.where(of_memory < len(self.memories.devices), owned[blocks], 0) if len(owned) else np.zeros_like(live)
        )
        sums = [np.diff(np.concatenate([[0], np.cumsum(each)])[bounds]) for each in (live, used, carved)]
        places = np.array([not isinstance(each.pool, CountingPool) for each in self.memories.all], dtype=np.bool_)
        kept = (used > 0) & places[of_memory]
        pieces = np.stack([blocks, used, self._offsets(rows, bounds)], axis=1)[kept]
        return np.stack(sums, axis=1), pieces, np.concatenate([[0], np.cumsum(kept)])[bounds[1:]]

    def _sizes(self, blocks: SmallInts, of_memory: SmallInts) -> tuple[Ints, Ints]:
        """Bytes of blocks in memories, without and with padding."""
        live = np.zeros(len(blocks), dtype=np.int64)
        used = np.zeros(len(blocks), dtype=np.int64)
        for number, each in enumerate(self.memories.all):
            here = of_memory == number
            sizes = self.graph.columns.sizes if number < len(self.memories.devices) else self.graph.columns.copy_sizes
            live[here] = sizes[blocks[here]]
            used[here] = -(-live[here] // each.pool.alignment) * each.pool.alignment
            if isinstance(each.pool, CachingPool):
                used[here] = _rounded(used[here], each.pool.allocator.settings)
        self._bytes += float(used.sum(dtype=np.float64))
        if self._bytes >= SAFE:
            raise OverflowError("the requests of an iteration pass 64 bits")
        return live, used

    def _offsets(self, rows: Ints, bounds: Ints) -> Ints:
        """The offset of each requested block, -1 for none. bounds: where each row's blocks begin and end."""
        offsets = np.full(int(bounds[-1]), -1, dtype=np.int64)
        if self.columns.offsets:
            for row, begin, end in zip(rows.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if row in self.columns.offsets:
                    offsets[begin:end] = self.columns.offsets[row]
            if offsets.max(initial=0) >= SAFE:
                raise OverflowError("offsets pass 64 bits")
        return offsets

    def _sources(self) -> SmallInts:
        """For each event the row that signals it, and that row's segment."""
        signals = self.columns.signals
        return np.stack([signals, self.columns.segments_of(signals)], axis=1).astype(np.int32)

    def _labels(self) -> SmallInts:
        """For each code the kind of its work, where the names begin to which its first operand refers, and the kind of
        a wait at it, and of a wait for its launch."""
        labels = np.zeros((COPY_AS + 1, 4), dtype=np.int32)
        labels[:, 1:] = len(self.graph.kernels), SpanKind.STALL_EVENT, SpanKind.STALL_LAUNCH
        kinds = ((RELAUNCH, SpanKind.RECOMPUTE), (ENCODE, SpanKind.ENCODE), (DECODE, SpanKind.DECODE))
        for code, kind in ((LAUNCH, SpanKind.COMPUTE), (COPY, SpanKind.COPY), (COPY_AS, SpanKind.COPY), *kinds):
            labels[code, 0] = kind
        labels[[LAUNCH, RELAUNCH], 1] = 0
        labels[ACQUIRE, 2] = SpanKind.STALL_MEMORY
        labels[[COPY, COPY_AS], 2] = SpanKind.STALL_ENGINE
        return labels


def _alone(sizes: Ints, rates: Ints, latencies: Ints) -> Ints:
    """The time of each copy on an idle link."""
    if sizes.max(initial=0) < _MOST_BYTES:
        return latencies - -sizes * NANO // rates
    each = zip(sizes.tolist(), rates.tolist(), latencies.tolist(), strict=True)
    return np.array([copy_ns(*copy) for copy in each], dtype=np.int64)


def table_of(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    """Rows as a table, which may be empty."""
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _ranges(begin: Ints, counts: Ints) -> Ints:
    """The numbers of consecutive ranges, one after the other.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    skipped = np.repeat(begin - (np.cumsum(counts) - counts), counts)
    return skipped + np.arange(len(skipped))


def _rounded(sizes: Ints, settings: AllocatorSettings) -> Ints:
    """Sizes as the caching allocator rounds them; 0 stays 0."""
    distinct, places = np.unique(sizes, return_inverse=True)
    rounded = [settings.rounded(size) if size else 0 for size in distinct.tolist()]
    return np.array(rounded, dtype=np.int64)[places]
