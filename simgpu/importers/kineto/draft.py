"""A block while it is found out, and the kernels that touch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.importers.kineto.allocations import Allocation, Moments
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.names import kernel_ids, printable
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase


@dataclass(slots=True, eq=False)
class Draft:
    """A block and the positions of the kernels that read and write it.

    allocation: None for memory that was there before the iteration, or whose coming and going was not recorded.
    let_go: for memory from before: when it was freed (ns), None while it is held.
    """

    id: str
    bytes: int
    persistent: bool = False
    allocation: Allocation | None = None
    let_go: int | None = None
    kind: BlockKind = BlockKind.OTHER
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    readers: set[int] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)

    @property
    def is_used(self) -> bool:
        return bool(self.readers or self.writers)

    @property
    def is_read_unwritten(self) -> bool:
        """Whether it holds, before any kernel writes it, a value that is neither old nor a kernel's."""
        return not self.persistent and (not self.writers or (bool(self.readers) and self.first < min(self.writers)))

    @property
    def first(self) -> int:
        return min(self.readers | self.writers)


def drop_reads_of_nothing(drafts: Sequence[Draft]) -> None:
    """An in-place kernel that is the first to touch new memory writes it; it cannot have read it."""
    for draft in drafts:
        if not draft.persistent and draft.is_used and draft.first in draft.writers:
            draft.readers.discard(draft.first)


def block(draft: Draft, attribution: Attribution, moments: Moments, ids: Sequence[str]) -> Block | None:
    """The row of a draft; None for memory that no kernel could have used."""
    allocation = draft.allocation
    born, release = None, None
    freed = draft.let_go if allocation is None else allocation.freed
    if freed is not None:
        last = moments.kernel_until(freed)
        uses = draft.readers | draft.writers
        release = max([*uses, *([] if last is None else [last])], default=None)
        if release is None:
            return None
    if draft.is_read_unwritten:
        born = moments.kernels_from(allocation.at) if allocation is not None else None
        if draft.is_used:
            born = draft.first if born is None else min(born, draft.first)
        if born is None:
            return None
        release = None if release is None else max(release, born)
    is_workspace = draft.kind is BlockKind.WORKSPACE
    is_lasting = allocation is not None and freed is None
    let_go = ids[release] if release is not None else RELEASED_AT_END if is_lasting else None
    return Block(
        draft.id,
        draft.bytes,
        draft.kind,
        persistent=draft.persistent,
        born=None if born is None else ids[born],
        release=None if is_workspace else let_go,
        layer=_layer(draft, attribution),
        shape=draft.shape,
        dtype=draft.dtype,
    )


def _layer(draft: Draft, attribution: Attribution) -> str | None:
    """The layer of the kernel that made it, or that first read what was there before."""
    uses = draft.readers if draft.persistent and draft.readers else draft.writers or draft.readers
    first = min(uses, default=None)
    return None if first is None else attribution.launched[first].layer


def kernels(attribution: Attribution, streams: dict[int, int], drafts: Sequence[Draft]) -> tuple[Kernel, ...]:
    """The rows of the kernels, with the drafts as blocks they read and write."""
    iteration = attribution.iteration
    ids = kernel_ids(len(iteration.kernels))
    begin = iteration.kernels[0].start if iteration.number is None else iteration.begin
    reads: list[list[str]] = [[] for _ in ids]
    writes: list[list[str]] = [[] for _ in ids]
    for draft in drafts:
        for position in draft.readers:
            reads[position].append(draft.id)
        for position in draft.writers:
            writes[position].append(draft.id)
    return tuple(
        Kernel(
            id=ids[position],
            op=printable(launched.name),
            phase=launched.phase,
            duration_ns=kernel.duration,
            reads=tuple(reads[position]),
            writes=tuple(writes[position]),
            layer=launched.layer,
            stream=streams[kernel.stream],
            start_ns=max(kernel.start - begin, 0),
            pure=launched.pure,
        )
        for position, (kernel, launched) in enumerate(zip(iteration.kernels, attribution.launched, strict=True))
    )


def scratch_kind(draft: Draft) -> BlockKind:
    """Memory that comes and goes with one kernel is its workspace."""
    lone = len(draft.writers) == 1 and draft.readers <= draft.writers
    return BlockKind.WORKSPACE if lone else BlockKind.OTHER


def phase_of(draft: Draft, attribution: Attribution) -> Phase | None:
    """The phase of the kernel that made it."""
    return attribution.launched[min(draft.writers)].phase if draft.writers else None
