"""The events of a snapshot, and what existed before the first of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.importers.quantities import shown
from simgpu.importers.snapshot.fields import Record
from simgpu.importers.snapshot.ranges import Ranges
from simgpu.importers.snapshot.stacks import Stacks
from simgpu.trace.allocations import (
    ALLOCATION_ACTIONS,
    SEGMENT_ACTIONS,
    Allocation,
    AllocatorAction,
    AllocatorEvent,
    AllocatorSegment,
)

_ACTIONS = {str(action): action for action in AllocatorAction}
#: Small segments have this size, and no others do.
_SMALL = 2 * 2**20


class ActiveBlock(NamedTuple):
    """An active block at the end: bytes as requested, and of the allocator's block."""

    address: int
    requested: int
    size: int
    segment: AllocatorSegment
    stack: int | None


def history(
    rows: Iterable[Record], after: Sequence[AllocatorSegment], blocks: Sequence[ActiveBlock], stacks: Stacks
) -> tuple[list[Allocation], list[AllocatorEvent], list[AllocatorSegment]]:
    """Allocations, events in order, and the segments before the first event.

    after, blocks: segments and active blocks after the last event. Raises `InputError` if events and blocks contradict
    each other.
    """
    reader = _Reader(stacks)
    for row in rows:
        reader.add(row)
    reader.end(blocks)
    return reader.allocations, reader.events, _segments_before(reader.places, reader.events, after)


class _Reader:
    def __init__(self, stacks: Stacks) -> None:
        self.allocations: list[Allocation] = []
        self.events: list[AllocatorEvent] = []
        self.places: list[Record] = []
        self._stacks = stacks
        self._open: dict[int, int] = {}
        self._ended: set[int] = set()
        #: Allocations that are known from a note on them only, which has the size of the block.
        self._noted: set[int] = set()

    def add(self, row: Record) -> None:
        """Read the next event."""
        name = row.get("action")
        action = _ACTIONS.get(name) if isinstance(name, str) else None
        if action is None:
            raise row.wrong(f"action: {shown(name)} is not known")
        size, stream = row.bytes("size"), row.number("stream", 0)
        address = row.bytes("device_free") if "device_free" in row else row.number("addr", 0)
        stack = self._stacks.of(row)
        allocation = None
        if action == AllocatorAction.ALLOC:
            if address in self._open:
                raise row.wrong(f"allocates address {address:#x}, which is allocated")
            allocation = self._begin(self._allocation(row, size, address, stream, stack))
        elif action in ALLOCATION_ACTIONS:
            allocation = self._open.get(address)
            if allocation is None:
                if address in self._ended:
                    what = "notes something on" if action == AllocatorAction.ANNOTATE else "frees"
                    raise row.wrong(f"{what} address {address:#x}, which is free")
                allocation = self._begin(self._allocation(row, size, address, stream, stack))
                if action == AllocatorAction.ANNOTATE:
                    self._noted.add(allocation)
            elif action == AllocatorAction.ANNOTATE:
                self._note(allocation, row.note("user_metadata"))
            if action != AllocatorAction.ANNOTATE and allocation in self._noted:
                self._noted.discard(allocation)
                self.allocations[allocation] = replace(self.allocations[allocation], size=size)
            if action == AllocatorAction.FREE_COMPLETED:
                del self._open[address]
                self._ended.add(address)
        time = row.number("time_us") if "time_us" in row else None
        self.places.append(row)
        self.events.append(AllocatorEvent(action, allocation, address, size, stream, stack, time))

    @staticmethod
    def _allocation(row: Record, size: int, address: int, stream: int, stack: int | None) -> Allocation:
        category, label = row.line("category"), row.note("user_metadata")
        return Allocation(size, address, stream, 0, stack, category, None, label)

    def _note(self, index: int, text: str) -> None:
        known = self.allocations[index]
        parts = [known.label, text] if text not in known.label.split("; ") else [known.label]
        self.allocations[index] = replace(known, label="; ".join(filter(None, parts)))

    def _begin(self, allocation: Allocation) -> int:
        index = self._open[allocation.address] = len(self.allocations)
        self._ended.discard(allocation.address)
        self.allocations.append(allocation)
        return index

    def end(self, blocks: Sequence[ActiveBlock]) -> None:
        """Compare with the active blocks at the end, which also have those that were never touched."""
        for block in blocks:
            index = self._open.pop(block.address, None)
            if index is None:
                whole = Allocation(
                    block.requested,
                    block.address,
                    block.segment.stream,
                    block.segment.private,
                    block.stack,
                    "",
                    block.size,
                )
                self.allocations.append(whole)
            else:
                known = self.allocations[index]
                size = block.requested if index in self._noted else known.size
                self.allocations[index] = replace(
                    known, size=size, block_bytes=block.size, private=block.segment.private
                )
        if self._open:
            address = next(iter(self._open))
            place = self.places[0]
            what = (
                f"events leave {len(self._open)} allocations that are not among the blocks at the end, "
                f"as the one at {address:#x}"
            )
            raise InputError.single(place.path, "", what, "write the snapshot while nothing else allocates")


def _segments_before(
    places: Sequence[Record], events: Sequence[AllocatorEvent], after: Sequence[AllocatorSegment]
) -> list[AllocatorSegment]:
    """Undo the events on segments, the last first."""
    fixed = {each.address: each for each in after if not each.expandable}
    growing: dict[tuple[int, bool, int], Ranges] = {}
    for each in after:
        if each.expandable:
            growing.setdefault((each.stream, each.small, each.private), Ranges()).add(each.address, each.size)
    for place, event in zip(reversed(places), reversed(events), strict=True):
        if event.action not in SEGMENT_ACTIONS:
            continue
        undone = True
        if event.action == AllocatorAction.SEGMENT_ALLOC:
            undone = event.address in fixed and fixed.pop(event.address).size == event.size
        elif event.action == AllocatorAction.SEGMENT_FREE:
            small = event.size == _SMALL
            fixed[event.address] = AllocatorSegment(event.address, event.size, event.stream, small)
        elif event.action == AllocatorAction.SEGMENT_MAP:
            undone = any(ranges.remove(event.address, event.size) for ranges in growing.values())
        else:
            _unmapped_from(growing, event).add(event.address, event.size)
        if not undone:
            raise place.wrong(f"gets a segment at {event.address:#x} that is not there afterwards")
    ranges = [
        AllocatorSegment(address, size, stream, small, True, private)
        for (stream, small, private), each in growing.items()
        for address, size in each
    ]
    return sorted([*fixed.values(), *ranges], key=lambda each: each.address)


def _unmapped_from(growing: dict[tuple[int, bool, int], Ranges], event: AllocatorEvent) -> Ranges:
    """The expandable segment that memory was taken from: the nearest of its stream."""
    near = {
        key: min((abs(address - event.address) for address, _ in ranges), default=2**64)
        for key, ranges in growing.items()
        if key[0] == event.stream
    }
    if near:
        return growing[min(near, key=lambda key: near[key])]
    return growing.setdefault((event.stream, event.size < 10 * _SMALL, 0), Ranges())
