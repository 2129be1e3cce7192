"""The simulator over arrays, compiled. Imports numba.

It does what `simgpu.machine.simulator` does, in the same order within an instant, and gives the same numbers. All data
are arrays of integers, which `simgpu.machine.tables` describes.

Times are nanoseconds. A stream is a number, in instant order; the next event is found by a scan over the few streams.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.machine import compiled_pools, tables
from simgpu.machine.compiled_pools import acquire, release
from simgpu.machine.tables import (
    ACTIVE,
    ALONE,
    ARRIVED,
    BEGAN,
    BY,
    BY_STREAM,
    BYTES,
    CAP,
    CAUSE,
    COMPLETE,
    COPIED,
    DELAY,
    ENGINE,
    ENTRIES,
    EVENT,
    EXPIRES,
    FINISHED,
    FLOWING,
    FREED,
    FULL,
    HOPS,
    IN_ITERATION,
    INCONSISTENT,
    ITERATION,
    KIND,
    LAST,
    LATENCY,
    LIMITED,
    LIVE,
    LOGGED,
    NAME,
    NOBODY,
    NOW,
    NUMBER,
    ON_ENGINE,
    ON_EVENT,
    ON_MEMORY,
    OPEN,
    OUTCOME,
    PATH,
    PC,
    RATE,
    READY,
    REASON,
    REMAINING,
    REPETITION,
    RESOURCE,
    ROW,
    RUNNING,
    SEGMENT,
    SINCE,
    SINCE_NS,
    STATUS,
    STOPPED,
    STREAM,
    TARGET,
    TO_NS,
    UNTIL,
    USED,
    WAIT,
    WAITED,
    WORK,
)
from simgpu.program import opcodes
from simgpu.program.opcodes import ACQUIRE, AWAIT, COPY, END, LAUNCH, RELEASE, SIGNAL

# Without counts of references, which would take most of the time; so no function may make an array.
_machine = partial(compiled, depends_on=(compiled_pools, opcodes, tables), _nrt=False)

_NEVER = 2**62


@_machine
def _log(memory: Any, m: Any, now: Any, log: Any) -> None:
    """Note the bytes in use."""
    at = memory[m, LOGGED]
    log[0, at], log[1, at], log[2, at] = now, memory[m, LIVE], memory[m, USED]
    memory[m, LOGGED] = at + 1


@_machine
def _resume(streams: Any, s: Any, counts: Any, entries: Any, cause: Any) -> None:
    """A stream steps past the row at which it waited; the wait is noted if it took time."""
    _note(streams, s, counts, entries, cause)
    streams[s, PC] += 1
    streams[s, STATUS] = READY


@_machine
def _enter(streams: Any, s: Any, since: Any, cause: Any, counts: Any, entries: Any) -> None:
    """Write an entry of the log that ends now."""
    n = counts[ENTRIES]
    entries[n, BY_STREAM], entries[n, ROW], entries[n, CAUSE] = s, streams[s, PC], cause
    entries[n, SINCE_NS], entries[n, TO_NS], entries[n, IN_ITERATION] = since, counts[NOW], streams[s, ITERATION]
    counts[ENTRIES] = n + 1


@_machine
def _note(streams: Any, s: Any, counts: Any, entries: Any, cause: Any) -> None:
    since, now = streams[s, SINCE], counts[NOW]
    if now > since:
        _enter(streams, s, since, cause, counts, entries)


@_machine
def _tightest(streams: Any, flows: Any, ops: Any, copies: Any, links: Any) -> Any:
    """Fill in the limit of each flow that has no rate yet, and return the lowest; `_NEVER` if all have one."""
    for link in range(links.shape[1]):
        links[2, link] = 0
    for s in range(len(flows)):
        if flows[s, OPEN]:
            for p in range(PATH, PATH + HOPS):
                link = copies[ops[streams[s, PC], 1], p]
                if link >= 0:
                    links[2, link] += 1
    lowest = _NEVER
    for s in range(len(flows)):
        if flows[s, OPEN]:
            copy = ops[streams[s, PC], 1]
            limit = copies[copy, CAP]
            for p in range(PATH, PATH + HOPS):
                link = copies[copy, p]
                if link >= 0:
                    limit = min(limit, links[1, link] // links[2, link])
            flows[s, LIMITED] = limit
            lowest = min(lowest, limit)
    return lowest


@_machine
def _set_rates(streams: Any, flows: Any, ops: Any, copies: Any, links: Any, now: Any) -> None:
    """Max-min fair rates of the active flows, as in `simgpu.machine.flows.max_min_rates`."""
    for link in range(links.shape[1]):
        links[1, link] = links[0, link]
    for s in range(len(flows)):
        flows[s, OPEN] = flows[s, ACTIVE]
    while True:
        lowest = _tightest(streams, flows, ops, copies, links)
        if lowest == _NEVER:
            return
        for s in range(len(flows)):
            if not flows[s, OPEN] or flows[s, LIMITED] != lowest:
                continue
            flows[s, OPEN] = 0
            for p in range(PATH, PATH + HOPS):
                link = copies[ops[streams[s, PC], 1], p]
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
def _pass_bytes(streams: Any, flows: Any, ops: Any, copies: Any, links: Any, counts: Any) -> None:
    """Start flows whose latency is over, and end those whose bytes have arrived, until none is left at this instant."""
    now, again = counts[NOW], True
    while again:
        again = False
        for s in range(len(streams)):
            if streams[s, STATUS] == LATENCY and streams[s, UNTIL] == now:
                _progress(flows, counts)
                flows[s, ACTIVE], flows[s, RATE] = 1, 0
                flows[s, REMAINING] = copies[ops[streams[s, PC], 1], BYTES]
                streams[s, STATUS] = FLOWING
                _set_rates(streams, flows, ops, copies, links, now)
                again = True
            elif streams[s, STATUS] == FLOWING and flows[s, EXPIRES] == now:
                _progress(flows, counts)
                flows[s, ACTIVE] = 0
                streams[s, STATUS] = ARRIVED
                _set_rates(streams, flows, ops, copies, links, now)
                again = True


@_machine
def _begin(streams: Any, s: Any, ops: Any, copies: Any, now: Any) -> None:
    """A copy gets its engine."""
    copy = ops[streams[s, PC], 1]
    if copies[copy, ALONE] >= 0:
        streams[s, STATUS], streams[s, UNTIL] = RUNNING, now + copies[copy, ALONE]
    else:
        streams[s, STATUS], streams[s, UNTIL] = LATENCY, now + copies[copy, DELAY]
    streams[s, BEGAN] = now


@_machine
def _complete(streams: Any, ops: Any, copies: Any, engines: Any, counts: Any, entries: Any) -> None:
    """Streams whose work has ended go on, in order; the next copy in the queue of a freed engine begins."""
    now = counts[NOW]
    # What begins below may end at this instant, but not in this round.
    for s in range(len(streams)):
        if streams[s, STATUS] == RUNNING and streams[s, UNTIL] == now:
            streams[s, STATUS] = ARRIVED
    for s in range(len(streams)):
        if streams[s, STATUS] != ARRIVED:
            continue
        pc = streams[s, PC]
        _enter(streams, s, streams[s, BEGAN], WORK, counts, entries)
        if ops[pc, 0] == COPY:
            e = copies[ops[pc, 1], ENGINE]
            if engines[e, 1] == 0:
                engines[e, 0] = 0
            else:
                following = engines[e, 2]
                engines[e, 1] -= 1
                for k in range(engines[e, 1]):
                    engines[e, 2 + k] = engines[e, 3 + k]
                _note(streams, following, counts, entries, NOBODY)
                _begin(streams, following, ops, copies, now)
        streams[s, PC] += 1
        streams[s, STATUS] = READY


@_machine
def _grant(
    streams: Any, ops: Any, memory: Any, queues: Any, requests: Any, pieces: Any, addresses: Any, holes: Any, log: Any,
    counts: Any, entries: Any,
) -> None:  # fmt: skip
    """Serve the queues for memory, first in, first out."""
    counts[FREED] = 0
    for m in range(len(memory)):
        while queues[m, 0]:
            s = queues[m, 1]
            pc = streams[s, PC]
            if not acquire(memory, m, requests, ops[pc, 2], pieces, addresses, holes):
                break
            queues[m, 0] -= 1
            for k in range(1, queues[m, 0] + 1):
                queues[m, k] = queues[m, k + 1]
            _log(memory, m, counts[NOW], log)
            _resume(streams, s, counts, entries, counts[BY])


@_machine
def _go_on(
    streams: Any, s: Any, first: Any, repeats: Any, iterations: Any, own: Any, memory: Any, addresses: Any,
    uses: Any, layouts: Any,
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
        elif status in (RUNNING, LATENCY):
            at = min(at, streams[s, UNTIL])
    return at


@_machine
def _most_urgent(streams: Any, ops: Any) -> Any:
    """The ready stream whose next op comes first at this instant, -1 for none."""
    best, best_code = -1, COPY
    for s in range(len(streams)):
        if streams[s, STATUS] == READY:
            code = min(ops[streams[s, PC], 0], LAUNCH)
            if code < best_code:
                best, best_code = s, code
    return best


@_machine
def _is_alone(streams: Any) -> Any:
    """Whether a single stream is ready."""
    ready = 0
    for s in range(len(streams)):
        ready += streams[s, STATUS] == READY
    return ready == 1


@_machine
def execute(  # noqa: C901 - one branch per op, kept in one loop
    streams: Any, ops: Any, first: Any, repeats: Any, iterations: Any, own: Any, copies: Any, engines: Any,
    links: Any, memory: Any, queues: Any, requests: Any, pieces: Any, addresses: Any, holes: Any, events: Any,
    flows: Any, counts: Any, log: Any, uses: Any, layouts: Any, entries: Any,
) -> None:  # fmt: skip
    """Run until nothing can happen, or until the log is full; `counts` says how it ended. A run goes on when called
    again. `simgpu.machine.tables` describes the arguments."""
    room = 2 * len(streams) + 2
    while True:
        while True:
            if counts[ENTRIES] + room > len(entries):
                counts[OUTCOME] = FULL
                return
            s = _most_urgent(streams, ops)
            # Waiting requests are granted after the releases of this instant and before its new requests.
            if counts[FREED] and (s < 0 or ops[streams[s, PC], 0] >= ACQUIRE):
                _grant(streams, ops, memory, queues, requests, pieces, addresses, holes, log, counts, entries)
                continue
            if s < 0:
                break
            alone = _is_alone(streams)
            while True:
                pc = streams[s, PC]
                code, operand, second = ops[pc, 0], ops[pc, 1], ops[pc, 2]
                if code == AWAIT:
                    number, iteration = streams[s, NUMBER], streams[s, ITERATION]
                    target = (iteration + 1) * ops[pc, 3] + second if ops[pc, 3] else number + second
                    if events[operand] < target:
                        streams[s, STATUS], streams[s, SINCE] = ON_EVENT, counts[NOW]
                        streams[s, TARGET], streams[s, EVENT] = target, operand
                    else:
                        streams[s, PC] = pc + 1
                elif code == END:
                    _go_on(streams, s, first, repeats, iterations, own, memory, addresses, uses, layouts)
                elif code == RELEASE:
                    m = operand
                    if not release(memory, m, requests, second, pieces, addresses, holes):
                        counts[OUTCOME] = INCONSISTENT
                        return
                    _log(memory, m, counts[NOW], log)
                    streams[s, PC] = pc + 1
                    if queues[m, 0]:
                        counts[FREED], counts[BY] = 1, pc
                elif code == SIGNAL:
                    streams[s, PC] = pc + 1
                    events[operand] += 1
                    for w in range(len(streams)):
                        waits = streams[w, STATUS] == ON_EVENT and streams[w, EVENT] == operand
                        if waits and streams[w, TARGET] <= events[operand]:
                            _resume(streams, w, counts, entries, ops[streams[w, PC], 4])
                            alone = False
                elif code == ACQUIRE:
                    m = operand
                    if queues[m, 0] or not acquire(memory, m, requests, second, pieces, addresses, holes):
                        queues[m, 0] += 1
                        queues[m, queues[m, 0]] = s
                        streams[s, STATUS], streams[s, SINCE] = ON_MEMORY, counts[NOW]
                    else:
                        _log(memory, m, counts[NOW], log)
                        streams[s, PC] = pc + 1
                elif code == LAUNCH:
                    streams[s, STATUS], streams[s, UNTIL] = RUNNING, counts[NOW] + operand
                    streams[s, BEGAN] = counts[NOW]
                elif code == COPY:
                    e = copies[operand, ENGINE]
                    if engines[e, 0]:
                        engines[e, 2 + engines[e, 1]] = s
                        engines[e, 1] += 1
                        streams[s, STATUS], streams[s, SINCE] = ON_ENGINE, counts[NOW]
                    else:
                        engines[e, 0] = 1
                        _begin(streams, s, ops, copies, counts[NOW])
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
            _pass_bytes(streams, flows, ops, copies, links, counts)
        _complete(streams, ops, copies, engines, counts, entries)


@_machine
def write_columns(entries: Any, order: Any, labels: Any, sizes: Any, columns: Any) -> None:
    """Write the entries of a log in an order as the columns of `simgpu.machine.log.Entry`. sizes: bytes of copies."""
    for n in range(columns.shape[1]):
        e = order[n]
        row, cause = entries[e, ROW], entries[e, CAUSE]
        columns[0, n], columns[3, n], columns[4, n] = entries[e, BY_STREAM], entries[e, SINCE_NS], entries[e, TO_NS]
        columns[7, n] = entries[e, IN_ITERATION]
        if cause == WORK:
            copied = labels[row, COPIED]
            columns[1, n], columns[2, n] = labels[row, KIND], labels[row, NAME]
            columns[5, n] = sizes[copied] if copied >= 0 else 0
            columns[6, n], columns[8, n] = -1, labels[row, RESOURCE]
        else:
            columns[1, n], columns[5, n], columns[8, n] = labels[row, WAIT], 0, labels[row, WAITED]
            columns[2, n] = -1 if cause == NOBODY else labels[cause, REASON]
            columns[6, n] = -1 if cause == NOBODY else labels[cause, STREAM]
