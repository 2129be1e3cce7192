"""A recording of a GPU's memory allocator: what was allocated and freed, in order; without kernels and durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from simgpu.trace.model import Origin


class AllocatorAction(StrEnum):
    """What an allocator did, by PyTorch's names. The last four are not done to memory."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    OOM = "oom"
    SNAPSHOT = "snapshot"
    USER_DEFINED = "user_defined"
    ANNOTATE = "annotate"


#: Actions on one allocation.
ALLOCATION_ACTIONS = frozenset(
    {
        AllocatorAction.ALLOC,
        AllocatorAction.FREE_REQUESTED,
        AllocatorAction.FREE_COMPLETED,
        AllocatorAction.ANNOTATE,
    }
)
#: Actions on memory of the device.
SEGMENT_ACTIONS = frozenset(action for action in AllocatorAction if action.startswith("segment_"))


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack: function, file and line number."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} {self.function}" if self.file else self.function


@dataclass(frozen=True, slots=True)
class Allocation:
    """A block that was allocated, from its allocation until it is freed.

    size: bytes as requested. address: where it was; unique among those that were allocated at the same time. stream:
    for whose work. private: the number of its private pool, as of a CUDA graph; 0 for the default pool. stack: index
    of the stack that requested it, None if not recorded. category: what it holds, where the recording says so.
    block_bytes: size of the allocator's block where recorded, None otherwise. label: what the program noted on it
    (`torch.cuda.memory._set_memory_metadata`, `_annotate_tensor`). optional: whether the program goes on if it gets no
    memory.
    """

    size: int
    address: int
    stream: int = 0
    private: int = 0
    stack: int | None = None
    category: str = ""
    block_bytes: int | None = None
    label: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One entry of the recording.

    allocation: index of the allocation, None where the action is not on one. address, size: of the allocation, the
    segment or the part of it; for an OOM, the bytes that the device had free and those that were requested. time_us:
    microseconds since 1970, None if not recorded.
    """

    action: AllocatorAction
    allocation: int | None = None
    address: int = 0
    size: int = 0
    stream: int = 0
    stack: int | None = None
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class AllocatorSegment:
    """A range of memory that the allocator has from the device.

    size: in bytes. small: whether it is for requests of at most 1 MiB. expandable: whether it is a part of a segment
    that grows. private: the number of its private pool, 0 for the default pool.
    """

    address: int
    size: int
    stream: int = 0
    small: bool = False
    expandable: bool = False
    private: int = 0


class MarkStage(StrEnum):
    """Whether a mark begins or ends a region of the program, or is a moment."""

    BEGIN = "begin"
    END = "end"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class AllocatorMark:
    """Where the program marked its course: a `record_function` region, or a step of the profiler or an optimizer.

    event: number of the first event after it. time_us: microseconds since 1970, None if not recorded.
    """

    event: int
    name: str
    stage: MarkStage = MarkStage.MOMENT
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """What the allocator of one GPU did while it was recorded.

    name: of the recording. gpu: its number. tool: what recorded it. allocations: in the order in which they begin;
    those without an event that allocates them existed before the recording. before: segments when the recording
    began; after: when it ended. stacks: from the innermost frame outwards. settings: the allocator's, as recorded;
    None if they were not. capacity: bytes of device memory, None if not known. marks: in the order of their events.
    origin: whether it was recorded, imported from another tool, or modelled.
    """

    name: str
    gpu: int
    tool: str
    allocations: tuple[Allocation, ...]
    events: tuple[AllocatorEvent, ...]
    before: tuple[AllocatorSegment, ...]
    after: tuple[AllocatorSegment, ...]
    stacks: tuple[tuple[Frame, ...], ...] = ()
    settings: Mapping[str, object] | None = field(default_factory=lambda: MappingProxyType({}))
    capacity: int | None = None
    marks: tuple[AllocatorMark, ...] = ()
    origin: Origin = Origin.IMPORTED

    def __repr__(self) -> str:
        counts = f"{len(self.allocations)} allocations, {len(self.events)} events"
        return f"AllocationTrace of {self.name}, GPU {self.gpu}: {counts}, by {self.tool}"

    @property
    def begun_before(self) -> tuple[int, ...]:
        """Allocations that existed when the recording began, by their index."""
        begun = {event.allocation for event in self.events if event.action == AllocatorAction.ALLOC}
        return tuple(index for index in range(len(self.allocations)) if index not in begun)

    @property
    def held_after(self) -> tuple[int, ...]:
        """Allocations that existed when the recording ended, by their index."""
        freed = {event.allocation for event in self.events if event.action == AllocatorAction.FREE_COMPLETED}
        return tuple(index for index in range(len(self.allocations)) if index not in freed)
