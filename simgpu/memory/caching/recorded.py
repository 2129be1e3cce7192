"""Repeats a recording with its own segments, and compares every address and every segment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.layout import restore
from simgpu.memory.caching.settings import SMALL_REQUEST, SMALL_SEGMENT, AllocatorSettings
from simgpu.trace.allocations import SEGMENT_ACTIONS, AllocationTrace, AllocatorAction, AllocatorEvent

#: Addresses of segments that the recording does not have; no device has so many.
_ELSEWHERE = 2**62


@dataclass(frozen=True)
class Deviation:
    """Where the allocator did something else than the recording. event: its number; what: the difference."""

    event: int
    what: str


@dataclass(frozen=True)
class _Exhausted:
    """A request for which there is no memory: its stream, and the step in which its expandable segment grows."""

    stream: int
    step: int

    def may_map(self, event: AllocatorEvent) -> bool:
        """Whether an event can map memory of that segment. Small segments grow by one step, others by several."""
        steps, rest = divmod(event.size, self.step)
        return event.stream == self.stream and not rest and (steps == 1 or self.step > SMALL_SEGMENT)


class RecordedDevice:
    """A device that gives the segments that a recording got, in their order.

    given, taken: recorded events on segments, since the last request, that the allocator has not repeated. exhausted:
    the request for which the recording has run out of memory, None otherwise; its segment may get memory later. mapped:
    recorded events that map memory and are not repeated yet, also later ones: a recording shows the addresses of an
    expandable segment only when they get memory. spaces: by the first address of each expandable segment, the end of
    what has had memory.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.context = 0
        self.given: deque[AllocatorEvent] = deque()
        self.taken: deque[AllocatorEvent] = deque()
        self.exhausted: _Exhausted | None = None
        self.mapped: deque[AllocatorEvent] = deque()
        self.spaces: dict[int, int] = {}
        self.others: list[str] = []
        self._elsewhere = _ELSEWHERE

    def allocate(self, size: int) -> int | None:
        """The recorded address; None where the recording first frees segments, or runs out of memory."""
        if self.taken or self.exhausted:
            return None
        if not self.given or self.given[0].action != AllocatorAction.SEGMENT_ALLOC:
            self.others.append(f"gets a segment of {size} B, and the recording does not")
            self._elsewhere += size
            return self._elsewhere - size
        event = self.given.popleft()
        if event.size != size:
            self.others.append(f"gets a segment of {size} B, and the recording one of {event.size} B")
        return event.address

    def reserve(self, size: int) -> int:
        """Where the next recorded step of a new expandable segment is."""
        address = self._next_start()
        if address is None:
            address, self._elsewhere = self._elsewhere, self._elsewhere + size
        self.spaces[address] = address
        return address

    def _next_start(self) -> int | None:
        """The first mapped address that does not continue a known segment; None if there is none."""
        if self.given and self.given[0].action == AllocatorAction.SEGMENT_MAP:
            return self.given[0].address
        ends = dict(self.spaces)
        for event in self.mapped:
            if self.exhausted is not None and not self.exhausted.may_map(event):
                continue
            inside = [start for start, end in ends.items() if start <= event.address <= end]
            if not inside:
                return event.address
            ends[inside[-1]] = max(ends[inside[-1]], event.address + event.size)
        return None

    def map(self, address: int, size: int) -> bool:
        """Whether the recording gets memory here, or anywhere."""
        if self.taken or self.exhausted:
            return False
        if not self.given or (self.given[0].address, self.given[0].size) != (address, size):
            self.others.append(f"maps {size} B at {address:#x}, and the recording does not")
        if self.given:
            self.mapped.remove(self.given.popleft())
        start = max((start for start in self.spaces if start <= address), default=address)
        self.spaces[start] = max(self.spaces.get(start, 0), address + size)
        return True

    def free(self, address: int, size: int) -> None:
        """Compare a freed segment with the recording, which may free several in another order."""
        for event in self.taken:
            if (event.address, event.size) == (address, size):
                self.taken.remove(event)
                return
        self.others.append(f"frees the segment of {size} B at {address:#x}, and the recording does not")

    def unmap(self, address: int, size: int) -> None:
        """Compare memory that an expandable segment loses."""
        self.free(address, size)

    def unreserve(self, address: int, size: int) -> None:
        """Free a range of addresses."""
        del self.spaces[address]


