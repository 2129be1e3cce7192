"""Device memory of a profile's iteration from the memory snapshot of the same run.

Both recordings list the allocator's requests in their order. Where the profile has memory events
(`profile_memory=True`), an event of the one is that event of the other if the sequences of addresses agree around it;
it has the profile's time and thread, and the snapshot's size. An event that only the snapshot has happened at the time
of the one before it. An event that only the profile has keeps its rounded size. If the profile has no memory events,
the snapshot's are placed by their time, which is exact to a microsecond, in the operator that began last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from simgpu.errors import InputError
from simgpu.importers.kineto.alignment import aligned
from simgpu.importers.kineto.attribution import Attribution, innermost
from simgpu.importers.kineto.blocks import Allocation, BlockBefore, DeviceMemory
from simgpu.importers.kineto.profile import MemoryEvent, Thread
from simgpu.trace.allocations import AllocationTrace, AllocatorAction
from simgpu.trace.code_lines import short_line, where_of
from simgpu.units import format_bytes, format_time

#: Earliest plausible time of a recording, in ns since 1970 (September 2001); earlier clocks count from another origin.
EPOCH_FROM = 10**18
#: Clocks of one run differ by less than this, ns.
_APART = 60 * 10**9
_PIECE = 512
_SAME_RUN = "give the snapshot and the profile of the same run, recorded at the same time"


@dataclass(frozen=True, slots=True)
class JoinedMemory:
    """The memory of an iteration, and what is known of the join, as a sentence."""

    memory: DeviceMemory
    note: str


@dataclass(frozen=True, slots=True)
class _Request:
    """A block that the snapshot allocates or frees. event: its number. index: of the allocation."""

    event: int
    index: int
    is_allocated: bool
    address: int
    time_ns: int | None

    @property
    def key(self) -> tuple[bool, int]:
        return self.is_allocated, self.address


@dataclass(frozen=True, slots=True)
class _Step:
    """An entry of both recordings, in order. request: of the snapshot, event: of the profile; None if not there."""

    at: int
    thread: Thread
    request: _Request | None
    event: MemoryEvent | None


def recorded_memory(attribution: Attribution, trace: AllocationTrace) -> JoinedMemory:
    """The memory of the iteration; raises `InputError` if too little of the two recordings matches."""
    iteration, profile = attribution.iteration, attribution.profile
    device = iteration.kernels[0].device
    if trace.gpu != device:
        what = f"is of GPU {trace.gpu}, and the kernels of {profile.path.name} ran on GPU {device}"
        raise InputError.single(trace.name, "", what, "choose the GPU with --gpu")
    requests = list(_requests(trace))
    events = sorted(
        (event for event in profile.memory if event.device == device and iteration.contains(event.at)),
        key=lambda event: (event.at, event.number),
    )
    steps, note = _by_order(attribution, trace, requests, events) if events else _by_time(attribution, trace, requests)
    peak = max((event.total for event in events), default=-1)
    memory = _follow(attribution, trace, requests, steps, peak)
    before = sum(each.bytes for each in memory.before)
    held = (
        f" Memory from before the iteration: {format_bytes(before)} in {len(memory.before)} blocks." if before else ""
    )
    return JoinedMemory(memory, note + held)


def _requests(trace: AllocationTrace) -> Iterator[_Request]:
    freed = set[int]()
    for number, event in enumerate(trace.events):
        time = None if event.time_us is None else event.time_us * 1000
        index = event.allocation
        if index is None or event.action == AllocatorAction.ANNOTATE:
            continue
        if event.action == AllocatorAction.ALLOC:
            yield _Request(number, index, True, event.address, time)
        elif index not in freed:
            freed.add(index)
            yield _Request(number, index, False, event.address, time)


def _clock(attribution: Attribution) -> int | None:
    """What the profile's times count from, ns since 1970; None if that is not known."""
    base = attribution.profile.base_ns
    return base if base + attribution.iteration.kernels[0].start >= EPOCH_FROM else None


