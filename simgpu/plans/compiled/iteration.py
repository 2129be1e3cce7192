"""The iteration that a compiled model runs for another split of its graph, as a trace, operator by operator.

It starts from a recorded iteration and the split that this ran. Kernels of the new split are those of the recorded one,
with new blocks where backward runs them again. A graph runs as PyTorch's code for it does (`torch.fx`): memory is freed
after the last operator that uses it in any view. Forward's results and what it saves are held; backward holds what it
is given until its last use there. What runs before, between and after the two graphs, such as the loss and the
optimizer, is as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from simgpu.errors import SimgpuError
from simgpu.plans.compiled.graph import Call, Graph, graph_of
from simgpu.plans.compiled.partitions import Split
from simgpu.recorder.layers import LOSS
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace

#: Mark of what backward recomputes, behind its name.
AGAIN = "~again"


class Planned(NamedTuple):
    """trace: the iteration with another split. memory: by the id of a block that its graphs make, the memory it is.
    first, second: the positions of forward's first kernel, and of backward's. graphs: the two graphs. results: the
    memory of the model's results."""

    trace: Trace
    memory: Mapping[str, str]
    first: int
    second: int
    graphs: tuple[Graph, Graph]
    results: frozenset[str]

    @property
    def again(self) -> tuple[str, ...]:
        """The nodes whose kernels run in forward and again in backward, in backward's order."""
        forward, backward = self.graphs
        return tuple(call.node for call in backward.calls if call.node in forward.place)


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


@dataclass(frozen=True)
class CompiledIteration:
    """A recorded iteration of a compiled model, and the split that it ran."""

    trace: Trace
    split: Split

    @cached_property
    def forward(self) -> Side:
        """Forward's graph in the recorded iteration."""
        return self._side(graph_of(self.split.forward), 0)

    @cached_property
    def backward(self) -> Side:
        """Backward's graph in the recorded iteration."""
        return self._side(graph_of(self.split.backward, self.forward.graph.root), self.forward.stop)

    def planned(self, split: Split) -> Planned:
        """The iteration with another split."""
        return _Splicing(self, split).planned()

    def runs(self, node: str) -> bool:
        """Whether a node's kernel is in the recorded iteration."""
        return node in self.forward.graph.place or node in self.backward.graph.place

    def time_ns(self, node: str) -> int:
        """The time of a node's kernel in the recorded iteration."""
        return self.kernel(node, self.forward).duration_ns

    def kernel(self, node: str, first: Side) -> Kernel:
        """The recorded kernel of a node, that of one graph if it runs in both."""
        other = self.backward if first is self.forward else self.forward
        side, place = next((s, p) for s in (first, other) if (p := s.graph.place.get(node)) is not None)
        return self.trace.kernels[side.first + place]

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


