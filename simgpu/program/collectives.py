"""Adds collectives to a program of one GPU: kernels on a stream of their own, and what computes for them or waits.

What several GPUs exchange is decided elsewhere (`simgpu.program.fully_sharded`, `simgpu.program.buckets`); a
`CollectiveWriter` collects kernels, buffers and instructions, and writes the changed program.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.graph.collectives import AddedBlock, AddedKernel, WithCollectives, with_collectives
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import (
    COLLECTIVES,
    COMPUTE,
    DEVICE,
    Acquire,
    Copy,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
)
from simgpu.program.replication import events_of
from simgpu.trace.model import BlockKind, Phase


@dataclass(frozen=True, slots=True)
class Added:
    """Stands for the launch of an added kernel, which has its number only when all are known."""

    kernel: int


class Position(NamedTuple):
    """A place in the code of the compute stream: in front of an instruction, or behind it."""

    instruction: int
    behind: bool = False


#: Operators that copy to buffers of collectives and from them.
COPIES = ("copy_", "split_with_sizes_copy", "chunk_cat")
#: Instructions of the changed program.
Code = list[Instruction | Added]


def check_leaves_shared(program: Program, graph: TaskGraph, owned: Collection[int], lasting: Iterable[int]) -> None:
    """Raises `InputError` for a program that moves, drops or copies blocks which GPUs share, has addresses, or acquires
    no memory.

    graph: with the program's transforms. owned: what GPUs share; lasting: what of it is resident when an iteration
    begins.
    """
    if program.pool == "addressed":
        what = "the policy inside gives blocks addresses, which do not hold with what GPUs exchange"
        raise InputError.single("", "parameters.inside", what, "choose a policy without addresses, such as vdnn")
    if program.residency is not None:
        what = "the policy inside has blocks paged or in host memory, and GPUs exchange what is in device memory"
        raise InputError.single("", "parameters.inside", what, "choose a policy that copies blocks, such as vdnn")
    if any(isinstance(each, Functional) for each in program.transforms):
        names = (graph.blocks[b].id for b in sorted(owned))
        again = (name for name in names if name.endswith("'") or f"{name}'" in graph.block_number)
        if (name := next(again, None)) is not None:
            what = f"the policy inside gives '{name}' new memory where a kernel adds to it, and GPUs exchange one sum"
            remedy = "run it on an iteration without micro-batches and chunks of the loss, or choose another policy"
            raise InputError.single("", "parameters.inside", what, remedy)
    code = [
        (stream, i)
        for segment in program.segments
        for stream, instructions in segment.streams.items()
        for i in instructions
    ]
    copied = {i.block for stream, i in code if isinstance(i, Copy) and (i.into is None or stream != COMPUTE)}
    moved = copied.intersection(owned) | {*program.resident}.symmetric_difference(lasting).intersection(owned)
    acquired = Counter(b for _, i in code if isinstance(i, Acquire) and i.memory == DEVICE for b in i.blocks)
    dropped = {b for b, times in acquired.items() if times > 1}.intersection(owned)
    if moved or dropped:
        does, b = ("moves", min(moved)) if moved else ("drops", min(dropped))
        what = f"the policy inside {does} '{graph.blocks[b].id}' itself, which the GPUs share or keep equal"
        remedy = "choose a policy that leaves weights, gradients and optimizer state on the GPU, such as checkpoint"
        raise InputError.single("", "parameters.inside", what, remedy)


@dataclass
class CollectiveWriter:
    """Collects what is added to a program of one segment, and writes it.

    graph: with the program's transforms. before, after: code around an instruction of the compute stream. positions: of
    each added kernel, where the host launches it. launched: code of the stream of collectives.
    """

    program: Program
    graph: TaskGraph
    kernels: list[AddedKernel] = field(default_factory=list)
    blocks: list[AddedBlock] = field(default_factory=list)
    before: defaultdict[int, Code] = field(default_factory=lambda: defaultdict(list))
    after: defaultdict[int, Code] = field(default_factory=lambda: defaultdict(list))
    positions: list[Position] = field(default_factory=list)
    launched: list[tuple[Position, Code]] = field(default_factory=list)
    _events: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code = tuple(self.program.segments[0].streams[COMPUTE])
        self._first_event = events_of(self.program)

    def event(self, *what: object) -> int:
        """The number of an event by its meaning; the first call creates it."""
        return self._events.setdefault(what, self._first_event + len(self._events))

    def block(self, name: str, size: int, kind: BlockKind = BlockKind.OTHER, *, lasts: bool = False) -> int:
        """The number of a new block."""
        self.blocks.append(AddedBlock(name, size, kind.value, lasts))
        return len(self.graph.blocks) + len(self.blocks) - 1

    def kernel(
        self, at: Position, op: str, of: str, phase: Phase, ns: int, reads: Sequence[int], writes: Sequence[int]
    ) -> Added:
        """A new kernel, in the graph's order in front of the first one that the code runs from there on.

        All but copies are of the stream of collectives.
        """
        known = {each.id for each in self.kernels}
        name = f"{op} {of}"
        name = name if name not in known else f"{name}, {phase.value}"
        is_collective = op not in COPIES
        following = self.code[at.instruction + at.behind :]
        before = next(
            (i.kernel for i in following if isinstance(i, Launch) and not i.recompute), len(self.graph.kernels)
        )
        added = AddedKernel(before, name, op, phase.value, ns, tuple(reads), tuple(writes), is_collective)
        self.kernels.append(added)
        self.positions.append(at)
        return Added(len(self.kernels) - 1)

    def launch(self, at: Position, code: Code) -> None:
        """Add code to the stream of collectives, where the host launches it."""
        self.launched.append((at, code))

    def written(
        self, how: WithCollectives, *, without: Collection[int], released: Collection[int], ending: Code
    ) -> Program:
        """The changed program. how: the changes of blocks and kernels of the graph.

        without: blocks that the program no longer acquires or releases; released: those that it no longer releases.
        ending: code at the end of the compute stream.
        """
        order = sorted(range(len(self.kernels)), key=self.positions.__getitem__)
        how = replace(how, kernels=tuple(self.kernels[n] for n in order), blocks=tuple(self.blocks))
        exchanges = with_collectives(self.graph, how)
        numbers = dict(zip(order, exchanges.added, strict=True))

        def resolved(code: Iterable[Instruction | Added]) -> Iterator[Instruction]:
            for each in code:
                yield Launch(numbers[each.kernel]) if isinstance(each, Added) else each

        def own(instruction: Instruction) -> Iterator[Instruction]:
            if isinstance(instruction, Launch):
                if (number := exchanges.kernels[instruction.kernel]) is not None:
                    yield replace(instruction, kernel=number)
            elif isinstance(instruction, Acquire | Initialize | Release):
                left_out = {*without, *released} if isinstance(instruction, Release) else without
                if blocks := tuple(b for b in instruction.blocks if b not in left_out):
                    yield type(instruction)(blocks, instruction.memory)
            else:
                yield instruction

        [segment] = self.program.segments
        streams = {stream: tuple(each for i in code for each in own(i)) for stream, code in segment.streams.items()}
        streams[COMPUTE] = (
            *(
                each
                for at, instruction in enumerate(self.code)
                for part in (resolved(self.before[at]), own(instruction), resolved(self.after[at]))
                for each in part
            ),
            *resolved(ending),
        )
        in_order = sorted(self.launched, key=lambda each: each[0])
        streams[COLLECTIVES] = tuple(each for _, code in in_order for each in resolved(code))
        ordered = dict(sorted(streams.items(), key=lambda item: item[0].rank))
        lasting = (len(self.graph.blocks) + n for n, each in enumerate(self.blocks) if each.lasts)
        return replace(
            self.program,
            segments=(Segment(ordered),),
            resident=(*(b for b in self.program.resident if b not in without), *lasting),
            transforms=(*self.program.transforms, how),
        )
