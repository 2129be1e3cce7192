"""The simulator over arrays, compiled. Imports numba.

It does what `simgpu.machine.simulator` does, in the same order within an instant, and gives the same numbers. All data
are arrays of integers: `simgpu.machine.arrays` makes them from a program's columns.

Times are nanoseconds. A stream is a number, in instant order; the next event is found by a scan over the few streams.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.machine import compiled_caching, compiled_log, compiled_pools
from simgpu.machine.compiled_caching import write_layout
from simgpu.machine.compiled_log import BY_HOST, BY_STREAM, CAUSE, IN_ITERATION, NOBODY, ROW, SINCE_NS, TO_NS, WORK
from simgpu.machine.compiled_pools import CACHED, LIVE, PLACING, USED, acquire, note_bytes, note_refused, release
from simgpu.program import opcodes
from simgpu.program.opcodes import ACQUIRE, AWAIT, COPY, END, LAUNCH, RELEASE, SIGNAL

# Without counts of references, which would take most of the time; so no function may make an array.
_machine = partial(compiled, depends_on=(compiled_caching, compiled_log, compiled_pools, opcodes), _nrt=False)

# What a stream does: it can go on; runs until a time; waits for an event, memory or an engine; its copy waits for the
# link's latency until a time; its bytes flow; they have arrived; it has finished; the host launches its work until a
# time.
READY, RUNNING, ON_EVENT, ON_MEMORY, ON_ENGINE, LATENCY, FLOWING, ARRIVED, FINISHED, ON_LAUNCH = range(10)
# How a run ended: all streams finished; nothing can happen any more; a block without memory was released; the log
# must grow before it can go on.
COMPLETE, STOPPED, INCONSISTENT, FULL = range(4)
# Columns of the streams' state, and of the thread that launches its work: the time of a launch, 0 without one; when the
# last launch ended; whether it waits for events with the stream.
STATUS, PC, SEGMENT, REPETITION, NUMBER, ITERATION, TARGET, SINCE, UNTIL, EVENT, BEGAN = range(11)
LAUNCHING, LAUNCHED, BLOCKS = range(11, 14)
# Columns of copies: the engine; the time without a network, else -1; latency; billionths of a byte; the copy's own
# limit, and up to three links of its path, -1 for none.
ENGINE, ALONE, DELAY, BYTES, CAP, PATH = range(6)
# Columns of flows; the last two while rates are computed: whether it has no rate yet, and its limit.
ACTIVE, REMAINING, RATE, EXPIRES, OPEN, LIMITED = range(6)
# Counters: now, entries of the log, whether memory that somebody waits for was released, and by which row; when the
# flows last progressed; how the run ended.
NOW, ENTRIES, FREED, BY, LAST, OUTCOME = range(6)
# Columns of an event's source: the row that signals it, and that row's segment.
SIGNALLED_BY, SEGMENT_OF = range(2)
_NEVER = 2**62


@_machine
def _resume(streams: Any, s: Any, counts: Any, entries: Any, spans: Any, cause: Any) -> None:
    """A stream steps past the row at which it waited; the wait is noted if it took time."""
    _note(streams, s, counts, entries, spans, cause)
    streams[s, PC] += 1
    streams[s, STATUS] = READY


@_machine
def _enter(streams: Any, s: Any, since: Any, cause: Any, counts: Any, entries: Any, spans: Any) -> None:
    """Write an entry of the log that ends now."""
    n = counts[ENTRIES]
    entries[n, BY_STREAM], entries[n, ROW], entries[n, CAUSE] = s, streams[s, PC], cause
    entries[n, IN_ITERATION], spans[n, SINCE_NS], spans[n, TO_NS] = streams[s, ITERATION], since, counts[NOW]
    counts[ENTRIES] = n + 1


@_machine
def _note(streams: Any, s: Any, counts: Any, entries: Any, spans: Any, cause: Any) -> None:
    since, now = streams[s, SINCE], counts[NOW]
    if now > since:
        _enter(streams, s, since, cause, counts, entries, spans)


@_machine
def _tightest(streams: Any, flows: Any, numbers: Any, copies: Any, links: Any) -> Any:
    """Fill in the limit of each flow that has no rate yet, and return the lowest; `_NEVER` if all have one."""
    for link in range(links.shape[1]):
        links[2, link] = 0
    for s in range(len(flows)):
        if flows[s, OPEN]:
            for p in range(PATH, PATH + 3):
                link = copies[numbers[streams[s, PC]], p]
                if link >= 0:
                    links[2, link] += 1
    lowest = _NEVER
    for s in range(len(flows)):
        if flows[s, OPEN]:
            copy = numbers[streams[s, PC]]
            limit = copies[copy, CAP]
            for p in range(PATH, PATH + 3):
                link = copies[copy, p]
                if link >= 0:
                    limit = min(limit, links[1, link] // links[2, link])
            flows[s, LIMITED] = limit
            lowest = min(lowest, limit)
    return lowest


@_machine
def _set_rates(streams: Any, flows: Any, numbers: Any, copies: Any, links: Any, now: Any) -> None:
    """Max-min fair rates of the active flows, as in `simgpu.machine.flows.max_min_rates`."""
    for link in range(links.shape[1]):
        links[1, link] = links[0, link]
    for s in range(len(flows)):
        flows[s, OPEN] = flows[s, ACTIVE]
    while True:
        lowest = _tightest(streams, flows, numbers, copies, links)
        if lowest == _NEVER:
            return
        for s in range(len(flows)):
            if not flows[s, OPEN] or flows[s, LIMITED] != lowest:
                continue
            flows[s, OPEN] = 0
            for p in range(PATH, PATH + 3):
                link = copies[numbers[streams[s, PC]], p]
                if link >= 0:
                    links[1, link] -= lowest
            if lowest != flows[s, RATE]:
                flows[s, RATE] = lowest
                flows[s, EXPIRES] = now - (-max(flows[s, REMAINING], 0) // lowest)


@_machine
def _progress(flows: Any, counts: Any) -> None:
    """Move the bytes of the active flows up to now."""
    passed = counts[NOW] - counts[LAST]
    for s in range(len(flows)):
        if flows[s, ACTIVE]:
            flows[s, REMAINING] -= flows[s, RATE] * passed
    counts[LAST] = counts[NOW]


@_machine
def _pass_bytes(streams: Any, flows: Any, numbers: Any, copies: Any, links: Any, counts: Any) -> None:
    """Start flows whose latency is over, and end those whose bytes have arrived, until none is left at this instant."""
    now, again = counts[NOW], True
    while again:
        again = False
        for s in range(len(streams)):
            if streams[s, STATUS] == LATENCY and streams[s, UNTIL] == now:
                _progress(flows, counts)
                flows[s, ACTIVE], flows[s, RATE] = 1, 0
                flows[s, REMAINING] = copies[numbers[streams[s, PC]], BYTES]
                streams[s, STATUS] = FLOWING
                _set_rates(streams, flows, numbers, copies, links, now)
                again = True
            elif streams[s, STATUS] == FLOWING and flows[s, EXPIRES] == now:
                _progress(flows, counts)
                flows[s, ACTIVE] = 0
                streams[s, STATUS] = ARRIVED
                _set_rates(streams, flows, numbers, copies, links, now)
                again = True


@_machine
def _begin(streams: Any, s: Any, numbers: Any, copies: Any, now: Any) -> None:
    """A copy gets its engine."""
    copy = numbers[streams[s, PC]]
    if copies[copy, ALONE] >= 0:
        streams[s, STATUS], streams[s, UNTIL] = RUNNING, now + copies[copy, ALONE]
    else:
        streams[s, STATUS], streams[s, UNTIL] = LATENCY, now + copies[copy, DELAY]
    streams[s, BEGAN] = now


@_machine
def _complete(
    streams: Any, rows: Any, numbers: Any, copies: Any, engines: Any, counts: Any, entries: Any, spans: Any
) -> None:
    """Streams whose work has ended go on, in order; the next copy in the queue of a freed engine begins."""
    now = counts[NOW]
    # What begins below may end at this instant, but not in this round.
    for s in range(len(streams)):
        if streams[s, STATUS] == RUNNING and streams[s, UNTIL] == now:
            streams[s, STATUS] = ARRIVED
        elif streams[s, STATUS] == ON_LAUNCH and streams[s, UNTIL] == now:
            _note(streams, s, counts, entries, spans, BY_HOST)
            streams[s, STATUS] = READY
    for s in range(len(streams)):
        if streams[s, STATUS] != ARRIVED:
            continue
        pc = streams[s, PC]
        _enter(streams, s, streams[s, BEGAN], WORK, counts, entries, spans)
        if rows[pc, 0] >= COPY:
            e = copies[numbers[pc], ENGINE]
            if engines[e, 1] == 0:
                engines[e, 0] = 0
            else:
                following = engines[e, 2]
                engines[e, 1] -= 1
                for k in range(engines[e, 1]):
                    engines[e, 2 + k] = engines[e, 3 + k]
                _note(streams, following, counts, entries, spans, NOBODY)
                _begin(streams, following, numbers, copies, now)
        streams[s, PC] += 1
        streams[s, STATUS] = READY


@_machine
def _grant(
    streams: Any, numbers: Any, memory: Any, queues: Any, requests: Any, pieces: Any, addresses: Any, holes: Any,
    blocks: Any, order: Any, log: Any, counts: Any, entries: Any, spans: Any,
) -> None:  # fmt: skip
    """Serve the queues for memory, first in, first out."""
    counts[FREED] = 0
    for m in range(len(memory)):
        while queues[m, 0]:
            s = queues[m, 1]
            pc = streams[s, PC]
            if not acquire(memory, m, requests, numbers[pc], pieces, addresses, holes, blocks, order):
                note_refused(memory, m, counts[NOW], log, blocks)
                break
            queues[m, 0] -= 1
            for k in range(1, queues[m, 0] + 1):
                queues[m, k] = queues[m, k + 1]
            note_bytes(memory, m, counts[NOW], log, blocks)
            _resume(streams, s, counts, entries, spans, counts[BY])


@_machine
def _go_on(
    streams: Any, s: Any, first: Any, repeats: Any, iterations: Any, own: Any, memory: Any, addresses: Any,
    blocks: Any, order: Any, uses: Any, layouts: Any,
) -> None:  # fmt: skip
    """Go on to the next repetition, segment or iteration, or finish; note the state of the GPU's memory."""
    streams[s, REPETITION] += 1
    if streams[s, REPETITION] == repeats[streams[s, SEGMENT]]:
        streams[s, REPETITION] = 0
        streams[s, SEGMENT] += 1
        if streams[s, SEGMENT] == len(repeats):
            streams[s, SEGMENT] = 0
            m, parity = own[s], streams[s, ITERATION] % 2
            if m >= 0:
                uses[m, parity, 0], uses[m, parity, 1] = memory[m, LIVE], memory[m, USED]
                for b in range(addresses.shape[1]):
                    layouts[m, parity, b] = addresses[m, b]
                if blocks is not None:  # noqa: SIM102 - numba leaves out what this alone excludes
                    if memory[m, PLACING] == CACHED:
                        write_layout(memory, m, addresses, blocks, order, layouts[m, parity])
            streams[s, ITERATION] += 1
            if streams[s, ITERATION] == iterations:
                streams[s, STATUS] = FINISHED
                return
    segment = streams[s, SEGMENT]
    streams[s, NUMBER] = streams[s, ITERATION] * repeats[segment] + streams[s, REPETITION]
    streams[s, PC] = first[s, segment]


