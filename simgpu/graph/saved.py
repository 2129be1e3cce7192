"""What forward saves for backward: the tensors that autograd saves, and the feature maps that a policy may offload.

Where saved tensors are not recorded they are derived. A backward kernel reads what its forward saved, so every layer
whose backward reads a block that existed in forward has saved it once, in full. An operator saves its inputs just
before it runs and its results just after; where no kernel of the layer touches the block in forward, it counts as saved
after its last use there. Only autograd holds it beyond that last use, unless the recording says it was held to the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import RELEASED_AT_END, BlockKind, Phase


class Saved(NamedTuple):
    """One saved tensor; kernels and blocks are positions.

    bytes: of the tensor, which may differ from those of its block. after: the kernel that ran last before it was saved,
    -1 for none. before: the kernel that ran first after backward took it back. dropped: the kernel after whose end
    nobody but autograd holds the block; None where somebody does to the iteration's end, as for every weight. unused:
    the kernel after whose end the operator of backward had dropped what it took back. freed: the kernel after whose end
    autograd freed what it had saved. Both None where that was not recorded.
    """

    block: int
    bytes: int
    after: int
    before: int
    dropped: int | None
    unused: int | None = None
    freed: int | None = None


class SavedTensors(NamedTuple):
    """In the order in which they were saved. recorded: whether the trace lists them; otherwise they are derived."""

    tensors: tuple[Saved, ...]
    recorded: bool


def saved_tensors(graph: TaskGraph) -> SavedTensors:
    """The saved tensors of an iteration that backward takes back.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> saved = saved_tensors(graph)
    >>> for each in saved.tensors:
    ...     print(graph.blocks[each.block].id, each.after, each.before, each.dropped)
    x1 -1 3 None
    x2 0 2 1
    x3 1 2 1
    """
    if not graph.trace.saved:
        return SavedTensors(_derived(graph), recorded=False)
    number = graph.kernel_number
    saved = []
    for each in graph.trace.saved:
        if each.unpacked_before is None:
            continue
        block = graph.block(each.block)
        last = _last_forward_use(graph, block)
        dropped = _dropped(graph, block, last) if each.released_after is None else number.get(each.released_after)
        if graph.blocks[block].persistent or each.released_after == RELEASED_AT_END:
            dropped = None
        after = -1 if each.packed_after is None else number[each.packed_after]
        # A tensor that the host initializes for a kernel cannot be offloaded before that.
        after = max(after, graph.births[block] or 0) if graph.blocks[block].host_write is not None else after
        names = (each.unused_after, each.freed_after)
        ends = (None if name is None else number.get(name, len(graph.kernels) - 1) for name in names)
        saved.append(Saved(block, each.bytes, after, number[each.unpacked_before], dropped, *ends))
    return SavedTensors(tuple(saved), recorded=True)


def readers(graph: TaskGraph, tensors: Sequence[Saved]) -> tuple[tuple[int, ...], ...]:
    """For each saved tensor the kernels of backward that read it, ascending.

    A kernel that reads a block in its saved version reads the tensor that backward took back last, or all of them where
    it took back several at once. A block that the kernel also changes is not read as a saved tensor.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> readers(graph, saved_tensors(graph).tensors)
    ((3,), (2,), (2,))
    """
    of_block: defaultdict[int, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        of_block[tensor.block].append(number)
    kernels: list[list[int]] = [[] for _ in tensors]
    for b, numbers in of_block.items():
        version = {number: _version_after(graph, b, tensors[number].after) for number in numbers}
        for k in graph.uses[b]:
            if graph.kernels[k].phase is Phase.BACKWARD and b in graph.reads[k] and b not in graph.writes[k]:
                read = graph.read_versions[k][graph.reads[k].index(b)]
                there = [number for number in numbers if _is_there(tensors[number], k)]
                saved = [number for number in there if version[number] == read]
                last = max((tensors[number].before for number in saved), default=None)
                for number in saved:
                    if tensors[number].before == last:
                        kernels[number].append(k)
    return tuple(map(tuple, kernels))


def _is_there(tensor: Saved, k: int) -> bool:
    """Whether backward has taken a tensor back before kernel k, and not freed it."""
    return tensor.before <= k and (tensor.freed is None or k <= tensor.freed)


def backward_ends(graph: TaskGraph, tensors: Sequence[Saved]) -> tuple[int, ...]:
    """For each saved tensor, the kernel after whose end the backward operator that took it back drops it.

    An operator takes back all of its saved tensors at once and holds them while it runs. Where it was not recorded when
    it drops them, that is after the last kernel that reads any of them.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> backward_ends(graph, saved_tensors(graph).tensors)
    (3, 2, 2)
    """
    last: dict[int, int] = {}
    for tensor, kernels in zip(tensors, readers(graph, tensors), strict=True):
        last[tensor.before] = max(last.get(tensor.before, tensor.before), *kernels[-1:], -1)
    return tuple(last[tensor.before] if tensor.unused is None else tensor.unused for tensor in tensors)


def autograd_ends(graph: TaskGraph, tensors: Sequence[Saved]) -> tuple[int, ...]:
    """For each saved tensor, the kernel after whose end autograd frees it, which may be after `backward_ends`: it first
    sums the operator's gradients to the shapes of its inputs.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> autograd_ends(graph, saved_tensors(graph).tensors)
    (3, 2, 2)
    """
    ends = backward_ends(graph, tensors)
    return tuple(end if each.freed is None else each.freed for each, end in zip(tensors, ends, strict=True))


def _version_after(graph: TaskGraph, b: int, k: int) -> int:
    """The version of a block when kernel k has ended."""
    return sum(b in graph.writes[u] for u in graph.uses[b] if u <= k)


def _derived(graph: TaskGraph) -> tuple[Saved, ...]:
    saved: dict[tuple[int, str | int, int], Saved] = {}
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is not Phase.BACKWARD:
            continue
        for b in graph.reads[k]:
            forward = [u for u in graph.uses[b] if u < k and graph.kernels[u].phase is Phase.FORWARD]
            if forward:
                after = _saved_after(graph, b, forward, kernel.layer)
                layer = k if kernel.layer is None else kernel.layer
                saved.setdefault((b, layer, after), Saved(b, graph.sizes[b], after, k, _dropped(graph, b, forward[-1])))
    return tuple(sorted(saved.values(), key=lambda each: (each.after, -each.before, each.block)))


def _saved_after(graph: TaskGraph, b: int, forward: Sequence[int], layer: str | None) -> int:
    """The kernel after which a layer saved a block. forward: the kernels of forward that touch it."""
    own = [u for u in forward if layer is not None and graph.kernels[u].layer == layer]
    if not own:
        return forward[-1]
    # Backward reads the value after the last change, so the block was not saved before it.
    there = forward[0] if graph.blocks[b].host_write is not None else -1
    changed = max((u for u in forward if b in graph.writes[u]), default=there)
    return max(own[-1] if b in graph.writes[own[-1]] else own[-1] - 1, changed)


def _dropped(graph: TaskGraph, b: int, last: int | None) -> int | None:
    held = graph.blocks[b].persistent or graph.recorded_releases[b] is None
    return None if held else last


def _last_forward_use(graph: TaskGraph, b: int) -> int | None:
    return max((k for k in graph.uses[b] if graph.kernels[k].phase is Phase.FORWARD), default=None)


_ALL_SAVED = ("saved activations",)
#: Kinds of blocks that live through forward and backward but are neither feature maps nor saved with one.
_NO_ACTIVATIONS = {
    BlockKind.INPUT,
    BlockKind.LABEL,
    BlockKind.WEIGHT,
    BlockKind.WEIGHT_GRADIENT,
    BlockKind.OPTIMIZER_STATE,
    BlockKind.GRADIENT,
    BlockKind.WORKSPACE,
}

#: Blocks below this part of all bytes saved for backward are not worth a decision (the statistics of a batch norm).
SMALLEST_PART = 10_000


class Activation(NamedTuple):
    """A block that is saved for backward.

    after: its last kernel in forward; before: its next use. out_with: the kernel at whose start an offload may be
    issued, overlapped with its last reader's layer step; None where that reader also completes the block.
    """

    block: int
    after: int
    before: int
    out_with: int | None


def activations(graph: TaskGraph) -> tuple[Activation, ...]:
    """Blocks that may be offloaded between forward and backward, in the order in which they are written.

    Kernels write them, and they have a use in forward and a later one more than one layer step away (between adjacent
    steps no kernel overlaps with a copy). Tensors saved with a feature map (a dropout's mask, the indices of a pooling)
    count; blocks below the 10,000th part of all saved bytes do not.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> [(graph.blocks[each.block].id, each.after, each.before) for each in activations(graph)]
    [('x2', 1, 4)]
    """
    saved = _all_saved(graph)
    threshold = sum(graph.sizes[each.block] for each in saved)
    step_of = graph.layers.step_of
    worth = (
        each
        for each in saved
        if graph.sizes[each.block] * SMALLEST_PART >= threshold
        and graph.sizes[each.block] > 0
        and step_of[each.before] - step_of[each.after] > 1
    )
    return tuple(sorted(worth, key=lambda each: (graph.uses[each.block][0], each.block)))


def saved_activations(graph: TaskGraph) -> tuple[int, ...]:
    """The blocks of any size that forward writes and later kernels use: feature maps, and tensors saved with them.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> [graph.blocks[b].id for b in saved_activations(graph)]
    ['x2', 'x3', 'x4']
    """
    return tuple(each.block for each in _all_saved(graph))


def _all_saved(graph: TaskGraph) -> tuple[Activation, ...]:
    if _ALL_SAVED not in graph.kept:
        is_forward = graph.is_forward
        written = enumerate(zip(_last_forward_writes(graph), graph.uses, strict=True))
        # Written in forward and used later.
        each = [_saved(graph, b, k) for b, (k, uses) in written if k >= 0 and not is_forward[uses[-1]]]
        graph.kept[_ALL_SAVED] = tuple([activation for activation in each if activation is not None])
    saved: tuple[Activation, ...] = graph.kept[_ALL_SAVED]
    return saved


def _last_forward_writes(graph: TaskGraph) -> list[int]:
    """For each block the last forward kernel that writes it, -1 for none."""
    last = [-1] * len(graph.blocks)
    for k, (writes, forward) in enumerate(zip(graph.writes, graph.is_forward, strict=True)):
        if forward:
            for b in writes:
                last[b] = k
    return last


def _saved(graph: TaskGraph, b: int, written: int) -> Activation | None:
    """What is saved of a block; written: the last forward kernel that writes it."""
    block, birth = graph.blocks[b], graph.births[b]
    if block.persistent or block.host_write is not None or block.kind in _NO_ACTIVATIONS or birth is None:
        return None
    is_forward = graph.is_forward
    forward = [k for k in graph.uses[b] if is_forward[k]]
    if not forward or b not in graph.writes[forward[0]]:
        return None
    after = forward[-1]
    before = graph.next_use(b, after)
    if before is None:
        return None
    step = graph.layers.steps[graph.layers.step_of[after]]
    return Activation(b, after, before, max(step.first, written + 1) if written < after else None)