class _Splicing:
    """Writes the trace of a new split. Positions are those of kernels; their number stands for the iteration's end."""

    def __init__(self, recorded: CompiledIteration, split: Split) -> None:
        self.recorded, self.old = recorded, recorded.trace
        self.blocks = recorded.trace.block_by_id
        self.old_place = {kernel.id: k for k, kernel in enumerate(recorded.trace.kernels)}
        self.first, self.second = recorded.forward, recorded.backward
        self.forward = graph_of(split.forward)
        self.backward = graph_of(split.backward, self.forward.root)
        self.given = split.given
        self.results = self.forward.results[: len(self.forward.results) - len(split.saved)]
        self.kernels: list[Kernel] = []
        #: By the id of a block that a graph makes, the recorded block that it is like.
        self.made: dict[str, Block] = {}
        #: Ids of blocks, by the memory of each graph.
        self.forward_ids: dict[str, str] = {**self.second.made, **self.first.block}
        self.backward_ids: dict[str, str] = {}

    def planned(self) -> Planned:
        """The new iteration."""
        old = self.old.kernels
        self.kernels += old[: self.first.first]
        forward_first = len(self.kernels)
        for call in self.forward.calls:
            self._run(call, self.recorded.kernel(call.node, self.first), self.forward_ids, Phase.FORWARD, "")
        self.kernels += old[self.first.stop : self.second.first]
        backward_first = len(self.kernels)
        self._name_backward()
        for call in self.backward.calls:
            mark = AGAIN if self._is_new_copy(call.node) else ""
            self._run(call, self.recorded.kernel(call.node, self.second), self.backward_ids, Phase.BACKWARD, mark)
        self.kernels += old[self.second.stop :]
        ends = self._ends(forward_first, backward_first)
        named = [*self.backward_ids.items(), *self.forward_ids.items()]
        memory = {name: each for each, name in named if name in self.made}
        trace = replace(
            self.old,
            kernels=tuple(self.kernels),
            blocks=tuple(self._blocks(ends)),
            saved=(),
            modules=(),
            algorithms=(),
            sparsity=(),
            compressibility=(),
            accesses=(),
        )
        results = frozenset(filter(None, self.results))
        return Planned(trace, memory, forward_first, backward_first, (self.forward, self.backward), results)

    def _is_new_copy(self, node: str) -> bool:
        """Whether backward runs a node again that it did not run in the recorded iteration."""
        return node in self.forward.place and node not in self.second.graph.place

    def _name_backward(self) -> None:
        """Names backward's memory: what forward saved, the gradients it is given, and what it makes."""
        for name in self.given:
            memory = self.backward.root.get(name, name)
            known = (self.forward_ids if name in self.forward.root else self.second.block).get(memory)
            if known is not None:
                self.backward_ids[memory] = known
        for call in self.backward.calls:
            for memory in call.writes:
                if self._is_new_copy(call.node):
                    name = f"{self.forward_ids[memory]}{AGAIN}"
                else:
                    name = self.second.made.get(memory) or self.first.block[memory]
                self.backward_ids.setdefault(memory, name)

    def _run(self, call: Call, kernel: Kernel, ids: Mapping[str, str], phase: Phase, mark: str) -> None:
        scratch = [each for each in kernel.writes if self.blocks[each].kind is BlockKind.WORKSPACE]
        made = [ids[memory] for memory in call.writes] + [f"{each}{mark}" for each in scratch]
        for name in made:
            like = self.blocks[name.removesuffix(AGAIN)]
            if not like.persistent:
                self.made.setdefault(name, like)
        reads = tuple(dict.fromkeys(ids[memory] for memory in call.reads))
        writes = tuple(dict.fromkeys(made))
        self.kernels.append(replace(kernel, id=f"{kernel.id}{mark}", phase=phase, reads=reads, writes=writes))

    def _ends(self, forward_first: int, backward_first: int) -> dict[str, int]:
        """By block, the position of the kernel after which it is freed."""
        ends: dict[str, int] = {}

        def end(name: str, place: int) -> None:
            ends[name] = max(ends.get(name, -1), place)

        self.place = {kernel.id: k for k, kernel in enumerate(self.kernels)}
        for k, kernel in enumerate(self.kernels):
            for name in kernel.writes:
                if self.made.get(name) is not None and self.made[name].kind is BlockKind.WORKSPACE:
                    end(name, k)
        for graph, ids, first in (
            (self.forward, self.forward_ids, forward_first),
            (self.backward, self.backward_ids, backward_first),
        ):
            for memory, last in graph.last.items():
                if memory in ids:
                    end(ids[memory], first + last)
        for memory in filter(None, self.results):
            if memory in self.forward_ids:
                end(self.forward_ids[memory], self._held_outside(self.forward_ids[memory]))
        for memory in filter(None, self.backward.results):
            if memory in self.backward_ids:
                end(self.backward_ids[memory], self._moved(self.blocks[self.backward_ids[memory]].release))
        for name in filter(self._is_held, set(self.backward_ids.values())):
            end(name, backward_first + len(self.backward.calls) - 1)
        return ends

    def _is_held(self, name: str) -> bool:
        """Whether a block was freed when backward's graph had run, not after its last use.

        So PyTorch 2.11 and 2.12 treat the gradients that they give to the graph.
        """
        block, last = self.blocks.get(name), self.second.stop - 1
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
        sides = self.first, self.second
        of_graphs = {name for side in sides for name in (*side.made.values(), *self._scratch(side))}
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
        return any(side.first <= place < side.stop for side in (self.first, self.second))

    def _id(self, place: int) -> str:
        return RELEASED_AT_END if place >= len(self.kernels) else self.kernels[max(place, 0)].id
