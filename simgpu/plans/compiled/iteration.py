"""The iteration that a compiled model runs for another split of its graph, as a trace, operator by operator.

It starts from a recorded iteration and the split that this ran. Kernels of the new split are those of the recorded one,
with new blocks where backward runs them again. A graph runs as PyTorch's code for it does (`torch.fx`): memory is freed
after the last operator that uses it in any view. Forward's results and what it saves are held; backward holds what it
is given until its last use there. What runs before, between and after the two graphs, such as the loss and the
optimizer, is as recorded. In a step of several micro-batches both graphs run once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from simgpu.errors import SimgpuError
from simgpu.plans.compiled.graph import Call, Graph, graph_of
from simgpu.plans.compiled.partitions import Split
from simgpu.recorder.layers import LOSS
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace

#: Mark of what backward recomputes, behind its name.
AGAIN = "~again"


class PlannedPass(NamedTuple):
    """A run of the two graphs. memory: by the id of a block that they make, the memory it is. first, second: the
    positions of forward's first kernel, and of backward's."""

    memory: Mapping[str, str]
    first: int
    second: int


class Planned(NamedTuple):
    """trace: the iteration with another split. passes: the runs of its graphs, one for each micro-batch. graphs: the
    two graphs. results: the memory of the model's results."""

    trace: Trace
    passes: tuple[PlannedPass, ...]
    graphs: tuple[Graph, Graph]
    results: frozenset[str]

    @property
    def again(self) -> tuple[str, ...]:
        """The nodes whose kernels run in forward and again in backward, in backward's order."""
        forward, backward = self.graphs
        return tuple(call.node for call in backward.calls if call.node in forward.place)

    def pass_at(self, place: int) -> PlannedPass:
        """The run of the graphs that has begun last where a kernel runs; before all of them, the first one."""
        return next((each for each in reversed(self.passes) if each.first <= place), self.passes[0])


@dataclass(frozen=True)
class Side:
    """A graph in the recorded iteration. first: the position of its first kernel. block: by memory of the graph, the id
    of the block."""

    graph: Graph
    first: int
    block: dict[str, str]

    @property
    def stop(self) -> int:
        """The position behind its last kernel."""
        return self.first + len(self.graph.calls)

    @cached_property
    def made(self) -> dict[str, str]:
        """The blocks of memory that its kernels make or change, by memory."""
        return {memory: self.block[memory] for call in self.graph.calls for memory in call.writes}


class Pass(NamedTuple):
    """A run of the two graphs in the recorded iteration."""

    forward: Side
    backward: Side

    def kernel(self, trace: Trace, node: str, first: Side) -> Kernel:
        """The recorded kernel of a node, that of one graph if it runs in both."""
        other = self.backward if first is self.forward else self.forward
        side, place = next((s, p) for s in (first, other) if (p := s.graph.place.get(node)) is not None)
        return trace.kernels[side.first + place]


@dataclass(frozen=True)
class CompiledIteration:
    """A recorded iteration of a compiled model, and the split that it ran. micro_batches: how often it ran that."""

    trace: Trace
    split: Split
    micro_batches: int

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The runs of the graphs, one for each micro-batch."""
        forward = graph_of(self.split.forward)
        backward = graph_of(self.split.backward, forward.root)
        result: list[Pass] = []
        for _ in range(self.micro_batches):
            first = self._side(forward, result[-1].backward.stop if result else 0)
            result.append(Pass(first, self._side(backward, first.stop)))
        return tuple(result)

    def planned(self, split: Split) -> Planned:
        """The iteration with another split."""
        return _Splicing(self, split).planned()

    def runs(self, node: str) -> bool:
        """Whether a node's kernel is in the recorded iteration."""
        return any(node in side.graph.place for side in self.passes[0])

    def time_ns(self, node: str) -> int:
        """The time of a node's kernels in the recorded iteration, of one for each micro-batch."""
        return sum(each.kernel(self.trace, node, each.forward).duration_ns for each in self.passes)

    def _side(self, graph: Graph, begin: int) -> Side:
        """Finds a graph among the recorded kernels, and its memory among their blocks."""
        ops = [call.op for call in graph.calls]
        kernels, all_ops = self.trace.kernels, [kernel.op for kernel in self.trace.kernels]
        first = next((k for k in range(begin, len(kernels)) if all_ops[k : k + len(ops)] == ops), None)
        if first is None:
            raise SimgpuError("the recorded iteration does not have the operators of its graph")
        block: dict[str, str] = {}
        blocks = self.trace.block_by_id
        for call, kernel in zip(graph.calls, kernels[first : first + len(ops)], strict=True):
            made = [each for each in kernel.writes if blocks[each].kind is not BlockKind.WORKSPACE]
            if len(call.reads) != len(kernel.reads) or len(call.writes) != len(made):
                raise SimgpuError(f"{call.node} of the graph accesses other memory than {kernel.id} of the recording")
            for memory, name in (*zip(call.reads, kernel.reads, strict=True), *zip(call.writes, made, strict=True)):
                if block.setdefault(memory, name) != name:
                    raise SimgpuError(f"memory {memory} of the graph is two blocks of the recording")
        return Side(graph, first, block)