@_machine
def _next_event(streams: Any, flows: Any) -> Any:
    """The time of the next event, `_NEVER` if there is none."""
    at = _NEVER
    for s in range(len(streams)):
        status = streams[s, STATUS]
        if status == FLOWING:
            at = min(at, flows[s, EXPIRES])
        elif status in (RUNNING, LATENCY, ON_LAUNCH):
            at = min(at, streams[s, UNTIL])
    return at


@_machine
def _most_urgent(streams: Any, rows: Any) -> Any:
    """The ready stream whose next instruction comes first at this instant, -1 for none."""
    best, best_code = -1, COPY
    for s in range(len(streams)):
        if streams[s, STATUS] == READY:
            code = min(rows[streams[s, PC], 0], LAUNCH)
            if code < best_code:
                best, best_code = s, code
    return best


@_machine
def _is_launched(streams: Any, s: Any, now: Any) -> Any:
    """Whether the host has launched a stream's next work; if not, the stream waits until then."""
    if streams[s, LAUNCHING]:
        at = streams[s, LAUNCHED] + streams[s, LAUNCHING]
        if at > now:
            streams[s, STATUS], streams[s, SINCE], streams[s, UNTIL] = ON_LAUNCH, now, at
            return False
        streams[s, LAUNCHED] = at
    return True


