"""Which tensors autograd saves for backward, when, and how long anybody else holds their memory.

Where it is derived: a backward kernel reads what its forward saved, so every layer whose backward reads a block that
was there in forward has saved it once, whole. An operator saves what it reads just before it runs, and what it makes
just after; where no kernel of the layer touches the block in forward, it counts as saved after its last use there.
Nobody but autograd holds it beyond that last use, unless the recording says that it was held to the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
    x1 -1 3 None
    x2 0 2 1
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
        last = _last_forward_use(graph, block)
        dropped = _dropped(graph, block, last) if each.dropped is None else number.get(each.dropped)
        if graph.blocks[block].persistent or each.dropped == RELEASED_AT_END:
            dropped = None
        after = -1 if each.after is None else number[each.after]
        # What the host puts there for a kernel cannot leave before it is there.
        after = max(after, graph.births[block] or 0) if graph.blocks[block].born is not None else after
        found.append(Saved(block, each.bytes, after, number[each.before], dropped))
    return SavedTensors(tuple(found), recorded=True)


def readers(graph: TaskGraph, tensors: Sequence[Saved]) -> tuple[tuple[int, ...], ...]:
    """For each saved tensor the kernels of backward that read it, ascending.

    A kernel that reads a block in the version that was saved reads the tensor of it that was taken back last, all of
    them where several were taken back at once. What a kernel also changes it does not read as a saved tensor.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> readers(graph, saved_tensors(graph).tensors)
    ((3,), (2,), (2,))
    """
    of_block: defaultdict[int, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        of_block[tensor.block].append(number)
    found: list[list[int]] = [[] for _ in tensors]
    for b, numbers in of_block.items():
        version = {number: _version_after(graph, b, tensors[number].after) for number in numbers}
        for k in graph.uses[b]:
            if graph.kernels[k].phase is Phase.BACKWARD and b in graph.reads[k] and b not in graph.writes[k]:
                read = graph.read_versions[k][graph.reads[k].index(b)]
                taken = [number for number in numbers if tensors[number].before <= k and version[number] == read]
                last = max((tensors[number].before for number in taken), default=None)
                for number in taken:
                    if tensors[number].before == last:
                        found[number].append(k)
    return tuple(map(tuple, found))


def ends(graph: TaskGraph, tensors: Sequence[Saved]) -> tuple[int, ...]:
    """For each saved tensor the kernel with which the operator of backward that took it back is done with all it took.

    An operator takes back all that it saved at once, and holds it while it runs; the last kernel that reads any of it
    is as far as this is known.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> ends(graph, saved_tensors(graph).tensors)
    (3, 2, 2)
    """
    last: dict[int, int] = {}
    for tensor, kernels in zip(tensors, readers(graph, tensors), strict=True):
        last[tensor.before] = max(last.get(tensor.before, tensor.before), *kernels[-1:], -1)
    return tuple(last[tensor.before] for tensor in tensors)


def _version_after(graph: TaskGraph, b: int, k: int) -> int:
    """The version of a block when kernel k has ended."""
    return sum(b in graph.writes[u] for u in graph.uses[b] if u <= k)


def _derived(graph: TaskGraph) -> tuple[Saved, ...]:
    found: dict[tuple[int, str | int, int], Saved] = {}
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is not Phase.BACKWARD:
            continue
        for b in graph.reads[k]:
            forward = [u for u in graph.uses[b] if u < k and graph.kernels[u].phase is Phase.FORWARD]
            if forward:
                after = _saved_after(graph, b, forward, kernel.layer)
                layer = k if kernel.layer is None else kernel.layer
                found.setdefault((b, layer, after), Saved(b, graph.sizes[b], after, k, _dropped(graph, b, forward[-1])))
    return tuple(sorted(found.values(), key=lambda each: (each.after, -each.before, each.block)))


def _saved_after(graph: TaskGraph, b: int, forward: Sequence[int], layer: str | None) -> int:
    """The kernel after which a layer saved a block. forward: the kernels of forward that touch it."""
    own = [u for u in forward if layer is not None and graph.kernels[u].layer == layer]
    if not own:
        return forward[-1]
    # What is changed after it was saved is no longer what backward reads, so the last change is the earliest moment.
    there = forward[0] if graph.blocks[b].born is not None else -1
    changed = max((u for u in forward if b in graph.writes[u]), default=there)
    return max(own[-1] if b in graph.writes[own[-1]] else own[-1] - 1, changed)


def _dropped(graph: TaskGraph, b: int, last: int | None) -> int | None:
    held = graph.blocks[b].persistent or graph.recorded_releases[b] is None
    return None if held else last


def _last_forward_use(graph: TaskGraph, b: int) -> int | None:
    return max((k for k in graph.uses[b] if graph.kernels[k].phase is Phase.FORWARD), default=None)