class _SplicedPass:
    """Writes one run of a new split's graphs in place of a recorded one."""

    def __init__(self, splicing: _Splicing, recorded: Pass) -> None:
        self.splicing, self.recorded = splicing, recorded
        self.first, self.second = recorded
        #: Positions of the first kernels of forward and backward in the new iteration.
        self.begins: list[int] = []
        #: Ids of blocks, by the memory of each graph.
        self.forward_ids: dict[str, str] = {**self.second.made, **self.first.block}
        self.backward_ids: dict[str, str] = {}

    def write(self, begin: int) -> int:
        """Adds the recorded kernels from a position on and those of the new graphs; returns where the pass ends."""
        splicing = self.splicing
        kernels, old = splicing.kernels, splicing.old
        kernels += old.kernels[begin : self.first.first]
        self.begins.append(len(kernels))
        for call in splicing.forward.calls:
            kernel = self.recorded.kernel(old, call.node, self.first)
            self._run(call, kernel, self.forward_ids, Phase.FORWARD, "")
        kernels += old.kernels[self.first.stop : self.second.first]
        self.begins.append(len(kernels))
        self._name_backward()
        for call in splicing.backward.calls:
            mark = AGAIN if self._is_new_copy(call.node) else ""
            kernel = self.recorded.kernel(old, call.node, self.second)
            self._run(call, kernel, self.backward_ids, Phase.BACKWARD, mark)
        return self.second.stop

    @property
    def planned(self) -> PlannedPass:
        """Where the pass is, and what its blocks are."""
        named = [*self.backward_ids.items(), *self.forward_ids.items()]
        memory = {name: each for each, name in named if name in self.splicing.made}
        return PlannedPass(memory, *self.begins)

    def _is_new_copy(self, node: str) -> bool:
        """Whether backward runs a node again that it did not run in the recorded iteration."""
        return node in self.splicing.forward.place and node not in self.second.graph.place

    def _name_backward(self) -> None:
        """Names backward's memory: what forward saved, the gradients it is given, and what it makes."""
        forward, backward = self.splicing.forward, self.splicing.backward
        for name in self.splicing.given:
            memory = backward.root.get(name, name)
            known = (self.forward_ids if name in forward.root else self.second.block).get(memory)
            if known is not None:
                self.backward_ids[memory] = known
        for call in backward.calls:
            for memory in call.writes:
                if self._is_new_copy(call.node):
                    name = f"{self.forward_ids[memory]}{AGAIN}"
                else:
                    name = self.second.made.get(memory) or self.first.block[memory]
                self.backward_ids.setdefault(memory, name)

    def _run(self, call: Call, kernel: Kernel, ids: Mapping[str, str], phase: Phase, mark: str) -> None:
        blocks = self.splicing.blocks
        scratch = [each for each in kernel.writes if blocks[each].kind is BlockKind.WORKSPACE]
        made = [ids[memory] for memory in call.writes] + [f"{each}{mark}" for each in scratch]
        for name in made:
            like = blocks[name.removesuffix(AGAIN)]
            if not like.persistent:
                self.splicing.made.setdefault(name, like)
        reads = tuple(dict.fromkeys(ids[memory] for memory in call.reads))
        writes = tuple(dict.fromkeys(made))
        self.splicing.kernels.append(replace(kernel, id=f"{kernel.id}{mark}", phase=phase, reads=reads, writes=writes))


