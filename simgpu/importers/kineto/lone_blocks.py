"""Blocks of a profile without an execution trace, from its memory events alone.

One block an allocation, with its exact lifetime, as many bytes as the allocator gave. It is written by the kernels
that the operator around the allocation launched while it was held; what kernels read, and which blocks of two
operators are the same tensor, is not recorded. So lifetimes and peaks are exact, and `reads` stays empty. What an
allocation holds is told by the phase of its writers: feature maps, gradients; the optimizer's are `other`. Memory that
was released again before another operator's kernel ran is scratch: the workspace of its kernel, or `other` where
several kernels share it. Memory from before the iteration is one persistent block `held`; what of it was freed
after the first launch is a block of its own.
"""

from __future__ import annotations

from simgpu.importers.kinds import kind_of_new
from simgpu.importers.kineto.allocations import DeviceMemory, Moments
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.draft import Draft, phase_of, scratch_kind


def lone_blocks(attribution: Attribution, memory: DeviceMemory, moments: Moments) -> list[Draft]:
    """One draft for each allocation, and those of what was there before."""
    drafts = held_before(memory, named=0)
    for number, allocation in enumerate(memory.allocations, start=1):
        if moments.is_idle(allocation):
            continue
        draft = Draft(f"m{number}", allocation.bytes, allocation=allocation, writers=set(moments.writers(allocation)))
        is_lone = is_scratch(draft, moments)
        draft.kind = scratch_kind(draft) if is_lone else kind_of_new(phase_of(draft, attribution), reading=set())
        drafts.append(draft)
    return drafts


def is_scratch(draft: Draft, moments: Moments) -> bool:
    """Whether the memory was freed before any kernel but its writers was launched."""
    freed = draft.allocation.freed if draft.allocation is not None else None
    return freed is not None and bool(draft.writers) and moments.kernel_until(freed) in draft.writers


def held_before(memory: DeviceMemory, named: int) -> list[Draft]:
    """Memory from before the iteration that no tensor names: what was freed in it, and the rest as one block.

    named: bytes of it that are other blocks already.
    """
    drafts = [
        Draft(f"held.{number}", size, persistent=True, let_go=at)
        for number, (size, at) in enumerate(memory.let_go, start=1)
    ]
    rest = memory.held_before - named - sum(size for size, _ in memory.let_go)
    return [*([Draft("held", rest, persistent=True)] if rest > 0 else []), *drafts]
