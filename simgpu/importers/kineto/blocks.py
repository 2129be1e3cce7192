"""Blocks of a profile: device memory from its memory events, block drafts, and blocks from memory events alone.

Without an execution trace, each allocation is one block, with its exact lifetime and the size that the allocator
returned. Its writers are the kernels that the operator around the allocation launched during its lifetime. The profile
does not record what kernels read, or which blocks of two operators are the same tensor. So lifetimes and peaks are
exact, and `reads` stays empty. The kind of a block follows from the phase of its writers: activation (feature map) or
gradient; `other` for the optimizer. Memory that was freed before another operator's kernel was launched is scratch
memory: the workspace of its kernel, or `other` if several kernels share it. Memory from before the iteration is one
persistent block `held`, except that each part freed after the first launch is a separate block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.importers.drafts import BlockDraft, kernel_ids, kind_of_new, printable, reads_and_writes
from simgpu.importers.kineto.attribution import Attribution, innermost
from simgpu.importers.kineto.profile import MemoryEvent, Thread
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that was allocated in the iteration.

    at, freed: when it was allocated and freed, ns; freed is None if it was not freed.
    op: position of the innermost operator around the allocation; -1 if there is none.
    category, line: what it holds, and the line of code that requested it, where a memory snapshot says so.
    """

    thread: Thread
    at: int
    bytes: int
    op: int
    freed: int | None = None
    category: str = ""
    line: str = ""

    def is_held(self, moment: int) -> bool:
        return self.at <= moment and (self.freed is None or moment <= self.freed)


@dataclass(frozen=True, slots=True)
class BlockBefore:
    """A block from before the iteration: bytes, when it was freed (ns, None if not), what it holds where recorded."""

    bytes: int
    freed: int | None
    category: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """All memory events of the iteration's device.

    freed: (bytes, moment in ns) of memory from before the iteration that was freed after the first launch.
    held_before: bytes allocated before the iteration and not freed before the first launch; -1 if no totals recorded.
    peak: peak bytes allocated, as counted by the framework; None if not recorded.
    before: each block from before the iteration, if a memory snapshot lists them; the totals are those of its blocks.
    """

    allocations: tuple[Allocation, ...]
    freed: tuple[tuple[int, int], ...]
    held_before: int
    peak: int | None
    before: tuple[BlockBefore, ...] = ()


def device_memory(attribution: Attribution) -> DeviceMemory | None:
    """The memory events of an iteration; None if not recorded."""
    iteration, profile = attribution.iteration, attribution.profile
    device = iteration.kernels[0].device
    events = sorted(
        (event for event in profile.memory if event.device == device and iteration.contains(event.at)),
        key=lambda event: (event.at, event.number),
    )
    if not events:
        return None
    around = innermost(attribution.ops, [(event.thread, event.at) for event in events])
    first_launch = min(launched.at for launched in attribution.launched)
    live: dict[int, Allocation] = {}
    allocations, freed = [], []
    before = events[0].total - events[0].bytes if events[0].total >= 0 else -1
    for event, op in zip(events, around, strict=True):
        if event.bytes > 0:
            _require_free(profile.path, event, live)
            allocation = Allocation(event.thread, event.at, event.bytes, op)
            allocations.append(allocation)
            live[event.address] = allocation
        elif event.address in live:
            live.pop(event.address).freed = event.at
        elif event.at >= first_launch:
            freed.append((-event.bytes, event.at))
        elif before >= 0:
            before += event.bytes
    peak = max(event.total for event in events)
    return DeviceMemory(tuple(allocations), tuple(freed), max(before, -1), peak if peak >= 0 else None)


def _require_free(path: object, event: MemoryEvent, live: dict[int, Allocation]) -> None:
    if event.address in live:
        what = f"allocates address {event.address}, which was allocated before and not freed"
        remedy = "the events of several processes or devices are mixed, or some are missing: record it again"
        raise InputError.single(str(path), f"event {event.number} ([memory])", what, remedy)


class Moments:
    """Maps moments on the CPU to kernels: a free that follows a launch takes effect after that kernel."""

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.order = attribution.launch_order
        self._at = [attribution.launched[position].at for position in self.order]

    def kernels_from(self, moment: int) -> int | None:
        """The first kernel launched at or after a moment; None if there is none."""
        place = bisect_right(self._at, moment - 1)
        return self.order[place] if place < len(self.order) else None

    def kernel_until(self, moment: int) -> int | None:
        """The last kernel launched at or before a time; None if there is none."""
        place = bisect_right(self._at, moment)
        return self.order[place - 1] if place else None

    def is_idle(self, allocation: Allocation) -> bool:
        """Whether no kernel was launched during the lifetime of an allocation."""
        first = bisect_right(self._at, allocation.at - 1)
        return allocation.freed is not None and bisect_right(self._at, allocation.freed) <= first

    def writers(self, allocation: Allocation) -> list[int]:
        """Kernels that the operator around an allocation launched during its lifetime.

        Takes the innermost operator around it with such kernels, and from these the kernels with the first one's
        launching operator.
        """
        attribution = self.attribution
        for op in attribution.operators(allocation.op):
            end = attribution.ops[op].end
            first = bisect_right(self._at, allocation.at - 1)
            inside = [
                position
                for position in self.order[first : bisect_right(self._at, end)]
                if allocation.is_held(attribution.launched[position].at)
                and op in attribution.chain(attribution.launched[position].op)
            ]
            if inside:
                launcher = attribution.launched[inside[0]].op
                return [position for position in inside if attribution.launched[position].op == launcher]
        return []


