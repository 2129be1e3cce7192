"""All blocks of a profile that is joined with an execution trace: storages, and the memory that no tensor names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simgpu.importers.kineto.allocations import DeviceMemory, Moments
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.draft import Draft, scratch_kind
from simgpu.importers.kineto.join import Nodes
from simgpu.importers.kineto.joined_blocks import Storages
from simgpu.importers.kineto.joined_kinds import set_kinds
from simgpu.importers.kineto.lone_blocks import held_before, is_scratch

#: The allocator gives memory in pieces of so many bytes.
_PIECE = 512


def joined_drafts(attribution: Attribution, nodes: Nodes, memory: DeviceMemory | None, moments: Moments) -> list[Draft]:
    """The storages that kernels touch, scratch memory, and what was held before."""
    storages = Storages(attribution, nodes, memory)
    set_kinds(storages, attribution.samples())
    drafts = [storage.draft for storage in storages.found if storage.draft.is_used]
    if memory is None:
        return drafts
    _let_go(drafts, memory, attribution)
    for number, allocation in enumerate(memory.allocations, start=1):
        claim = storages.claimed.get(allocation)
        if moments.is_idle(allocation) or (claim is not None and claim.draft.is_used):
            continue
        draft = Draft(f"m{number}", allocation.bytes, allocation=allocation, writers=set(moments.writers(allocation)))
        if is_scratch(draft, moments):
            draft.kind = scratch_kind(draft)
        drafts.append(draft)
    matched = {draft.let_go for draft in drafts if draft.let_go is not None}
    rest = replace(memory, let_go=tuple(pair for pair in memory.let_go if pair[1] not in matched))
    named = sum(-(-draft.bytes // _PIECE) * _PIECE for draft in drafts if draft.persistent)
    return held_before(rest, named) + drafts


def _let_go(drafts: Sequence[Draft], memory: DeviceMemory, attribution: Attribution) -> None:
    """Old blocks that were freed in the iteration, where size and last use leave no doubt which one it was."""
    for size, at in memory.let_go:
        fitting = [
            draft
            for draft in drafts
            if draft.persistent
            and draft.let_go is None
            and -(-draft.bytes // _PIECE) * _PIECE == size
            and all(attribution.launched[use].at <= at for use in draft.readers | draft.writers)
        ]
        if len(fitting) == 1:
            fitting[0].let_go = at
