"""moDNN's plans read back from their programs alone, without any of the planner's own code (Chen et al., TPDS 2019)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.modnn.policy import Plan
from simgpu.program.instructions import (
    COMPUTE,
    DATA,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.trace.model import BlockKind

STREAMS = (COMPUTE, DATA)


class BrokenPlanError(AssertionError):
    """A plan breaks a rule; its text says where."""


def padded(size: int, node: NodeSpec) -> int:
    """Bytes that a block takes."""
    return -(-size // node.gpu.alignment) * node.gpu.alignment


@dataclass
class Round:
    """One round of a plan, walked once in the order in which it was planned.

    graph: split, with the chosen algorithms; before: split only. at: address and size of blocks on the GPU. clock: of
    each stream; written[b]: end of its last writer. unused: blocks not used since they were written or fetched; host:
    blocks whose current value the host has. position: in each stream's code.
    """

    program: Program
    segment: Segment
    before: TaskGraph
    graph: TaskGraph
    node: NodeSpec
    budget: int
    at: dict[int, tuple[int, int]] = field(default_factory=dict)
    clock: list[int] = field(default_factory=lambda: [0, 0])
    written: dict[int, int] = field(default_factory=dict)
    unused: set[int] = field(default_factory=set)
    host: set[int] = field(default_factory=set)
    released: list[tuple[int, int, int]] = field(default_factory=list)
    position: list[int] = field(default_factory=lambda: [0, 0])
    fired: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    copies: list[tuple[Copy, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.codes = [self.segment.streams.get(stream, ()) for stream in STREAMS]
        self.kernels = [each.kernel for each in self.codes[0] if isinstance(each, Launch)]
        self.stays = set(self.program.resident)
        base = 0
        for b in self.program.resident:
            self.at[b] = (base, padded(self.graph.sizes[b], self.node))
            base += self.at[b][1]
        self.available = self.budget - base
        self.ways = {k: self._choices(k) for k in self.kernels}
        self.data = {k: self._data(k) for k in self.kernels}
        self.uses: dict[int, list[int]] = {}
        for k in self.kernels:
            for b in self.data[k]:
                self.uses.setdefault(b, []).append(k)
        held = self.before.blocks
        self.inputs = {k: [b for b in self.data[k] if self.uses[b][0] < k or held[b].persistent] for k in self.kernels}

    # --- what tasks need --------------------------------------------------------------------------------------

    def _data(self, k: int) -> list[int]:
        """Non-resident blocks that kernel k touches, without its workspace where it has algorithms."""
        blocks = dict.fromkeys((*self.before.reads[k], *self.before.writes[k]))
        return [b for b in blocks if b not in self.stays and not (self.ways[k] and self.is_workspace(b))]

    def is_workspace(self, b: int) -> bool:
        return self.graph.blocks[b].kind is BlockKind.WORKSPACE

    def is_scratch(self, b: int) -> bool:
        """Whether a block is the workspace of an algorithm that was chosen."""
        return self.is_workspace(b) and b not in self.uses

    def size(self, b: int) -> int:
        return padded(self.graph.sizes[b], self.node)

    def named(self, b: int) -> str:
        """The name of a block in messages."""
        return f"block {self.graph.blocks[b].id}"

    def _choices(self, k: int) -> list[tuple[int, int, str]]:
        """Duration, workspace and name of kernel k's algorithms; the recorded one has no name."""
        name = self.before.kernels[k].id
        listed = [c for c in self.before.trace.algorithms if c.kernel == name]
        if not listed:
            return []
        spaces = [b for b in self.before.writes[k] if self.is_workspace(b)]
        ways = {(c.duration_ns, c.workspace_bytes, c.algorithm) for c in listed}
        if not any((c.duration_ns, c.workspace_bytes) == self._recorded(k, spaces) for c in listed):
            ways.add((self.before.durations[k], sum(self.size_before(b) for b in spaces), ""))
        return sorted(ways)

    def _recorded(self, k: int, spaces: list[int]) -> tuple[int, int]:
        return self.before.durations[k], sum(self.before.sizes[b] for b in spaces)

    def size_before(self, b: int) -> int:
        return padded(self.before.sizes[b], self.node)

    def fastest(self, k: int) -> int:
        """Time of kernel k by its fastest algorithm."""
        return min([duration for duration, _, _ in self.ways[k]] or [self.before.durations[k]])

    def transfer(self, b: int, *, out: bool) -> int:
        """Time of a lone copy."""
        link, size = self.node.link, self.graph.copy_sizes[b]
        rate = link.d2h_bandwidth if out else link.h2d_bandwidth
        return link.latency_ns + -(-size * 10**9 // rate)

    # --- the walk ---------------------------------------------------------------------------------------------

    def step(self, stream: int) -> Instruction:
        """Run the next instruction of a stream."""
        done = self.codes[stream][self.position[stream]]
        self.position[stream] += 1
        now = self.clock[stream]
        if isinstance(done, Await):
            self.clock[stream] = max(now, self.fired[done.event])
        elif isinstance(done, Signal):
            self.fired[done.event] = now
        elif isinstance(done, Launch):
            self._launch(done.kernel)
        elif isinstance(done, Copy):
            out = done.src == DEVICE
            self.clock[stream] += self.transfer(done.block, out=out)
            self.copies.append((done, now, self.clock[stream]))
            self.host.add(done.block)
        elif isinstance(done, Initialize) and done.memory == HOST:
            self.host.update(done.blocks)
        elif isinstance(done, Initialize):
            self.written.update(dict.fromkeys(done.blocks, now))
        elif isinstance(done, Acquire) and done.memory == DEVICE:
            self._take(done)
        elif isinstance(done, Release) and done.memory == DEVICE:
            for b in done.blocks:
                start, size = self.at.pop(b)
                self.unused.discard(b)
                if stream == 1:
                    self.released.append((start, start + size, now))
        return done

    def _launch(self, k: int) -> None:
        self.starts[k] = self.clock[0]
        self.clock[0] += self.graph.durations[k]
        self.unused.difference_update(self.inputs[k], self.saved(k))
        for b in self.graph.writes[k]:
            self.written[b] = self.clock[0]
            self.host.discard(b)

    def saved(self, k: int) -> set[int]:
        """Blocks that kernel k writes for the other pass alone: nothing keeps them in memory until then."""
        kernels = self.graph.kernels
        outputs = set(self.data[k]) - set(self.inputs[k])
        later = {b: [j for j in self.uses[b] if j > k] for b in outputs}
        return {b for b, uses in later.items() if uses and kernels[uses[0]].phase is not kernels[k].phase}

    def _take(self, taking: Acquire) -> None:
        for b, offset in zip(taking.blocks, taking.offsets or (), strict=True):
            size = self.size(b)
            if offset < 0 or offset + size > self.budget:
                raise BrokenPlanError(f"{self.named(b)} lies outside of the budget")
            for other, (start, length) in self.at.items():
                if offset < start + length and start < offset + size:
                    raise BrokenPlanError(f"{self.named(b)} lies upon {self.named(other)}")
            self.at[b] = (offset, size)
            if not self.is_scratch(b):
                self.unused.add(b)

    def may(self, stream: int) -> bool:
        """Whether a stream has a next instruction that can run."""
        if self.position[stream] >= len(self.codes[stream]):
            return False
        coming = self.codes[stream][self.position[stream]]
        return not isinstance(coming, Await) or coming.event in self.fired

    def next(self) -> Instruction | None:
        """The next instruction of compute, after the data stream has signalled the events it waits for."""
        while self.position[0] < len(self.codes[0]) and not self.may(0):
            self.step(1)
        return self.codes[0][self.position[0]] if self.position[0] < len(self.codes[0]) else None

    def prefetches(self) -> Iterator[int]:
        """The blocks that the data stream begins to fetch before compute goes on, each before anything is evicted."""
        while (reach := self._reach()) is not None:
            taking = self.codes[1][reach]
            assert isinstance(taking, Acquire)
            (fetched,) = taking.blocks
            yield fetched
            while self.position[1] <= reach:
                self.step(1)
            if self.step(1) != Copy(fetched, HOST, DEVICE):
                raise BrokenPlanError(f"{self.named(fetched)} has its place and is not fetched at once")

    def _reach(self) -> int | None:
        """Position of the next Acquire of device memory on the data stream, if it may go on as far as that."""
        fired = set(self.fired)
        for position in range(self.position[1], len(self.codes[1])):
            coming = self.codes[1][position]
            if isinstance(coming, Await) and coming.event not in fired:
                return None
            if isinstance(coming, Signal):
                fired.add(coming.event)
            if isinstance(coming, Acquire) and coming.memory == DEVICE:
                return position
        return None

    # --- memory -----------------------------------------------------------------------------------------------

    def segments(self) -> list[tuple[int, int, int | None]]:
        """Address, size and block of everything from the lowest address up; free pieces have no block."""
        segments: list[tuple[int, int, int | None]] = []
        end = 0
        for start, size, b in sorted((start, size, b) for b, (start, size) in self.at.items() if size):
            if start > end:
                segments.append((end, start - end, None))
            segments.append((start, size, b))
            end = start + size
        return [*segments, (end, self.budget - end, None)] if end < self.budget else segments

    def holes(self, moved: Collection[int] = ()) -> list[list[int]]:
        """Address and size of what is free, or would be without these blocks, from the lowest address up."""
        holes: list[list[int]] = []
        for start, size, b in self.segments():
            if b is not None and b not in moved:
                continue
            if holes and sum(holes[-1]) == start:
                holes[-1][1] += size
            else:
                holes.append([start, size])
        return holes

    def has_hole(self, size: int) -> bool:
        return size == 0 or any(length >= size for _, length in self.holes())

    def schemes(self, size: int, needed: Collection[int]) -> list[tuple[int, ...]]:
        """Figure 6: all windows of neighbours that are just large enough and may leave, as the blocks in them."""
        segments = self.segments()
        schemes = []
        for first, last in combinations(range(len(segments) + 1), 2):
            window = segments[first:last]
            large = sum(length for _, length, _ in window)
            if large >= size > large - window[-1][1] and all(
                b is None or not (b in self.stays or b in self.unused or b in needed or self.is_scratch(b))
                for _, _, b in window
            ):
                schemes.append(tuple(b for _, _, b in window if b is not None))
        return schemes

    def delay(self, blocks: Collection[int]) -> int:
        """Figure 3: how much longer compute waits until these blocks have been copied out one after another."""
        end = self.clock[1]
        copied = [b for b in blocks if b not in self.host]
        for b in copied:
            end = max(end, self.written[b]) + self.transfer(b, out=True)
        return max(0, end - self.clock[0]) if copied else 0

    # --- equations --------------------------------------------------------------------------------------------

    def lacking(self, k: int) -> tuple[int, list[int]] | None:
        """The nearest task after kernel k that needs prefetching, and the blocks it lacks which the host has."""
        for later in self.kernels[self.kernels.index(k) + 1 :]:
            missing = [b for b in self.inputs[later] if b not in self.at and b in self.host]
            if missing:
                return later, missing
        return None

    def due(self, k: int, later: int, missing: Collection[int], duration: int) -> bool:
        """Equation 9, with expected starts by the fastest algorithms and all delays so far."""
        order = self.kernels
        delays = self.clock[0] - sum(self.fastest(j) for j in order[: order.index(k)]) + duration - self.fastest(k)
        expected = sum(self.fastest(j) for j in order[: order.index(later)]) + delays
        return self.clock[0] + duration + sum(self.transfer(b, out=False) for b in missing) > expected

    def will_fit(self, k: int, later: int) -> bool:
        """Section 5.2.2: no task after k up to `later` is predicted to need defragmentation."""
        order = self.kernels
        for s in order[order.index(k) + 1 : order.index(later) + 1]:
            between = [j for j in order if k <= j < s]
            outputs = {b for j in between for b in self.data[j] if b not in self.inputs[j]}
            offloaded = {b for j in between for b in self.data[j] if b in self.inputs[j] or self.uses[b][-1] == j}
            offloaded = offloaded.union(*(self.saved(j) for j in between))
            remaining = (self.unused | outputs) - offloaded
            smallest = min([workspace for _, workspace, _ in self.ways[s]], default=0)
            if sum(self.size(b) for b in remaining | set(self.data[s])) + padded(smallest, self.node) > self.available:
                return False
        return True


def rounds_of(plan: Plan, graph: TaskGraph, node: NodeSpec, budget: int) -> list[Round]:
    """The rounds of a plan for a graph."""
    split = transformed(graph, plan.program.transforms[:1])
    final = transformed(graph, plan.program.transforms)
    return [Round(plan.program, segment, split, final, node, budget) for segment in plan.program.segments]


def walked(part: Round, look: Callable[[Instruction], None] = lambda _: None) -> Round:
    """Walk a round to its end; `look` is called before each instruction of the compute stream."""
    while (coming := part.next()) is not None:
        look(coming)
        if isinstance(coming, Launch):
            for _ in part.prefetches():
                pass
        part.step(0)
    while part.may(1):
        part.step(1)
    return part
