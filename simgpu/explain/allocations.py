"""Explains a recording of PyTorch's allocator: who holds the memory, what is fragmented, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simgpu.analysis.tables import facts_html
from simgpu.errors import InputError
from simgpu.explain.regions import MarkedRegion, marked_regions
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.fragmentation import Fragmentation, fragmentation
from simgpu.memory.caching.recorded import AllocatorReproduction, Deviation
from simgpu.memory.caching.replay import replay
from simgpu.memory.caching.requested import allocation_trace
from simgpu.memory.caching.settings import AllocatorSettings, parse
from simgpu.trace.allocations import AllocationTrace, AllocatorAction
from simgpu.trace.code_lines import short_line, where_of
from simgpu.trace.model import Origin
from simgpu.trace.requests import MemoryRequests
from simgpu.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEFORE = "before the recording began"
#: Settings that are tried, as in PYTORCH_CUDA_ALLOC_CONF.
TRIED = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
)


@dataclass(frozen=True)
class Holder:
    """Allocations from one line of code. where: the line; "not recorded" without a stack. Or with one label."""

    where: str
    bytes: int
    count: int


@dataclass(frozen=True)
class PinnedBy:
    """A segment that is held by few allocations. free: bytes that nobody can use elsewhere. used: bytes in use."""

    address: int
    size: int
    free: int
    used: int
    where: str


@dataclass(frozen=True)
class Failure:
    """A request that found no memory.

    event: its number, -1 if memory did not suffice for what was allocated before the recording. request: bytes.
    recorded: whether it failed when it was recorded, else with the given capacity. free: bytes that the device had
    left for the allocator.
    """

    event: int
    request: int
    recorded: bool
    free: int


@dataclass(frozen=True)
class SettingsTrial:
    """The same requests with other settings.

    reserved, allocated: the peaks on a device of unlimited memory, in bytes. failed: the event at whose request the
    capacity did not suffice, None if it did or is not known.
    """

    settings: str
    reserved: int
    allocated: int
    failed: int | None


@dataclass(frozen=True, repr=False)
class AllocationReport:
    """What `explain_allocations` finds. Prints and displays as a short summary.

    equal_allocations, equal_segments: how many of the recorded ones the model of the allocator puts at the recorded
    address. requested, allocated, reserved: peaks in bytes. capacity: bytes for the allocator, None if not known.
    moment: the event whose state is described: the failure, else the peak of allocated bytes. state: reserved memory
    at that moment. holders, contents: allocated bytes at that moment by line of code, and by what they hold where the
    recording says so. levels: requested, allocated and reserved bytes after each event, one row each. where: the line
    of code of each allocation. trials: the first has the recorded settings. regions: what the program marked, in order,
    the longest of `marked` in all. labels: the allocations at that moment by what the program noted on them, without
    those that have no note. notes: what limits the report.
    """

    trace: AllocationTrace
    settings: AllocatorSettings
    allocations: int
    equal_allocations: int
    segments: int
    equal_segments: int
    deviations: tuple[Deviation, ...]
    requested: int
    allocated: int
    reserved: int
    capacity: int | None
    failure: Failure | None
    moment: int
    state: Fragmentation
    holders: tuple[Holder, ...]
    contents: tuple[Holder, ...]
    pins: tuple[PinnedBy, ...]
    trials: tuple[SettingsTrial, ...]
    levels: NDArray[np.int64]
    where: tuple[str, ...]
    regions: tuple[MarkedRegion, ...] = ()
    marked: int = 0
    labels: tuple[Holder, ...] = ()
    notes: tuple[str, ...] = ()

    def facts(self) -> list[tuple[str, str]]:
        """Peaks, what holds the memory, and whether it fits, as names and texts."""
        more = 100 * (self.reserved / self.allocated - 1) if self.allocated else 0.0
        held = "; ".join(f"{holder.where} {format_bytes(holder.bytes)}" for holder in self.contents)
        facts = [
            ("requests", f"{self.trace.name}: {len(self.trace.allocations)} allocations, by {self.trace.tool}"),
            ("peak allocated", format_bytes(self.allocated)),
            ("peak reserved", f"{format_bytes(self.reserved)} without a limit, {more:.1f}% more than allocated"),
        ]
        if held:
            facts.append(("at the peak" if self.failure is None else "when it failed", held))
        facts += [] if self.capacity is None else [("verdict", self._verdict(self.capacity))]
        if self.failure is not None:
            facts += [("requested by", self._requested_by(self.failure)), *self._tried()]
        return facts + [("note" if not number else "", note) for number, note in enumerate(self.notes)]

    def _requested_by(self, failure: Failure) -> str:
        number = self.trace.events[max(failure.event, 0)].allocation
        if number is None:
            return "not recorded"
        stack = self.trace.allocations[number].stack
        frames = () if stack is None else self.trace.stacks[stack]
        if self.trace.origin is Origin.MODELLED and len(frames) > 1:
            return f"{frames[-1]}, {short_line(str(frames[0]))}"
        return short_line(self.where[number])

    def _tried(self) -> Iterator[tuple[str, str]]:
        """The settings of the allocator with which the same requests fit."""
        fitting = [trial.settings for trial in self.trials[1:] if trial.failed is None]
        if len(self.trials) > 1:
            yield "fits with", ", ".join(fitting) or "none of the settings that were tried"

    def _verdict(self, capacity: int) -> str:
        if self.failure is None:
            freed = ", because unused segments are freed" if self.reserved > capacity else ""
            return f"fits in {format_bytes(capacity)}{freed}"
        request, free = format_bytes(self.failure.request), format_bytes(self.failure.free)
        return f"out of memory in {format_bytes(capacity)}: {request} requested, {free} not reserved"

    def __repr__(self) -> str:
        return "\n".join(f"{name:<16}{text}" for name, text in self.facts())

    def _repr_html_(self) -> str:
        return facts_html(self.facts())

    def plot(self) -> Figure:
        """The recording as a matplotlib figure: memory over events, above where each allocation was.

        Where the capacity does not suffice, the rest is drawn as if memory had no limit.
        """
        from simgpu.analysis.allocation_plots import plot_allocations

        trace, failure = self.trace, self.failure
        shown = [holder.where for holder in self.holders]
        failed = failure.event if failure is not None else None
        title = f"{trace.name}, GPU {trace.gpu}: {trace.tool}"
        regions = [(each.begin, each.end, each.depth, each.name) for each in self.regions]
        return plot_allocations(
            trace,
            self.levels,
            self.where,
            shown,
            failed=failed,
            capacity=self.capacity,
            unlimited=self.capacity is not None and not (failure is not None and failure.recorded),
            title=title,
            regions=regions,
            marked=self.marked,
        )


def explain_allocations(
    trace: AllocationTrace | MemoryRequests, capacity: int | None = None, tried: Sequence[str] = TRIED
) -> AllocationReport:
    """Explain a recording of PyTorch's allocator, or what it would do with a program's requests.

    capacity: bytes of the device for the allocator; by default what it had when the recording ran out of memory, if it
    did, or what the GPU of the requests has. tried: settings to try, as in PYTORCH_CUDA_ALLOC_CONF. Raises `InputError`
    for a capacity that is no number of bytes.
    """
    notes: Sequence[str] = ()
    if isinstance(trace, MemoryRequests):
        notes = trace.notes
        trace = allocation_trace(trace)
        capacity = trace.capacity if capacity is None else capacity
    _check(trace, capacity)
    settings = AllocatorSettings.of_snapshot(trace.settings)
    whole = AllocatorReproduction(trace, settings)
    first = whole.allocator.statistics.allocated
    levels = _levels(whole)
    failure, state, blocks = _failure(trace, settings, capacity)
    moment = failure.event if failure is not None else int(np.argmax(levels[1]))
    if failure is None:
        at_peak = AllocatorReproduction(trace, settings).run(moment + 1)
        state, blocks = fragmentation(at_peak.allocator), at_peak.blocks
    if capacity is None and failure is not None:
        capacity = state.reserved + failure.free
    counts = whole.allocator.statistics
    where = _where(trace)
    regions, marked = marked_regions(trace.marks, levels[1][: len(trace.events)], first)
    return AllocationReport(
        trace=trace,
        settings=settings,
        allocations=whole.allocations,
        equal_allocations=whole.equal_allocations,
        segments=whole.segments,
        equal_segments=whole.equal_segments,
        deviations=tuple(whole.deviations),
        requested=counts.requested_peak,
        allocated=counts.allocated_peak,
        reserved=counts.reserved_peak,
        capacity=capacity,
        failure=failure,
        moment=moment,
        state=state,
        holders=tuple(_holders(blocks, where)),
        contents=tuple(_contents(blocks, trace)),
        pins=tuple(_pins(state, blocks, where)),
        trials=tuple(_trials(trace, settings, capacity, tried, whole.emptied)),
        levels=levels,
        where=tuple(where),
        notes=tuple(notes),
        regions=tuple(regions),
        marked=marked,
        labels=tuple(each for each in _holders(blocks, [each.label for each in trace.allocations]) if each.where),
    )


def _check(trace: object, capacity: object) -> None:
    if not isinstance(trace, AllocationTrace):
        what = f"it is a {type(trace).__name__}"
        remedy = "give what load_snapshot or record_requests returns, or the requests of a record_step"
        raise InputError.single("explain_allocations", "trace", what, remedy)
    if capacity is not None and (type(capacity) is not int or capacity < 1):
        what = f"{capacity!r} is not a number of bytes"
        raise InputError.single("explain_allocations", "capacity", what, "give a whole number >= 1, such as 8 * 2**30")


def _levels(reproduction: AllocatorReproduction) -> NDArray[np.int64]:
    """Run a reproduction event by event; bytes requested, allocated and reserved after each."""
    levels = np.zeros((3, max(len(reproduction.trace.events), 1)), dtype=np.int64)
    counts = reproduction.allocator.statistics
    for number in range(len(reproduction.trace.events)):
        reproduction.run(number + 1)
        levels[:, number] = counts.requested, counts.allocated, counts.reserved
    reproduction.run()
    return levels


def _failure(
    trace: AllocationTrace, settings: AllocatorSettings, capacity: int | None
) -> tuple[Failure | None, Fragmentation, Mapping[int, MemoryBlock]]:
    """The failed request, and the state after all unused segments were freed for it."""
    failed = [number for number, event in enumerate(trace.events) if event.action == AllocatorAction.OOM]
    if failed and capacity is None:
        event = trace.events[failed[-1]]
        run = AllocatorReproduction(trace, settings).run(failed[-1] + 1)
        state = fragmentation(run.allocator, event.size, event.stream)
        return Failure(failed[-1], event.size, True, event.address), state, run.blocks
    if capacity is not None:
        again = replay(trace, settings, capacity)
        if again.failed is not None:
            event = trace.events[max(again.failed, 0)]
            state = fragmentation(again.allocator, event.size, event.stream)
            size = event.size if again.failed >= 0 else 0
            return Failure(again.failed, size, False, capacity - state.reserved), state, again.blocks
    return None, fragmentation(AllocatorReproduction(trace, settings).allocator), {}


def _where(trace: AllocationTrace) -> list[str]:
    """The line of code of each allocation."""
    lines = [where_of(stack) for stack in trace.stacks]
    before = set(trace.begun_before)
    without = {True: BEFORE, False: "not recorded"}
    return [
        lines[each.stack] if each.stack is not None else without[index in before]
        for index, each in enumerate(trace.allocations)
    ]


def _holders(blocks: Mapping[int, MemoryBlock], where: Sequence[str]) -> list[Holder]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for index, block in blocks.items():
        sizes[where[index]] += block.size
        counts[where[index]] += 1
    return [
        Holder(line, bytes, counts[line]) for line, bytes in sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    ]


def _contents(blocks: Mapping[int, MemoryBlock], trace: AllocationTrace) -> list[Holder]:
    categories = [each.category.replace("_", " ") or "not recorded" for each in trace.allocations]
    return _holders(blocks, categories) if any(each.category for each in trace.allocations) else []


def _pins(state: Fragmentation, blocks: Mapping[int, MemoryBlock], where: Sequence[str]) -> Iterable[PinnedBy]:
    index_of = {id(block): index for index, block in blocks.items()}
    for pin in state.pins:
        largest = max(pin.blocks, key=lambda block: block.size, default=None)
        line = where[index_of[id(largest)]] if id(largest) in index_of else "not recorded"
        yield PinnedBy(pin.address, pin.size, pin.free, sum(block.size for block in pin.blocks), line)


def _trials(
    trace: AllocationTrace,
    recorded: AllocatorSettings,
    capacity: int | None,
    tried: Sequence[str],
    emptied: Sequence[int],
) -> Iterable[SettingsTrial]:
    for name, settings in [("as recorded", recorded), *((text, parse(text)) for text in tried)]:
        if settings == recorded and name != "as recorded":
            continue
        counts = replay(trace, settings, None, emptied).allocator.statistics
        failed = None if capacity is None else replay(trace, settings, capacity, emptied).failed
        yield SettingsTrial(name, counts.reserved_peak, counts.allocated_peak, failed)