@dataclass(slots=True, eq=False)
class Draft(BlockDraft):
    """A block of a profile.

    allocation: None for memory from before the iteration, or if the allocation was not recorded.
    freed: for memory from before the iteration: when it was freed, ns; None if it was not freed.
    """

    persistent: bool = False
    allocation: Allocation | None = None
    freed: int | None = None

    @property
    def is_read_unwritten(self) -> bool:
        """Whether it is new, but used before any kernel writes it, so that something other than a kernel wrote it."""
        return not self.persistent and (not self.writers or (bool(self.readers) and self.first < min(self.writers)))


def block(draft: Draft, attribution: Attribution, moments: Moments, ids: Sequence[str]) -> Block | None:
    """The trace's row of a draft; None for memory that no kernel can have used."""
    allocation = draft.allocation
    born, release = None, None
    freed = draft.freed if allocation is None else allocation.freed
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
    at_release = ids[release] if release is not None else RELEASED_AT_END if is_lasting else None
    return Block(
        draft.id,
        draft.bytes,
        draft.kind,
        persistent=draft.persistent,
        host_write=None if born is None else ids[born],
        release=None if is_workspace else at_release,
        layer=_layer(draft, attribution) or (allocation.line or None if allocation is not None else None),
        shape=draft.shape,
        dtype=draft.dtype,
    )


def _layer(draft: Draft, attribution: Attribution) -> str | None:
    """The layer of the first kernel that wrote the block; for a persistent block, of the first that read it."""
    uses = draft.readers if draft.persistent and draft.readers else draft.writers or draft.readers
    first = min(uses, default=None)
    return None if first is None else attribution.launched[first].layer


def kernels(attribution: Attribution, streams: dict[int, int], drafts: Sequence[Draft]) -> tuple[Kernel, ...]:
    """The trace's rows of the kernels, which read and write the drafts."""
    iteration = attribution.iteration
    ids = kernel_ids(len(iteration.kernels))
    begin = iteration.kernels[0].start if iteration.number is None else iteration.begin
    reads, writes = reads_and_writes(len(ids), drafts)
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
    """Workspace if only one kernel uses the scratch memory, else `other`."""
    lone = len(draft.writers) == 1 and draft.readers <= draft.writers
    return BlockKind.WORKSPACE if lone else BlockKind.OTHER


def phase_of(draft: Draft, attribution: Attribution) -> Phase | None:
    """The phase of the kernel that first wrote the block; None if no kernel did."""
    return attribution.launched[min(draft.writers)].phase if draft.writers else None


def lone_blocks(attribution: Attribution, memory: DeviceMemory, moments: Moments) -> list[Draft]:
    """One draft per allocation, and the drafts of memory from before the iteration."""
    drafts = blocks_before(memory) if memory.before else held_before(memory, named=0)
    for number, allocation in enumerate(memory.allocations, start=1):
        if moments.is_idle(allocation):
            continue
        draft = Draft(f"m{number}", allocation.bytes, allocation=allocation, writers=set(moments.writers(allocation)))
        if is_scratch(draft, moments):
            draft.kind = scratch_kind(draft)
        else:
            phase = phase_of(draft, attribution)
            draft.kind = kind_of_category(allocation.category) or kind_of_new(phase, reading=set())
        drafts.append(draft)
    return drafts


#: Kinds of blocks by the categories of PyTorch's memory profiler; a gradient's kind follows from its phase.
_CATEGORIES = {
    "parameter": BlockKind.WEIGHT,
    "optimizer_state": BlockKind.OPTIMIZER_STATE,
    "input": BlockKind.INPUT,
    "activation": BlockKind.ACTIVATION,
}


def kind_of_category(category: str) -> BlockKind | None:
    """The kind of a block whose category was recorded; None if that does not decide it.

    >>> kind_of_category("PARAMETER"), kind_of_category("autograd_detail")
    (<BlockKind.WEIGHT: 'weight'>, None)
    """
    return _CATEGORIES.get(category.rpartition(".")[2].lower())


def blocks_before(memory: DeviceMemory) -> list[Draft]:
    """One draft per block from before the iteration."""
    return [
        Draft(
            f"held.{number}",
            each.bytes,
            kind=kind_of_category(each.category) or BlockKind.OTHER,
            persistent=True,
            freed=each.freed,
        )
        for number, each in enumerate(memory.before, start=1)
    ]


def is_scratch(draft: Draft, moments: Moments) -> bool:
    """Whether the memory was freed before any kernel other than its writers was launched."""
    freed = draft.allocation.freed if draft.allocation is not None else None
    return freed is not None and bool(draft.writers) and moments.kernel_until(freed) in draft.writers


def held_before(memory: DeviceMemory, named: int) -> list[Draft]:
    """Drafts of memory from before the iteration without tensors: each freed part, and the rest as one block.

    named: bytes that other blocks already cover.
    """
    drafts = [
        Draft(f"held.{number}", size, persistent=True, freed=at)
        for number, (size, at) in enumerate(memory.freed, start=1)
    ]
    rest = memory.held_before - named - sum(size for size, _ in memory.freed)
    return [*([Draft("held", rest, persistent=True)] if rest > 0 else []), *drafts]