@_machine
def _is_alone(streams: Any) -> Any:
    """Whether a single stream is ready."""
    ready = 0
    for s in range(len(streams)):
        ready += streams[s, STATUS] == READY
    return ready == 1


@_machine
def execute(  # noqa: C901 - one branch per op, kept in one loop
    streams: Any, rows: Any, numbers: Any, first: Any, repeats: Any, iterations: Any, own: Any, copies: Any,
    engines: Any, links: Any, memory: Any, places: Any, queues: Any, requests: Any, pieces: Any, addresses: Any,
    holes: Any, blocks: Any, order: Any, events: Any, sources: Any, durations: Any, flows: Any, counts: Any,
    log: Any, uses: Any, layouts: Any, entries: Any, spans: Any,
) -> None:  # fmt: skip
    """Run until nothing can happen, or until the log is full; `counts` says how it ended. A run goes on when called
    again. `simgpu.machine.arrays` describes the arguments."""
    room = 2 * len(streams) + 2
    while True:
        while True:
            if counts[ENTRIES] + room > len(entries):
                counts[OUTCOME] = FULL
                return
            s = _most_urgent(streams, rows)
            # Waiting requests are granted after the releases of this instant and before its new requests.
            if counts[FREED] and (s < 0 or rows[streams[s, PC], 0] >= ACQUIRE):
                _grant(
                    streams,
                    numbers,
                    memory,
                    queues,
                    requests,
                    pieces,
                    addresses,
                    holes,
                    blocks,
                    order,
                    log,
                    counts,
                    entries,
                    spans,
                )
                continue
            if s < 0:
                break
            alone = _is_alone(streams)
            while True:
                pc = streams[s, PC]
                code, operand, number = rows[pc, 0], rows[pc, 1], numbers[pc]
                if code == AWAIT:
                    segment, lag = sources[operand, SEGMENT_OF], rows[pc, 2]
                    target = streams[s, NUMBER] + 1 - lag
                    if segment != streams[s, SEGMENT]:
                        target = (streams[s, ITERATION] + 1) * repeats[segment] - lag
                    if events[operand] < target:
                        streams[s, STATUS], streams[s, SINCE] = ON_EVENT, counts[NOW]
                        streams[s, TARGET], streams[s, EVENT] = target, operand
                    else:
                        streams[s, PC] = pc + 1
                        if streams[s, BLOCKS]:
                            streams[s, LAUNCHED] = counts[NOW]
                elif code == END:
                    iteration = streams[s, ITERATION]
                    _go_on(streams, s, first, repeats, iterations, own, memory, addresses, blocks, order, uses, layouts)
                    if streams[s, ITERATION] != iteration:
                        streams[s, LAUNCHED] = counts[NOW]
                elif code == RELEASE:
                    m = places[s, operand]
                    if not release(memory, m, requests, number, pieces, addresses, holes, blocks, order):
                        counts[OUTCOME] = INCONSISTENT
                        return
                    note_bytes(memory, m, counts[NOW], log, blocks)
                    streams[s, PC] = pc + 1
                    if queues[m, 0]:
                        counts[FREED], counts[BY] = 1, pc
                elif code == SIGNAL:
                    streams[s, PC] = pc + 1
                    events[operand] += 1
                    for w in range(len(streams)):
                        waits = streams[w, STATUS] == ON_EVENT and streams[w, EVENT] == operand
                        if waits and streams[w, TARGET] <= events[operand]:
                            _resume(streams, w, counts, entries, spans, sources[operand, SIGNALLED_BY])
                            if streams[w, BLOCKS]:
                                streams[w, LAUNCHED] = counts[NOW]
                            alone = False
                elif code == ACQUIRE:
                    m = places[s, operand]
                    if queues[m, 0] or not acquire(
                        memory, m, requests, number, pieces, addresses, holes, blocks, order
                    ):
                        note_refused(memory, m, counts[NOW], log, blocks)
                        queues[m, 0] += 1
                        queues[m, queues[m, 0]] = s
                        streams[s, STATUS], streams[s, SINCE] = ON_MEMORY, counts[NOW]
                    else:
                        note_bytes(memory, m, counts[NOW], log, blocks)
                        streams[s, PC] = pc + 1
                elif code >= LAUNCH and not _is_launched(streams, s, counts[NOW]):
                    pass
                elif code >= COPY:
                    e = copies[number, ENGINE]
                    if engines[e, 0]:
                        engines[e, 2 + engines[e, 1]] = s
                        engines[e, 1] += 1
                        streams[s, STATUS], streams[s, SINCE] = ON_ENGINE, counts[NOW]
                    else:
                        engines[e, 0] = 1
                        _begin(streams, s, numbers, copies, counts[NOW])
                elif code >= LAUNCH:
                    streams[s, STATUS], streams[s, UNTIL] = RUNNING, counts[NOW] + durations[number]
                    streams[s, BEGAN] = counts[NOW]
                else:
                    streams[s, PC] = pc + 1
                # Whatever a stream does next comes next if no other can act, and nobody is to be granted memory.
                if not alone or streams[s, STATUS] != READY or counts[FREED]:
                    break
        at = _next_event(streams, flows)
        if at == _NEVER:
            counts[OUTCOME] = COMPLETE
            for s in range(len(streams)):
                if streams[s, STATUS] != FINISHED:
                    counts[OUTCOME] = STOPPED
            return
        counts[NOW] = at
        if links.shape[1]:
            _pass_bytes(streams, flows, numbers, copies, links, counts)
        _complete(streams, rows, numbers, copies, engines, counts, entries, spans)