def _by_order(
    attribution: Attribution, trace: AllocationTrace, requests: Sequence[_Request], events: Sequence[MemoryEvent]
) -> tuple[list[_Step], str]:
    clock = _clock(attribution)
    times = [request.time_ns for request in requests if request.time_ns is not None]
    timed = clock is not None and len(times) == len(requests)
    pairs, choices = aligned(
        [(event.bytes > 0, event.address) for event in events],
        [request.key for request in requests],
        [clock + event.at for event in events] if clock is not None and timed else None,
        times if timed else None,
    )
    name = attribution.profile.path.name
    if 2 * len(pairs) < len(events):
        what = f"does not match {name}: {len(pairs)} of {len(events)} memory events are at the same addresses"
        raise InputError.single(trace.name, "", what, _SAME_RUN)
    if timed and clock is not None:
        apart = median_low(times[j] - clock - events[i].at for i, j in pairs)
        if abs(apart) > _APART:
            what = f"does not match {name}: the same addresses are allocated {format_time(abs(apart))} apart"
            raise InputError.single(trace.name, "", what, _SAME_RUN)
    steps = _merged(requests, events, pairs)
    only = len(steps) - len(events)
    parts = [f"Sizes and lifetimes of blocks are those of memory snapshot {trace.name}."]
    parts.append(f"Of the profile's {len(events)} memory events, {len(pairs)} match it by address and order.")
    if len(events) > len(pairs):
        parts.append(f"{len(events) - len(pairs)} are in the profile only, with sizes rounded by the allocator.")
    if only:
        parts.append(f"{only} events are in the snapshot only; they are placed after the event before them.")
    if choices > 1:
        way = "the nearest in time" if timed else "the last"
        parts.append(f"The snapshot repeats these addresses at {choices} places; {way} is taken.")
    return steps, " ".join(parts)


def _merged(
    requests: Sequence[_Request], events: Sequence[MemoryEvent], pairs: Sequence[tuple[int, int]]
) -> list[_Step]:
    """Both recordings as one, from the profile's first event to its last."""
    steps: list[_Step] = []
    partner = dict(pairs)
    behind: int | None = None
    for place, event in enumerate(events):
        request = partner.get(place)
        if request is not None:
            last = steps[-1] if steps else None
            for between in range(request if behind is None else behind, request):
                assert last is not None
                steps.append(_Step(last.at, last.thread, requests[between], None))
            behind = request + 1
        steps.append(_Step(event.at, event.thread, None if request is None else requests[request], event))
    return steps


def _by_time(attribution: Attribution, trace: AllocationTrace, requests: Sequence[_Request]) -> tuple[list[_Step], str]:
    clock, iteration = _clock(attribution), attribution.iteration
    name = attribution.profile.path.name
    if clock is None or any(request.time_ns is None for request in requests):
        which = "the snapshot has no times" if clock is not None else "the profile's clock does not count from 1970"
        what = f"cannot be joined with {name}, which has no memory events: {which}"
        raise InputError.single(trace.name, "", what, "record the profile with profile_memory=True")
    # Times are rounded down to a microsecond; the order of the requests is exact.
    inside = [request for request in requests if iteration.contains((request.time_ns or 0) - clock + 999)]
    placed = _placed(attribution, [(request.time_ns or 0) - clock for request in inside])
    steps = [
        _Step(first if request.is_allocated else last, thread or (None, None), request, None)
        for request, (first, last, thread) in zip(inside, placed, strict=True)
    ]
    found = sum(
        request.is_allocated and thread is not None for request, (_, _, thread) in zip(inside, placed, strict=True)
    )
    allocated = sum(request.is_allocated for request in inside)
    if 2 * found < allocated or not allocated:
        what = (
            f"does not match {name}: of {allocated} allocations during its iteration, "
            f"{found} are within an operator that it recorded"
        )
        raise InputError.single(trace.name, "", what, _SAME_RUN)
    parts = [
        f"Sizes and lifetimes of blocks are those of memory snapshot {trace.name}, placed by their time, which is "
        "exact to a microsecond: the profile has no memory events (profile_memory=True)."
    ]
    parts.append(f"Of {allocated} allocations, {found} are within a recorded operator.")
    return steps, " ".join(parts)


