"""What the blocks of a joined recording hold, by rule.

Old blocks: a weight is what the optimizer changes and forward reads, or what forward is given as an argument called
weight or bias; a weight gradient is what backward writes; optimizer state is what only the optimizer touches; a
label is what the loss is given as its target; the input is what forward reads of the first side of the batch and
nobody changes. Blocks made in the iteration: feature maps by forward; by backward, a weight's gradient is what
autograd accumulates or the optimizer reads, the others are gradients. The rest, with what the optimizer makes for
itself, is `other`.
"""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.trace.importers.kineto.attribution import Attribution
from simgpu.trace.importers.kineto.draft import Draft, phase_of
from simgpu.trace.importers.kineto.joined_blocks import Storage, Storages
from simgpu.trace.model import BlockKind, Phase

_ACCUMULATE = "torch::autograd::AccumulateGrad"


def set_kinds(storages: Storages, batch: int | None) -> None:
    """Give every storage's draft its kind."""
    accumulated = {
        id(storage)
        for position, node in storages.nodes.items()
        if node.name == _ACCUMULATE
        for _, storage in storages.named[position].inputs
    }
    for storage in storages.found:
        draft = storage.draft
        if draft.persistent:
            draft.kind = _old(storage, storages.attribution, batch)
        elif id(storage) in accumulated:
            draft.kind = BlockKind.WEIGHT_GRADIENT
        else:
            draft.kind = _new(draft, storages.attribution)


def _phases(positions: Iterable[int], attribution: Attribution) -> set[Phase]:
    return {attribution.launched[position].phase for position in positions}


def _old(storage: Storage, attribution: Attribution, batch: int | None) -> BlockKind:
    draft = storage.draft
    read, written = _phases(draft.readers, attribution), _phases(draft.writers, attribution)
    is_parameter = bool(storage.arguments & {"weight", "bias"})
    if Phase.FORWARD in read and (Phase.OPTIMIZER in written or (is_parameter and not written)):
        return BlockKind.WEIGHT
    if Phase.BACKWARD in written:
        return BlockKind.WEIGHT_GRADIENT
    if read | written == {Phase.OPTIMIZER}:
        return BlockKind.OPTIMIZER_STATE
    if "target" in storage.arguments:
        return BlockKind.LABEL
    if Phase.FORWARD in read and not written and draft.shape and draft.shape[0] == batch:
        return BlockKind.INPUT
    return BlockKind.OTHER


def _new(draft: Draft, attribution: Attribution) -> BlockKind:
    maker = phase_of(draft, attribution)
    if maker is Phase.FORWARD:
        return BlockKind.FEATURE_MAP
    if maker is Phase.BACKWARD:
        is_for_optimizer = Phase.OPTIMIZER in _phases(draft.readers, attribution)
        return BlockKind.WEIGHT_GRADIENT if is_for_optimizer else BlockKind.GRADIENT
    return BlockKind.OTHER