class _Splicing:
    """Writes the trace of a new split. Positions are those of kernels; their number stands for the iteration's end."""

    def __init__(self, recorded: CompiledIteration, split: Split) -> None:
        self.recorded, self.old = recorded, recorded.trace
        self.blocks = recorded.trace.block_by_id
        self.old_place = {kernel.id: k for k, kernel in enumerate(recorded.trace.kernels)}
        self.forward = graph_of(split.forward)
        self.backward = graph_of(split.backward, self.forward.root)
        self.given = split.given
        self.results = self.forward.results[: len(self.forward.results) - len(split.saved)]
        self.kernels: list[Kernel] = []
        #: By the id of a block that a graph makes, the recorded block that it is like.
        self.made: dict[str, Block] = {}
        self.passes = [_SplicedPass(self, each) for each in recorded.passes]

    def planned(self) -> Planned:
        """The new iteration."""
        stop = 0
        for each in self.passes:
            stop = each.write(stop)
        self.kernels += self.old.kernels[stop:]
        trace = replace(
            self.old,
            kernels=tuple(self.kernels),
            blocks=tuple(self._blocks(self._ends())),
            saved=(),
            modules=(),
            algorithms=(),
            sparsity=(),
            compressibility=(),
            accesses=(),
        )
        passes = tuple(each.planned for each in self.passes)
        return Planned(trace, passes, (self.forward, self.backward), frozenset(filter(None, self.results)))

    def _ends(self) -> dict[str, int]:
        """By block, the position of the kernel after which it is freed."""
        ends: dict[str, int] = {}

        def end(name: str, place: int) -> None:
            ends[name] = max(ends.get(name, -1), place)

        self.place = {kernel.id: k for k, kernel in enumerate(self.kernels)}
        for k, kernel in enumerate(self.kernels):
            for name in kernel.writes:
                if self.made.get(name) is not None and self.made[name].kind is BlockKind.WORKSPACE:
                    end(name, k)
        for each in self.passes:
            for name, place in self._ends_of(each):
                end(name, place)
        return ends

    def _ends_of(self, each: _SplicedPass) -> Iterator[tuple[str, int]]:
        """Positions up to which a pass holds its blocks."""
        for graph, ids, first in zip(
            (self.forward, self.backward), (each.forward_ids, each.backward_ids), each.begins, strict=True
        ):
            for memory, last in graph.last.items():
                if memory in ids:
                    yield ids[memory], first + last
        for memory in filter(None, self.results):
            if memory in each.forward_ids:
                yield each.forward_ids[memory], self._held_outside(each.forward_ids[memory])
        for memory in filter(None, self.backward.results):
            if memory in each.backward_ids:
                yield each.backward_ids[memory], self._moved(self.blocks[each.backward_ids[memory]].release)
        for name in set(each.backward_ids.values()):
            if self._is_held(name, each.second.stop - 1):
                yield name, each.begins[1] + len(self.backward.calls) - 1

    def _is_held(self, name: str, last: int) -> bool:
        """Whether a block was freed when backward's graph had run its last kernel, not after its own last use.

        So PyTorch 2.11 and 2.12 treat the gradients that they give to the graph.
        """
        block = self.blocks.get(name)
        return block is not None and block.release == self.old.kernels[last].id and not self._is_last_use(name, last)

    def _is_last_use(self, name: str, place: int) -> bool:
        kernel = self.old.kernels[place]
        return name in (*kernel.reads, *kernel.writes)

    def _held_outside(self, name: str) -> int:
        """Where the last reference to a result of the model is dropped that is none of the graphs'."""
        block = self.blocks[name]
        rows = [row for row in self.old.saved if row.block == name]
        if all(row.layer == LOSS for row in rows):
            return self._moved(block.release)
        outside = [row.freed_after for row in rows if row.layer == LOSS] + [rows[0].released_after]
        return max(map(self._moved, outside))

    def _moved(self, kernel: str | None) -> int:
        """The new position of a recorded kernel; of one that no longer runs, that of the last one before it."""
        if kernel is None or kernel == RELEASED_AT_END:
            return len(self.kernels)
        ids = (self.old.kernels[k].id for k in range(self.old_place[kernel], -1, -1))
        return next((self.place[before] for before in ids if before in self.place), -1)

    def _blocks(self, ends: Mapping[str, int]) -> Iterator[Block]:
        of_graphs = {name for side in self._sides for name in (*side.made.values(), *self._scratch(side))}
        for block in self.old.blocks:
            if block.id in of_graphs and not block.persistent:
                continue
            if not block.persistent and block.id in ends and self._is_in_graphs(block.release):
                block = replace(block, release=self._id(ends[block.id]))
            yield block
        for name, like in self.made.items():
            yield replace(like, id=name, release=self._id(ends[name]))

    def _scratch(self, side: Side) -> Iterator[str]:
        for kernel in self.old.kernels[side.first : side.stop]:
            yield from (each for each in kernel.writes if self.blocks[each].kind is BlockKind.WORKSPACE)

    def _is_in_graphs(self, release: str | None) -> bool:
        place = self.old_place.get(release or "", -1)
        return any(side.first <= place < side.stop for side in self._sides)

    @property
    def _sides(self) -> Iterator[Side]:
        return chain.from_iterable(self.recorded.passes)

    def _id(self, place: int) -> str:
        return RELEASED_AT_END if place >= len(self.kernels) else self.kernels[max(place, 0)].id
