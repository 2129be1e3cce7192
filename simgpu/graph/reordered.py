"""Another order of the kernels: a transform that permutes them within their dependencies.

Like a split, it gives kernels other numbers, so it comes before transforms that name kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import in_versions
from simgpu.trace.model import RELEASED_AT_END, Block
from simgpu.trace.operators import purity


@dataclass(frozen=True, slots=True)
class Reordered:
    """Run the kernels in this order, given by their positions: see `reordered`."""

    order: tuple[int, ...]

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph of the same kernels in this order."""
        return reordered(graph, self.order)


def reordered(graph: TaskGraph, order: Sequence[int]) -> TaskGraph:
    """The same kernels in another order; blocks keep their numbers, kernels and layers their names.

    order: a permutation of the kernels' positions. A kernel comes after those that it must follow (`must_follow`). A
    block that would be released before its last use is released after it; other recorded releases stay with their
    kernel. Saved tensors and calls of modules, which lie between kernels of the recorded order, are left out. Raises
    `ProgramError` for an order that is no permutation or breaks a dependency, and for a batch in rounds.

    >>> from simgpu.trace.chain import chain
    >>> from simgpu.trace.model import Kernel, Phase
    >>> trace = chain([5, 7], [10, 14], [100, 200])
    >>> log = Kernel("log", "relu", Phase.FORWARD, 1, reads=("x2",), pure=True)
    >>> graph = TaskGraph.of(replace(trace, kernels=(*trace.kernels, log)))
    >>> [kernel.id for kernel in reordered(graph, [0, 4, 1, 2, 3]).kernels]
    ['F1', 'log', 'F2', 'B2', 'B1']
    >>> reordered(graph, [1, 0, 2, 3, 4])
    Traceback (most recent call last):
    simgpu.errors.ProgramError: the order runs kernel F2 before kernel F1, which it must follow
    """
    _check(graph, order)
    place = {graph.kernels[k].id: at for at, k in enumerate(order)}
    layers = graph.layers
    # Layers that are derived from the order of the kernels stay those of the recorded order.
    kernels = [
        replace(graph.kernels[k], start_ns=None, layer=layers.name_of(k) if layers.derived else graph.kernels[k].layer)
        for k in order
    ]
    blocks = tuple(_released(graph, b, place) for b in range(len(graph.sizes)))
    new = TaskGraph.of(replace(graph.trace, kernels=tuple(kernels), blocks=blocks, saved=(), modules=()))
    changed = replace(
        new,
        durations=tuple(graph.durations[k] for k in order),
        sizes=graph.sizes,
        copy_sizes=graph.copy_sizes,
        costs=graph.costs,
        encoded=graph.encoded,
        rescaled=graph.rescaled,
        exchanged=graph.exchanged,
        compressed=graph.compressed and graph.compressed.renumbered(order, range(len(graph.sizes))),
        compression=graph.compression,
        plain=graph.plain and reordered(graph.plain, order),
    )
    return in_versions(changed) if graph.encoded else changed


def must_follow(graph: TaskGraph) -> tuple[tuple[int, ...], ...]:
    """For each kernel, those that it must follow in any order, ascending.

    They are its predecessors in the graph, for a block that the host writes in mid-iteration the kernel for which it
    does so, and for a kernel that may draw random numbers the last such kernel before it.
    """
    follows = [list(each) for each in graph.predecessors]
    for b in sorted(graph.written_by_host):
        birth = graph.births[b]
        assert birth is not None, "the host writes it"
        for k in graph.uses[b]:
            if k != birth:
                follows[k].append(birth)
    last: int | None = None
    for k, kernel in enumerate(graph.kernels):
        # An operator that changes its operands in place is not pure, but the blocks that it writes already order it.
        if kernel.pure is not True and purity(kernel.op) is not True:
            if last is not None:
                follows[k].append(last)
            last = k
    return tuple(tuple(sorted(set(each))) for each in follows)


def _check(graph: TaskGraph, order: Sequence[int]) -> None:
    if len(graph.rounds) != 1 or graph.rounds[0].repeat != 1:
        raise ProgramError("the batch runs in rounds, and kernels are reordered in an undivided iteration only")
    count = len(graph.kernels)
    if sorted(order) != list(range(count)):
        raise ProgramError(f"the order is no permutation of the {count} kernels: name each position from 0 once")
    place = [0] * count
    for at, k in enumerate(order):
        place[k] = at
    for k, before in enumerate(must_follow(graph)):
        for other in before:
            if place[other] > place[k]:
                one, two = graph.kernels[k].id, graph.kernels[other].id
                raise ProgramError(f"the order runs kernel {one} before kernel {two}, which it must follow")


def _released(graph: TaskGraph, b: int, place: dict[str, int]) -> Block:
    """The block, released not before its last use in the new order."""
    block = graph.blocks[b]
    if block.release is None or block.release == RELEASED_AT_END:
        return block
    uses = [graph.kernels[k].id for k in graph.uses[b]]
    return replace(block, release=max((*uses, block.release), key=place.__getitem__))