class AllocatorReproduction:
    """An allocator that follows a recording, event by event.

    settings: the allocator's, by default those of the recording. deviations: where it does something else; it is then
    brought to where the recording is, so that each difference is one. blocks: by allocation. equal: of the
    allocations, and of the segments, those at the recorded address. emptied: events before which the program emptied
    the cache.
    """

    def __init__(self, trace: AllocationTrace, settings: AllocatorSettings | None = None) -> None:
        self.trace = trace
        self.device = RecordedDevice(trace.capacity)
        self.allocator = CachingAllocator(self.device, settings or AllocatorSettings.of_snapshot(trace.settings))
        self.blocks = restore(self.allocator, trace)
        self.device.mapped.extend(each for each in trace.events if each.action == AllocatorAction.SEGMENT_MAP)
        spaces = {block.region for block in self.allocator.segments.values()}
        ends = {each.address + each.size for each in trace.before if each.expandable}
        for space in sorted(space for space in spaces if space is not None):
            end = space.address + space.size
            self.device.spaces[space.address] = max(each for each in ends if space.address < each <= end)
        self.deviations: list[Deviation] = []
        self.allocations = self.equal_allocations = self.segments = self.equal_segments = 0
        self.emptied: list[int] = []
        self._next = 0

    def run(self, until: int | None = None) -> AllocatorReproduction:
        """Follow the events up to the one with this number, exclusively; to the end by default."""
        for number, event in enumerate(self.trace.events[self._next : until], self._next):
            try:
                self._follow(number, event)
            except (AssertionError, KeyError, ValueError) as error:
                # Segments that overlap, or blocks outside of segments: no allocator could have done this.
                what = f"{event.action} of {event.size} B at {event.address:#x} contradicts earlier events"
                raise InputError.single(self.trace.name, f"event {number}", what, "write the snapshot again") from error
            if self.device.others:
                self.deviations += [Deviation(number, what) for what in self.device.others]
                self.device.others = []
        self._next = len(self.trace.events) if until is None else until
        if until is None:
            self._end()
        return self

    def _end(self) -> None:
        number = len(self.trace.events) - 1
        self._empty(number + 1)
        for event in (*self.device.given, *self.device.taken):
            what = f"has no {event.action} of {event.size} B at {event.address:#x}"
            self.deviations.append(Deviation(number, what))

    def _follow(self, number: int, event: AllocatorEvent) -> None:
        device = self.device
        if event.action in SEGMENT_ACTIONS:
            given = event.action in (AllocatorAction.SEGMENT_ALLOC, AllocatorAction.SEGMENT_MAP)
            (device.given if given else device.taken).append(event)
        elif event.action == AllocatorAction.ALLOC:
            self._allocate(number, event)
        elif event.action == AllocatorAction.FREE_REQUESTED:
            self._empty(number)
            self._request_free(event)
        elif event.action == AllocatorAction.FREE_COMPLETED:
            self._empty(number)
            self._request_free(event)
            self._complete_free(event)
        elif event.action == AllocatorAction.OOM:
            settings = self.allocator.settings
            small = settings.rounded(event.size) <= SMALL_REQUEST
            device.exhausted = _Exhausted(event.stream, SMALL_SEGMENT if small else settings.large_segment)
            if self.allocator.allocate(event.size, event.stream) is not None:
                self.deviations.append(Deviation(number, "has memory, and the recording does not"))
            device.exhausted = None

    def _request_free(self, event: AllocatorEvent) -> None:
        assert event.allocation is not None
        block = self.blocks.get(event.allocation)
        if block is not None and block.allocated:
            self.allocator.request_free(block)

    def _complete_free(self, event: AllocatorEvent) -> None:
        assert event.allocation is not None
        block = self.blocks.pop(event.allocation, None)
        if block is not None:
            self.allocator.complete_free(block)

    def _empty(self, number: int) -> None:
        """If segments were freed and no request led to it, the program emptied the cache."""
        if self.device.taken:
            self.emptied.append(number)
            self.allocator.empty_cache()

    def _all_unused_are_freed(self) -> bool:
        """Whether the recording frees all that emptying the cache would free; garbage collection may leave some."""
        freed = {each.address for each in self.device.taken}
        blocks = [block for pool in self.allocator.pools.values() for block in pool]
        return all(block.split or block.region is not None or block.address in freed for block in blocks)

    def _allocate(self, number: int, event: AllocatorEvent) -> None:
        assert event.allocation is not None
        device, allocator = self.device, self.allocator
        private = self.trace.allocations[event.allocation].private
        if (
            not device.given
            or (device.given[0].address in allocator.segments and self._all_unused_are_freed())
            or allocator.has_cached(event.size, event.stream, private)
        ):
            self._empty(number)
        expected = list(device.given)
        block = allocator.allocate(event.size, event.stream, private)
        self.allocations += 1
        self.segments += len(expected)
        unused = {(each.address, each.size) for each in device.given}
        self.equal_segments += len(expected) - len(unused) - len(device.others)
        if block is not None and block.address == event.address and not unused:
            self.equal_allocations += 1
        else:
            where = "finds no memory" if block is None else f"is at {block.address:#x}"
            what = f"request of {event.size} B {where}, in the recording at {event.address:#x}"
            self.deviations.append(Deviation(number, what + (", in a new segment" if unused else "")))
            block = self._corrected(block, event)
        if block is not None:
            self.blocks[event.allocation] = block

    def _corrected(self, block: MemoryBlock | None, event: AllocatorEvent) -> MemoryBlock | None:
        """Move a block to where the recording has it, if that is free."""
        allocator = self.allocator
        pool = allocator.pool_of(allocator.settings.rounded(event.size))
        while self.device.given:
            segment = self.device.given.popleft()
            if segment.action == AllocatorAction.SEGMENT_ALLOC:
                allocator.add_segment(MemoryBlock(segment.address, segment.size, segment.stream, pool))
        if block is not None:
            allocator.free(block)
        return allocator.allocate_at(event.address, event.size)


def reproduce(trace: AllocationTrace, settings: AllocatorSettings | None = None) -> AllocatorReproduction:
    """Repeat a whole recording; see `AllocatorReproduction`."""
    return AllocatorReproduction(trace, settings).run()
