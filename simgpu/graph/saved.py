"""Which tensors autograd saves for backward, when, and how long anybody else holds their memory.

Lives here: reading that off a trace that recorded it (`simgpu.trace.model.SavedTensor`), and deriving it from what
backward kernels read where a trace did not. Does not live here: what a policy does with saved tensors.

Where it is derived: a backward kernel reads what its forward saved, so every layer whose backward reads a block that
was there in forward has saved it once, whole, after the block's last use in forward; nobody else holds the block any
longer than that.
"""

from __future__ import annotations

from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import RELEASED_AT_END, Phase


class Saved(NamedTuple):
    """One saved tensor; kernels and blocks are positions.

    bytes: of the tensor, which may differ from those of its block. after: the kernel that ran last before it was saved,
    -1 for none. before: the kernel that ran first after backward took it back. dropped: the kernel after whose end
    nobody but autograd holds the block; None where somebody does to the iteration's end, as for every weight.
    """

    block: int
    bytes: int
    after: int
    before: int
    dropped: int | None


class SavedTensors(NamedTuple):
    """In the order in which they were saved. recorded: whether the trace told them, or they are derived."""

    tensors: tuple[Saved, ...]
    recorded: bool


def saved_tensors(graph: TaskGraph) -> SavedTensors:
    """The saved tensors of an iteration that backward takes back.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> found = saved_tensors(graph)
    >>> for each in found.tensors:
    ...     print(graph.blocks[each.block].id, each.after, each.before, each.dropped)
    x1 0 3 None
    x2 1 2 1
    x3 1 2 1
    """
    if not graph.trace.saved:
        return SavedTensors(_derived(graph), recorded=False)
    number = graph.kernel_number
    found = []
    for each in graph.trace.saved:
        if each.before is None:
            continue
        block = graph.block(each.block)
        dropped = _dropped(graph, block) if each.dropped is None else number.get(each.dropped)
        if graph.blocks[block].persistent or each.dropped == RELEASED_AT_END:
            dropped = None
        found.append(
            Saved(block, each.bytes, -1 if each.after is None else number[each.after], number[each.before], dropped)
        )
    return SavedTensors(tuple(found), recorded=True)


def _derived(graph: TaskGraph) -> tuple[Saved, ...]:
    found: dict[tuple[int, str | int], Saved] = {}
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is not Phase.BACKWARD:
            continue
        for b in graph.reads[k]:
            last = _last_forward_use(graph, b)
            if last is not None:
                layer = k if kernel.layer is None else kernel.layer
                found.setdefault((b, layer), Saved(b, graph.sizes[b], last, k, _dropped(graph, b)))
    return tuple(sorted(found.values(), key=lambda each: (each.after, -each.before, each.block)))


def _dropped(graph: TaskGraph, b: int) -> int | None:
    return None if graph.blocks[b].persistent else _last_forward_use(graph, b)


def _last_forward_use(graph: TaskGraph, b: int) -> int | None:
    return max((k for k in graph.uses[b] if graph.kernels[k].phase is Phase.FORWARD), default=None)
