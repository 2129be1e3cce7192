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
from simgpu.machine.tables import ALONE, BYTES, CAP, COPY_COLUMNS, DELAY, ENGINE, HOPS, LABEL_COLUMNS, PATH
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.transfer import NANO, copy_ns
from simgpu.program.check import CheckedProgram
from simgpu.program.code import Ints, Numbers, SmallInts
from simgpu.program.columns import Columns
from simgpu.program.opcodes import (
    ACQUIRE,
    AWAIT,
    COPY,
    COPY_AS,
    DECODE,
    ENCODE,
    INITIALIZE,
    LAUNCH,
    PASS,
    RELAUNCH,
    RELEASE,
    SIGNAL,
)
from simgpu.timeline.model import SpanKind

#: Times and amounts of memory below this can be added without passing 64 bits.
SAFE = 2**61
#: What the machine does for each code of a program's columns; values cost it nothing.
_CODES = np.arange(INITIALIZE + 1)
_CODES[[RELAUNCH, ENCODE, DECODE]], _CODES[COPY_AS], _CODES[INITIALIZE] = LAUNCH, COPY, PASS
#: Billionths of so many bytes pass 64 bits.
_MOST_BYTES = 2**63 // NANO


@dataclass(slots=True, eq=False)
class ProgramTables:
    """A program's tables, see `simgpu.machine.tables`. engines: how many; capacities: of the links in the copies'
    paths; sizes: bytes of the copies."""

    ops: Ints
    requests: Ints
    pieces: Ints
    copies: Ints
    engines: int
    capacities: Ints
    labels: SmallInts
    sizes: Ints


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
        self.streams = self.columns.streams_of_rows
        gpus = np.array([stream.gpu for stream in checked.program.streams], dtype=np.int64)
        self.gpus = gpus[self.streams]
        rows = self.columns.rows
        self.code, self.first, self.second, self.third = rows.T
        self.ops = np.zeros((len(rows), 5), dtype=np.int64)
        self.ops[:, 0] = _CODES[self.code]
        self.labels = np.full((len(rows), LABEL_COLUMNS), -1, dtype=np.int32)
        # Views of the columns about work.
        self.kind, self.name, self.copy, self.resource = self.labels.T[:4]

    def tables(self) -> ProgramTables:
        """All tables."""
        self._works()
        copies, engines, capacities = self._copies()
        requests, pieces = self._requests()
        self._events()
        labels = self._labels()
        return ProgramTables(self.ops, requests, pieces, copies, engines, capacities, labels, self.sizes)

    def _rows(self, *codes: int) -> Ints:
        return np.flatnonzero(reduce(or_, [self.code == code for code in codes]))

    def _works(self) -> None:
        """Durations and labels of kernels and codecs."""
        graph, blocks = self.graph, len(self.graph.kernels)
        rows = self._rows(LAUNCH, RELAUNCH)
        kernels = self.first[rows]
        self.ops[rows, 1] = graph.columns.durations[kernels]
        recomputed = self.code[rows] == RELAUNCH
        self.kind[rows] = np.where(recomputed, int(SpanKind.RECOMPUTE), int(SpanKind.COMPUTE))
        self.name[rows] = kernels
        for code, kind in ((ENCODE, SpanKind.ENCODE), (DECODE, SpanKind.DECODE)):
            rows = self._rows(code)
            forms = [graph.encoded[form] for form in self.first[rows].tolist()]
            self.ops[rows, 1] = [form.encode_ns if code == ENCODE else form.decode_ns for form in forms]
            self.kind[rows], self.name[rows] = kind, blocks + self.first[rows]

    def _copies(self) -> tuple[Ints, int, Ints]:
        """The table of copies, one for each way of a block; how many engines; and the capacities of links."""
        rows, names, flows = self._rows(COPY, COPY_AS), self.columns.memories, self.engines.flows
        count, blocks = len(names), max(len(self.graph.blocks), 1)
        ways = (self.gpus[rows] * count + self.second[rows]) * count + self.third[rows]
        distinct, self.ops[rows, 1] = np.unique(ways * blocks + self.first[rows], return_inverse=True)
        used, way = np.unique(distinct // blocks, return_inverse=True)
        lanes, resources = [], []
        for gpu, pair in (divmod(each, count**2) for each in used.tolist()):
            lane, resource = self._lane(gpu, names[pair // count], names[pair % count])
            lanes.append(lane)
            resources.append(resource)
        copied = distinct % blocks
        table = self._copy_table(lanes, way, copied)
        self.kind[rows], self.name[rows] = SpanKind.COPY, len(self.graph.kernels) + self.first[rows]
        self.copy[rows] = self.ops[rows, 1]
        self.resource[rows] = np.array(resources, dtype=np.int32)[way[self.ops[rows, 1]]]
        capacities = [flows.capacities[link] for link in sorted(flows.capacities)] if flows is not None else []
        self.sizes = self.graph.columns.copy_sizes[copied]
        return table, int(table[:, ENGINE].max(initial=-1)) + 1, np.array(capacities, dtype=np.int64)

    def _copy_table(self, lanes: list[Lane], way: Ints, blocks: Ints) -> Ints:
        """A row for each copied block, over the lane of its way."""
        flows, sizes = self.engines.flows, self.graph.columns.copy_sizes[blocks]
        links = sorted(flows.capacities) if flows is not None else []
        engines, each = Numbers(), []
        for lane in lanes:
            path = [links.index(link) for link in lane.path] if links else []
            each.append((engines[id(lane.engine)], lane.latency, *(*path, *[-1] * HOPS)[:HOPS]))
        of_lane = table_of(each, 2 + HOPS)[way]
        table = np.empty((len(blocks), COPY_COLUMNS), dtype=np.int64)
        table[:, ENGINE], table[:, DELAY], table[:, PATH:] = of_lane[:, 0], of_lane[:, 1], of_lane[:, 2:]
        for number, lane in enumerate(lanes):
            here = way == number
            raws = [self.graph.blocks[block].bytes for block in blocks[here].tolist()] if lane.compresses else []
            table[here, CAP] = [*map(lane.cap, sizes[here].tolist(), raws)] if raws else lane.rate
        table[:, ALONE] = -1 if flows is not None else _alone(sizes, table[:, CAP], table[:, DELAY])
        if links and len(sizes) and sizes.max() >= _MOST_BYTES:
            raise OverflowError("billionths of a copy's bytes pass 64 bits")
        table[:, BYTES] = sizes * NANO if links else 0
        return table

    def _lane(self, gpu: int, src: str, dst: str) -> tuple[Lane, int]:
        """The lane from one memory to another for a GPU, and its engine's place among the timeline's resources."""
        for number, link in enumerate(self.node.links):
            if link.ends in ((src, dst), (dst, src)):
                direction = int(link.ends != (src, dst))
                return self.engines.lanes[gpu][number][direction], len(self.memories.names) + 2 * number + direction
        raise KeyError(f"no link from {src} to {dst}")

    def _requests(self) -> tuple[Ints, Ints]:
        """The table of requests, one for each row that asks for memory or releases it, and that of their pieces."""
        rows, memories, columns = self._rows(ACQUIRE, RELEASE), self.memories, self.columns
        names = [memories.names.index(name) if name in memories.names else -1 for name in columns.memories]
        name = np.array(names, dtype=np.int64)[self.first[rows]]
        place = np.where(name == 0, self.gpus[rows], len(memories.devices) - 1 + name)
        self.ops[rows, 1], self.ops[rows, 2] = place, np.arange(len(rows))
        self.resource[rows] = name
        begin, end = self.second[rows], self.third[rows]
        counts = end - begin
        blocks = columns.blocks[_ranges(begin, counts)]
        of_memory = np.repeat(place, counts)
        live, used = self._sizes(blocks, of_memory)
        offsets = self._offsets(rows, begin, counts)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        addressed = np.array([isinstance(each.pool, AddressedPool) for each in memories.all], dtype=np.bool_)
        kept = (used > 0) & addressed[of_memory]
        pieces = np.stack([blocks, used, offsets], axis=1)[kept]
        ends = np.concatenate([[0], np.cumsum(kept)])[bounds]
        carved = self._carved(blocks, of_memory)
        sums = [np.diff(np.concatenate([[0], np.cumsum(each)])[bounds]) for each in (live, used, carved)]
        return np.stack([*sums[:2], ends[:-1], ends[1:], sums[2]], axis=1), pieces

    def _sizes(self, blocks: SmallInts, of_memory: Ints) -> tuple[Ints, Ints]:
        """Bytes of blocks in memories, without and with padding."""
        live = np.zeros(len(blocks), dtype=np.int64)
        used = np.zeros(len(blocks), dtype=np.int64)
        for number, each in enumerate(self.memories.all):
            here = of_memory == number
            sizes = self.graph.columns.sizes if number < len(self.memories.devices) else self.graph.columns.copy_sizes
            live[here] = sizes[blocks[here]]
            used[here] = -(-live[here] // each.pool.alignment) * each.pool.alignment
        if used.sum(dtype=np.float64) >= SAFE:
            raise OverflowError("the requests of an iteration pass 64 bits")
        return live, used

    def _offsets(self, rows: Ints, begin: Ints, counts: Ints) -> Ints:
        """The offset of each requested block, -1 for none."""
        offsets = np.full(int(counts.sum()), -1, dtype=np.int64)
        if self.columns.offsets:
            at = dict(zip(rows.tolist(), (np.cumsum(counts) - counts).tolist(), strict=True))
            for row, given in self.columns.offsets.items():
                offsets[at[row] : at[row] + len(given)] = given
        return offsets

    def _carved(self, blocks: SmallInts, of_memory: Ints) -> Ints:
        """Bytes of buddy memory that each block owns."""
        compressed = self.graph.compressed
        if compressed is None:
            return np.zeros(len(blocks), dtype=np.int64)
        owned = np.array([compressed.carved_by((b,)) for b in range(len(self.graph.blocks))], dtype=np.int64)
        return np.where(of_memory < len(self.memories.devices), owned[blocks], 0)

    def _events(self) -> None:
        """For each wait its event, the count it needs, and the row that signals it."""
        columns, segments = self.columns, self.columns.segments_of_rows
        rows = self._rows(SIGNAL)
        signal = np.zeros(len(columns.events), dtype=np.int64)
        signal[self.first[rows]] = rows
        self.ops[rows, 1] = self.first[rows]
        rows = self._rows(AWAIT)
        source = signal[self.first[rows]]
        here = segments[source] == segments[rows]
        self.ops[rows, 1] = self.first[rows]
        self.ops[rows, 2] = here - self.second[rows]
        self.ops[rows, 3] = np.where(here, 0, columns.repeats[segments[source]])
        self.ops[rows, 4] = source

    def _labels(self) -> SmallInts:
        """What the log says of each row."""
        wait, waited, stream, reason = self.labels.T[4:]
        for_memory = self.code == ACQUIRE
        wait[:] = SpanKind.STALL_EVENT
        wait[for_memory] = SpanKind.STALL_MEMORY
        wait[self.ops[:, 0] == COPY] = SpanKind.STALL_ENGINE
        waited[for_memory] = self.resource[for_memory]
        stream[:] = self.streams
        before = self._before()
        reason[:] = np.where(before < 0, -1, self.name[before])
        return self.labels

    def _before(self) -> Ints:
        """For each row the last row of work before it in its part, -1 for none."""
        rows = np.arange(len(self.code))
        works = np.maximum.accumulate(np.where(self.ops[:, 0] >= LAUNCH, rows, -1))
        before = np.concatenate([[-1], works[:-1]])
        parts = np.zeros(len(rows), dtype=np.int64)
        parts[self.columns.first.ravel()] = self.columns.first.ravel()
        return np.where(before >= np.maximum.accumulate(parts), before, -1)


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
