"""What the blocks of a joined recording hold.

The rules are those of every format (`simgpu.importers.kinds`), and one more: what autograd accumulates is a weight's
gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.importers.kinds import kind_of_new, kind_of_old
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.draft import phase_of
from simgpu.importers.kineto.joined_blocks import Storages
from simgpu.trace.model import BlockKind, Phase

_ACCUMULATE = "torch::autograd::AccumulateGrad"


def set_kinds(storages: Storages, batch: int | None) -> None:
    """Give every storage's draft its kind. batch: samples in the iteration, None where unknown."""
    attribution = storages.attribution
    accumulated = {
        id(storage)
        for position, node in storages.nodes.items()
        if node.name == _ACCUMULATE
        for _, storage in storages.named[position].inputs
    }
    for storage in storages.found:
        draft = storage.draft
        reading = _phases(draft.readers, attribution)
        if draft.persistent:
            writing = _phases(draft.writers, attribution)
            draft.kind = kind_of_old(reading, writing, storage.arguments, draft.shape, batch)
        elif id(storage) in accumulated:
            draft.kind = BlockKind.WEIGHT_GRADIENT
        else:
            draft.kind = kind_of_new(phase_of(draft, attribution), reading)


def _phases(positions: Iterable[int], attribution: Attribution) -> set[Phase]:
    return {attribution.launched[position].phase for position in positions}
