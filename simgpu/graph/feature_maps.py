"""The feature maps that a policy may let go of between forward and backward, and when they are free to go."""

from __future__ import annotations

from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Phase

#: What lives through forward and backward without being a feature map or saved beside one.
_NO_FEATURE_MAPS = {
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


class FeatureMap(NamedTuple):
    """A block that is saved for backward.

    after: its last kernel in forward; before: its next use. out_with: the kernel at whose start a copy out may be
    issued, beside its last reader's layer step; None where that reader is also the one that completes it.
    """

    block: int
    after: int
    before: int
    out_with: int | None


def feature_maps(graph: TaskGraph) -> tuple[FeatureMap, ...]:
    """What may go between forward and backward, in the order in which it is made.

    Blocks that kernels make, with a use in forward and one later, more than one layer step apart (where these are
    adjacent there is nothing to hide a copy behind). What is saved beside a feature map (a dropout's mask, the indices
    of a pooling) counts; what is smaller than the 10,000th part of everything saved does not.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> [(graph.blocks[each.block].id, each.after, each.before) for each in feature_maps(graph)]
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
    """The blocks that forward makes and that are used later: feature maps, and what is saved with them, of any size.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> [graph.blocks[b].id for b in saved_activations(graph)]
    ['x2', 'x3', 'x4']
    """
    return tuple(each.block for each in _all_saved(graph))


def _all_saved(graph: TaskGraph) -> list[FeatureMap]:
    return [found for b in range(len(graph.blocks)) if (found := _saved(graph, b)) is not None]


def _saved(graph: TaskGraph, b: int) -> FeatureMap | None:
    block, birth = graph.blocks[b], graph.births[b]
    if block.persistent or block.born is not None or block.kind in _NO_FEATURE_MAPS or birth is None:
        return None
    forward = [k for k in graph.uses[b] if graph.kernels[k].phase is Phase.FORWARD]
    if not forward or b not in graph.writes[forward[0]]:
        return None
    after = forward[-1]
    before = graph.next_use(b, after)
    if before is None:
        return None
    written = max(k for k in forward if b in graph.writes[k])
    step = graph.layers.steps[graph.layers.step_of[after]]
    return FeatureMap(b, after, before, max(step.first, written + 1) if written < after else None)
