"""A slow, simple reference machine that also tracks the contents of memory.

It shares no code with the real one: it polls every stream repeatedly, computes with fractions, and models memory
only by the bytes in use. A run returns all times, and the reads that found a wrong value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import MemoryLink, NodeSpec
from simgpu.program.instructions import (
    WORK,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
)
from simgpu.timeline.streams import StreamId
from tests.semantics.reference_launches import touched
from tests.semantics.reference_links import carries, fair_rates, shared_links
from tests.semantics.reference_threads import threads

Token = tuple[int, int] | None

#: A memory: that of a GPU by its number, another by its name.
Place = int | str
HOST = "host"


@dataclass
class Line:
    """A stream: its instructions for all iterations, and its current work."""

    rank: int
    stream: StreamId
    code: list[tuple[Instruction, int, int]]
    """instruction, iteration, repetitions of its segment before this one"""
    position: int = 0
    doing: str = "ready"
    until: int = 0
    begun: int = 0

    @property
    def here(self) -> tuple[Instruction, int, int] | None:
        return self.code[self.position] if self.position < len(self.code) else None


@dataclass
class Flow:
    line: Line
    cap: int
    links: tuple[str, ...]
    left: Fraction
    since: int
    rate: int = 0


@dataclass
class Contents:
    """The contents of one memory: a value per block with memory, and the works that access it."""

    value: dict[int, Token] = field(default_factory=dict)
    readers: dict[int, int] = field(default_factory=dict)
    writers: dict[int, int] = field(default_factory=dict)


class ReferenceMachine:
    """Run a program of one or several GPUs.

    `works`: (stream, kind, number, start, end, iteration); `wrong`: what went wrong.
    """

    def __init__(
        self,
        program: Program,
        graph: TaskGraph,
        node: NodeSpec,
        *,
        budget: int | None = None,
        iterations: int = 2,
        durations: Sequence[int] | None = None,
    ) -> None:
        self.graph, self.node, self.program = graph, node, program
        self.durations = durations or graph.durations
        self.now = 0
        self.lines = [Line(rank, stream, self._flat(stream, iterations)) for rank, stream in enumerate(program.streams)]
        self.repeat_of = {
            instruction.event: (index, segment.repeat)
            for index, segment in enumerate(program.segments)
            for code in segment.streams.values()
            for instruction in code
            if isinstance(instruction, Signal)
        }
        self.counts: dict[int, int] = {}
        limit = None if program.unlimited_memory else budget
        self.gpus = 1 + max(stream.gpu for stream in program.streams)
        capacities = {each.name: each.capacity for each in node.memories if each.name != "device"}
        self.limit: dict[Place, int | None] = {**dict.fromkeys(range(self.gpus), limit), **capacities}
        memories: tuple[Place, ...] = tuple(self.limit)
        self.used: dict[Place, int] = dict.fromkeys(memories, 0)
        self.queue: dict[Place, list[Line]] = {memory: [] for memory in memories}
        self.engine_queue: dict[str, list[Line]] = {}
        self.engine_holder: dict[str, Line | None] = {}
        self.flows: list[Flow] = []
        self.space = {memory: Contents() for memory in memories}
        self.works: list[tuple[str, str, int, int, int, int]] = []
        self.wrong: list[str] = []
        self.peak = 0
        host = node.host
        self.threads = threads(program, host.launch_ns, iterations, blocking=host.waits_for_copies)
        for holding in program.initial_contents:
            memory = holding.gpu if holding.memory == "device" else holding.memory
            for b in holding.blocks:
                self._take(memory, (b,))
                self.space[memory].value[b] = (0, 0)

    def _flat(self, stream: StreamId, iterations: int) -> list[tuple[Instruction, int, int]]:
        return [
            (instruction, iteration, index)
            for iteration in range(iterations)
            for index, segment in enumerate(self.program.segments)
            for _ in range(segment.repeat)
            for instruction in segment.streams.get(stream, ())
        ]

    # --- time -----------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run until no event is possible; returns whether all instructions were executed."""
        while True:
            self._settle()
            ends = [line.until for line in self.lines if line.doing in ("kernel", "copy", "latency")]
            ends += [self._finish(flow) for flow in self.flows]
            ends += [thread.until for thread in self.threads.values() if thread.until is not None]
            if not ends:
                return all(line.here is None for line in self.lines)
            self.now = min(ends)
            self._complete()

    def _complete(self) -> None:
        for line in self.lines:
            if line.doing == "latency" and line.until == self.now:
                copy: Copy = line.here[0]  # type: ignore[index, assignment]
                link = self._link(copy)
                cap = link.bandwidths[link.ends.index(copy.dst) - 1]
                size = self.graph.copy_sizes[copy.block]
                line.doing = "flow"
                links = shared_links(self.node, line.stream.gpu, copy.src, copy.dst, alone=self.gpus == 1)
                self.flows.append(Flow(line, cap, links, Fraction(size), self.now))
                self._share()
        done = [flow for flow in self.flows if self._finish(flow) <= self.now]
        for flow in done:
            flow.line.doing, flow.line.until = "copy", self.now
            self.flows.remove(flow)
        if done:
            self._share()
        for line in self.lines:
            if line.doing in ("kernel", "copy") and line.until == self.now:
                self._end(line)
        for thread in self.threads.values():
            thread.end(self.now)

    def _finish(self, flow: Flow) -> int:
        return flow.since + ceil(flow.left * 10**9 / flow.rate)

    def _share(self) -> None:
        capacity = {link: carries(self.node, link) for flow in self.flows for link in flow.links}
        rates = fair_rates([(flow.cap, flow.links) for flow in self.flows], capacity)
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate != flow.rate:
                flow.left -= Fraction(flow.rate * (self.now - flow.since), 10**9)
                flow.since, flow.rate = self.now, rate

    # --- one instant ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Releases, then signals, then acquires, then starts; after each change all streams are polled again."""
        while True:
            self._step_past()
            for gpu, thread in self.threads.items():
                thread.go_on(self.now, [x for x in self.lines if x.stream.gpu == gpu])
            kinds: tuple[tuple[type, ...], ...] = ((Release,), (Signal,))
            result = next((line for kind in kinds if (line := self._first(kind))), None)
            if result:
                self._effect(result)
            elif not (self._grant() or self._ask() or self._start()):
                return

    def _first(self, kinds: tuple[type, ...]) -> Line | None:
        return next((x for x in self.lines if x.doing == "ready" and x.here and isinstance(x.here[0], kinds)), None)

    def _step_past(self) -> None:
        for line in self.lines:
            while line.doing == "ready" and line.here:
                instruction, iteration, index = line.here
                if isinstance(instruction, Initialize):
                    for b in instruction.blocks:
                        self.space[self._memory(line, instruction.memory)].value[b] = (iteration, 0)
                elif not (isinstance(instruction, Await) and self._heard(line, instruction, iteration, index)):
                    break
                line.position += 1

    def _heard(self, line: Line, wait: Await, iteration: int, index: int) -> bool:
        if wait.event not in self.repeat_of:
            return False
        where, repeat = self.repeat_of[wait.event]
        if where == index:
            passed = [c for c in line.code[: line.position] if c[2] == index]
            begun = len(passed) // len(self.program.segments[index].streams[line.stream])
            target = begun + 1 - wait.lag
        else:
            target = (iteration + 1) * repeat - wait.lag
        return self.counts.get(wait.event, 0) >= target

    def _effect(self, line: Line) -> None:
        instruction = line.here[0]  # type: ignore[index]
        line.position += 1
        if isinstance(instruction, Signal):
            self.counts[instruction.event] = self.counts.get(instruction.event, 0) + 1
        if isinstance(instruction, Release):
            memory = self._memory(line, instruction.memory)
            space = self.space[memory]
            for b in instruction.blocks:
                if b not in space.value:
                    self.wrong.append(f"release of absent {b}")
                if space.readers.get(b) or space.writers.get(b):
                    self.wrong.append(f"release of {b} in use")
                space.value.pop(b, None)
                self.used[memory] -= self._size(memory, b)

    def _memory(self, line: Line, name: str) -> Place:
        return line.stream.gpu if name == "device" else name

    def _link(self, copy: Copy) -> MemoryLink:
        return next(link for link in self.node.links if set(link.ends) == {copy.src, copy.dst})

    def _size(self, memory: Place, b: int) -> int:
        size = self.graph.sizes[b] if isinstance(memory, int) else self.graph.copy_sizes[b]
        name = "device" if isinstance(memory, int) else memory
        unit = next(each.alignment for each in self.node.memories if each.name == name)
        return ceil(Fraction(size, unit)) * unit

    def _take(self, space: Place, blocks: Sequence[int]) -> bool:
        need = sum(self._size(space, b) for b in blocks)
        limit = self.limit[space]
        if limit is not None and self.used[space] + need > limit:
            return False
        self.used[space] += need
        self.peak = max(self.peak, *(self.used[gpu] for gpu in range(self.gpus)))
        for b in blocks:
            if b in self.space[space].value:
                self.wrong.append(f"{b} taken twice")
            self.space[space].value[b] = None
        return True

    def _grant(self) -> bool:
        for space, queue in self.queue.items():
            if queue and self._take(space, queue[0].here[0].blocks):  # type: ignore[index, union-attr]
                line = queue.pop(0)
                line.doing = "ready"
                line.position += 1
                return True
        return False

    def _ask(self) -> bool:
        line = self._first((Acquire,))
        if line is None:
            return False
        instruction: Acquire = line.here[0]  # type: ignore[index, assignment]
        memory = self._memory(line, instruction.memory)
        if not self.queue[memory] and self._take(memory, instruction.blocks):
            line.position += 1
        else:
            line.doing = "memory"
            self.queue[memory].append(line)
        return True

    def _is_launched(self, line: Line) -> bool:
        return line.stream.role != "compute" or not self.threads or self.threads[line.stream.gpu].allows(line)

    def _start(self) -> bool:
        works = (x for x in self.lines if x.doing == "ready" and x.here and isinstance(x.here[0], WORK))
        line = next(filter(self._is_launched, works), None)
        if line is None:
            return False
        if isinstance(line.here[0], Launch | Encode | Decode):  # type: ignore[index]
            duration = self._duration(line.here[0])  # type: ignore[index]
            line.doing, line.until, line.begun = "kernel", self.now + duration, self.now
            self._begin_access(line)
        else:
            engine = self._engine(line)
            if self.engine_holder.get(engine):
                line.doing = "queued"
                self.engine_queue.setdefault(engine, []).append(line)
            else:
                self._serve(line)
        return True

    def _duration(self, work: Launch | Encode | Decode) -> int:
        if isinstance(work, Launch):
            return self.durations[work.kernel]
        form = self.graph.encoded[work.into if isinstance(work, Encode) else work.source]
        return form.encode_ns if isinstance(work, Encode) else form.decode_ns

    def _engine(self, line: Line) -> str:
        copy: Copy = line.here[0]  # type: ignore[index, assignment]
        link = self._link(copy)
        whose = line.stream.gpu if "device" in link.ends else "all"
        return f"{whose} {link.name} {'both' if link.copy_engines == 1 else copy.dst}"

    def _serve(self, line: Line) -> None:
        self.engine_holder[self._engine(line)] = line
        line.doing, line.until, line.begun = "latency", self.now + self._link(line.here[0]).latency_ns, self.now  # type: ignore[index, arg-type]
        self._begin_access(line)

    def _end(self, line: Line) -> None:
        instruction, iteration, _ = line.here  # type: ignore[misc]
        self._end_access(line)
        number = self._subject(instruction)
        kind = type(instruction).__name__
        self.works.append((str(line.stream), kind, number, line.begun, self.now, iteration))
        if isinstance(instruction, Copy):
            engine = self._engine(line)
            self.engine_holder[engine] = None
            if self.engine_queue.get(engine):
                self._serve(self.engine_queue[engine].pop(0))
        line.position += 1
        line.doing = "ready"

    def _subject(self, instruction: Instruction) -> int:
        """The kernel that runs, the block that is copied, or the form that is encoded or decoded."""
        match instruction:
            case Launch(kernel):
                return kernel
            case Encode(_, form) | Decode(_, form):
                return form
        return instruction.block  # type: ignore[union-attr]

    # --- values ---------------------------------------------------------------------------------------------

    def _accesses(self, line: Line) -> tuple[list[tuple[Place, int]], list[tuple[Place, int]]]:
        instruction, gpu = line.here[0], line.stream.gpu  # type: ignore[index]
        if isinstance(instruction, Launch):
            where = HOST if line.stream.role == "host" else gpu
            reads, writes = touched(self.graph, instruction)
            return [(where, b) for b in reads], [(where, b) for b in writes]
        if isinstance(instruction, Encode | Decode):
            where = self._memory(line, instruction.memory)
            full, form = instruction.block, instruction.into if isinstance(instruction, Encode) else instruction.source
            first, then = (full, form) if isinstance(instruction, Encode) else (form, full)
            return [(where, first)], [(where, then)]
        copy: Copy = instruction  # type: ignore[assignment]
        return [(self._memory(line, copy.src), copy.block)], [(self._memory(line, copy.dst), copy.block)]

    def _begin_access(self, line: Line) -> None:
        instruction, iteration, _ = line.here  # type: ignore[misc]
        reads, writes = self._accesses(line)
        for space, b in reads:
            self._check_read(instruction, iteration, space, b)
            self.space[space].readers[b] = self.space[space].readers.get(b, 0) + 1
            if self.space[space].writers.get(b):
                self.wrong.append(f"{instruction} reads {b} while it is written")
        for space, b in writes:
            if b not in self.space[space].value:
                self.wrong.append(f"{instruction} writes absent {b}")
            own = (space, b) in reads
            if self.space[space].readers.get(b, 0) > own or self.space[space].writers.get(b):
                self.wrong.append(f"{instruction} writes {b} while it is in use")
            self.space[space].writers[b] = self.space[space].writers.get(b, 0) + 1

    def _check_read(self, instruction: Instruction, iteration: int, space: Place, b: int) -> None:
        value = self.space[space].value.get(b)
        if value is None:
            self.wrong.append(f"{instruction} in iteration {iteration} finds no value of {b}")
        elif isinstance(instruction, Launch):
            k = instruction.kernel
            if b in self.graph.reads[k]:
                version = self.graph.read_versions[k][self.graph.reads[k].index(b)]
            else:
                version = self.graph.write_versions[k][self.graph.writes[k].index(b)]
            if value not in self._expected(b, version, iteration):
                self.wrong.append(f"{instruction} in iteration {iteration} finds {value} of {b}, not version {version}")

    def _expected(self, b: int, version: int, iteration: int) -> set[Token]:
        last = self.graph.last_version[b]
        if version or not iteration:
            return {(iteration, version)}
        carried: set[Token] = {(iteration - 1, last)} if last else {(before, 0) for before in range(iteration)}
        return {(iteration, 0)} | (carried if self.graph.blocks[b].persistent else set())

    def _end_access(self, line: Line) -> None:
        instruction, iteration, _ = line.here  # type: ignore[misc]
        reads, writes = self._accesses(line)
        for space, b in reads:
            self.space[space].readers[b] -= 1
        for space, b in writes:
            self.space[space].writers[b] -= 1
            if isinstance(instruction, Launch):
                k = instruction.kernel
                value: Token = (iteration, self.graph.write_versions[k][self.graph.writes[k].index(b)])
            else:
                value = self.space[reads[0][0]].value.get(reads[0][1])
            if b in self.space[space].value:
                self.space[space].value[b] = value