def _placed(attribution: Attribution, moments: Sequence[int]) -> list[tuple[int, int, Thread | None]]:
    """For each microsecond, by its first ns: the first and last moment in it, and the thread that ran.

    The thread is that of the operator that began last; None if there is none. The first moment is not before it began.
    """
    ops = attribution.ops
    ends = [moment + 999 for moment in moments]
    known = list(dict.fromkeys(op.thread for op in ops if not op.is_annotation))
    around = [innermost(ops, [(thread, end) for end in ends]) for thread in known]
    early = [innermost(ops, [(thread, moment) for moment in moments]) for thread in known]
    result: list[tuple[int, int, Thread | None]] = []
    for number, moment in enumerate(moments):
        places = [row[number] for row in (*around, *early)]
        running = [place for place in places if next(attribution.operators(place), -1) >= 0]
        if running:
            op = ops[max(running, key=lambda place: (ops[place].start, place))]
            result.append((max(moment, op.start), ends[number], op.thread))
        else:
            result.append((moment, ends[number], None))
    return result


def _follow(
    attribution: Attribution, trace: AllocationTrace, requests: Sequence[_Request], steps: Sequence[_Step], peak: int
) -> DeviceMemory:
    """Allocations and frees of the iteration, in order."""
    first = min((step.request.event for step in steps if step.request is not None), default=len(trace.events))
    before = _before(trace, requests, first)
    lines = [short_line(where_of(stack)) for stack in trace.stacks]
    around = innermost(attribution.ops, [(step.thread, step.at) for step in steps])
    live: dict[int, Allocation] = {}
    allocations: list[Allocation] = []
    freed: dict[int, int] = {}
    for step, op in zip(steps, around, strict=True):
        request, event = step.request, step.event
        address = request.address if request is not None else event.address if event is not None else 0
        is_allocated = request.is_allocated if request is not None else event is not None and event.bytes > 0
        known = live.pop(address, None)
        if known is not None:
            known.freed = step.at
        elif address in before and not is_allocated:
            freed.setdefault(before[address], step.at)
        if is_allocated:
            allocation = Allocation(step.thread, step.at, event.bytes if event is not None else 0, op)
            if request is not None:
                recorded = trace.allocations[request.index]
                line = lines[recorded.stack] if recorded.stack is not None else ""
                allocation.bytes, allocation.category = recorded.size, recorded.category
                allocation.line = line if ".py:" in line else ""
            allocations.append(allocation)
            live[address] = allocation
    blocks = [
        BlockBefore(trace.allocations[index].size, freed.get(index), trace.allocations[index].category)
        for index in before.values()
    ]
    return _device_memory(attribution, allocations, blocks, peak)


def _before(trace: AllocationTrace, requests: Sequence[_Request], first: int) -> dict[int, int]:
    """The allocations that exist before an event, by address."""
    live = {trace.allocations[index].address: index for index in trace.begun_before}
    for request in requests:
        if request.event >= first:
            break
        if request.is_allocated:
            live[request.address] = request.index
        else:
            live.pop(request.address, None)
    return live


def _device_memory(
    attribution: Attribution, allocations: Sequence[Allocation], before: Sequence[BlockBefore], peak: int
) -> DeviceMemory:
    launch = min(launched.at for launched in attribution.launched)
    rounded = [replace(each, bytes=-(-each.bytes // _PIECE) * _PIECE) for each in before]
    later = [(each.bytes, each.freed) for each in rounded if each.freed is not None and each.freed >= launch]
    gone = sum(each.bytes for each in rounded if each.freed is not None and each.freed < launch)
    return DeviceMemory(
        tuple(allocations),
        tuple(later),
        sum(each.bytes for each in rounded) - gone,
        peak if peak >= 0 else None,
        tuple(before),
    )
