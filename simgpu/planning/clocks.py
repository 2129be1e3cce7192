"""Step time and peak memory of one placement, by three clocks: an exact version of HOME's algorithm 2 (section 3.4).

All functions work on arrays only, so that numba can compile them; they also run as plain Python.

The compute stream, the offloads and the fetches have a clock each. The stages of algorithm 2 are kernels here. While
memory is short, compute waits for the oldest offload, and the wait is charged to its tensor (lines 3 to 9). Before a
kernel, its tensors are fetched or recomputed, and the extra time is charged to them (lines 11 to 18). Then time and
memory advance (line 19). Waits equal the machine's to the nanosecond, since an offload frees memory only at its end.
Where memory is short even after all offloads, the evaluation continues as if it sufficed and reports the largest
shortage in bytes, so that placements that do not fit can be compared.
"""

from __future__ import annotations

from simgpu.planning.columns import (
    ACQUIRED,
    ACQUIRES,
    ACTION,
    AFTER,
    AHEAD,
    BEFORE,
    CHARGED,
    CHOSEN,
    COMPUTE,
    DECODE_NS,
    DEVICE_BYTES,
    DRAINED,
    DURATION,
    EARLY,
    ENCODE_NS,
    ENCODED,
    FETCH,
    FETCHED_AT,
    FETCHES,
    FIRST,
    FREE_AT,
    FREED,
    IN,
    IN_NS,
    ISSUE,
    KERNEL,
    LAST,
    LAST_USED,
    LINE,
    LINE_END,
    NEED,
    NEEDED_BY,
    NEXT,
    OF,
    OFFLOAD_AT,
    OFFLOADED_AT,
    OUT,
    OUT_NS,
    OVERHEAD,
    PEAK,
    RANK,
    RELAUNCH,
    RELAUNCHED,
    RELEASED,
    RELEASES,
    SHORT,
    SIZE,
    SORTED,
    STATE,
    STEP,
    UNSORTED,
    USED,
    WAITED,
    WATCH,
)
from simgpu.planning.relaunches import order_relaunches
from simgpu.planning.tables import Ints, Positions, Scratch, Tables, Vectors

KEEP, SWAP, RECOMPUTE = 0, 1, 2


def choose(maps: Ints, options: Ints, states: Ints, vector: Vectors) -> bool:
    """Look up the chosen actions; returns whether any feature map is recomputed."""
    recomputes = False
    for f in range(maps.shape[0]):
        action = options[f, vector[f], ACTION]
        states[f, CHOSEN] = states[f, STATE] = action
        states[f, NEED] = maps[f, BEFORE]
        states[f, NEEDED_BY] = -1
        states[f, OVERHEAD] = states[f, DRAINED] = 0
        recomputes |= action == RECOMPUTE
    return recomputes


def plan_fetches(
    kernels: Ints, maps: Ints, options: Ints, step_first: Ints, states: Ints, pending: Ints, vector: Vectors
) -> None:
    """Assign each fetch to the kernel that triggers it, in the order in which the blocks are needed."""
    count = 0
    for f in range(maps.shape[0]):
        if states[f, CHOSEN] == SWAP:
            states[count, UNSORTED] = f
            count += 1
    # By first need, then by rank: nearly sorted in reverse, since the first created is the last needed.
    for i in range(count):
        f = states[count - 1 - i, UNSORTED]
        j = i - 1
        while j >= 0:
            other = states[j, SORTED]
            later = states[other, NEED] - states[f, NEED]
            if later < 0 or (later == 0 and maps[other, RANK] < maps[f, RANK]):
                break
            states[j + 1, SORTED] = other
            j -= 1
        states[j + 1, SORTED] = f
    for i in range(count):
        f = states[i, SORTED]
        step = max(kernels[states[f, NEED], STEP] - options[f, vector[f], AHEAD], 0)
        k = max(step_first[step], maps[f, AFTER] + 1)
        states[f, NEXT] = -1
        if pending[k, FIRST] < 0:
            pending[k, FIRST] = f
        else:
            states[pending[k, LAST], NEXT] = f
        pending[k, LAST] = f


def acquire(states: Ints, line: Ints, now: Ints, budget: int, size: int) -> None:
    """Acquire device memory; wait for the oldest offloads while it is short."""
    first, end = now[LINE], now[LINE_END]
    used = now[USED] + size
    while first < end and (line[first, FREE_AT] <= now[COMPUTE] or used > budget):
        wait = line[first, FREE_AT] - now[COMPUTE]
        if wait > 0:
            states[line[first, OF], OVERHEAD] += wait
            now[WAITED] += wait
            now[COMPUTE] += wait
        used -= line[first, FREED]
        first += 1
    now[LINE] = first
    now[USED] = used
    now[PEAK] = max(now[PEAK], used)
    now[SHORT] = max(now[SHORT], used - budget)


def wait_until(states: Ints, now: Ints, time: int, f: int) -> None:
    """Make the compute stream wait, and charge the wait to a feature map."""
    wait = time - now[COMPUTE]
    if wait > 0:
        states[f, OVERHEAD] += wait
        now[WAITED] += wait
        now[COMPUTE] = time


def issue_fetches(
    options: Ints, states: Ints, pending: Ints, line: Ints, now: Ints, limits: Ints, vector: Vectors, k: int
) -> None:
    """Issue the fetches that kernel k triggers."""
    budget, drains = limits[2], limits[3]
    f = pending[k, FIRST]
    pending[k, FIRST] = -1
    while f >= 0:
        if drains and states[f, OFFLOADED_AT] > now[COMPUTE]:
            wait_until(states, now, max(now[OUT], now[IN]), f)
            states[f, DRAINED] = 1
        wait_until(states, now, states[f, OFFLOADED_AT], f)
        acquire(states, line, now, budget, options[f, vector[f], DEVICE_BYTES])
        now[IN] = max(now[IN], now[COMPUTE]) + options[f, vector[f], IN_NS]
        states[f, FETCHED_AT] = now[IN]
        f = states[f, NEXT]


def use_fetched(
    maps: Ints, options: Ints, states: Ints, line: Ints, now: Ints, budget: int, f: int, chosen: int
) -> None:
    """Wait for a fetched feature map, and decode it if it is encoded."""
    wait_until(states, now, states[f, FETCHED_AT], f)
    if options[f, chosen, ENCODED]:
        acquire(states, line, now, budget, maps[f, SIZE])
        now[COMPUTE] += options[f, chosen, DECODE_NS]
        states[f, OVERHEAD] += options[f, chosen, DECODE_NS]
        now[USED] -= options[f, chosen, DEVICE_BYTES]


def offload(
    lists: Positions,
    maps: Ints,
    options: Ints,
    states: Ints,
    line: Ints,
    now: Ints,
    budget: int,
    vector: Vectors,
    a: int,
    b: int,
) -> None:
    """Drop or offload the feature maps whose last use in forward has ended: those in `lists` from a to b."""
    for at in range(a, b):
        f = lists[at]
        if states[f, CHOSEN] == RECOMPUTE:
            now[USED] -= maps[f, SIZE]
    for at in range(a, b):
        f = lists[at]
        if states[f, CHOSEN] == SWAP and options[f, vector[f], ENCODED]:
            acquire(states, line, now, budget, options[f, vector[f], DEVICE_BYTES])
            now[COMPUTE] += options[f, vector[f], ENCODE_NS]
            states[f, OVERHEAD] += options[f, vector[f], ENCODE_NS]
            now[USED] -= maps[f, SIZE]
    ended = now[COMPUTE]
    for at in range(a, b):
        f = lists[at]
        if states[f, CHOSEN] == SWAP:
            begun = states[f, OFFLOAD_AT] if options[f, vector[f], EARLY] else ended
            now[OUT] = max(max(now[OUT], begun) + options[f, vector[f], OUT_NS], ended)
            states[f, OFFLOADED_AT] = now[OUT]
            end = now[LINE_END]
            line[end, FREE_AT] = now[OUT]
            line[end, FREED] = options[f, vector[f], DEVICE_BYTES]
            line[end, OF] = f
            now[LINE_END] = end + 1


def relaunch(
    kernels: Ints,
    maps: Ints,
    options: Ints,
    states: Ints,
    relaunches: Ints,
    line: Ints,
    now: Ints,
    budget: int,
    vector: Vectors,
    step: int,
    fetched: int,
) -> int:
    """Run one relaunch; returns the number of fetches for relaunches so far."""
    while fetched < now[FETCHES] and states[states[fetched, FETCH], NEEDED_BY] == step:
        f = states[fetched, FETCH]
        use_fetched(maps, options, states, line, now, budget, f, vector[f])
        fetched += 1
    acquire(states, line, now, budget, relaunches[step, ACQUIRED])
    ns = kernels[relaunches[step, KERNEL], DURATION]
    now[COMPUTE] += ns
    now[RELAUNCHED] += ns
    states[relaunches[step, CHARGED], OVERHEAD] += ns
    now[USED] -= relaunches[step, RELEASED]
    return fetched


def evaluate(t: Tables, s: Scratch, vector: Vectors) -> None:
    """Evaluate one vector; the results are in `s.now` and the overheads in `s.states`."""
    kernels, lists, maps, options = t.kernels, t.lists, t.maps, t.options
    states, pending, relaunched, line, now = s.states, s.pending, s.relaunches, s.line, s.now
    resident, host_inputs, budget = t.limits[0], t.limits[1], t.limits[2]
    for column in range(now.shape[0] - 1):  # all but the stamp
        now[column] = 0
    any_recomputed = choose(maps, options, states, vector)
    if any_recomputed:
        order_relaunches(kernels, t.blocks, maps, lists, states, pending, relaunched, s.recomputing, now)
    plan_fetches(kernels, maps, options, t.step_first, states, pending, vector)
    now[USED] = resident + host_inputs
    now[PEAK], now[SHORT] = now[USED], max(now[USED] - budget, 0)
    fetched = 0
    for k in range(kernels.shape[0] - 1):
        for at in range(kernels[k, ISSUE], kernels[k + 1, ISSUE]):
            states[lists[at], OFFLOAD_AT] = now[COMPUTE]
        if pending[k, FIRST] >= 0:
            issue_fetches(options, states, pending, line, now, t.limits, vector, k)
        if kernels[k, WATCH] < kernels[k + 1, WATCH]:
            if any_recomputed:
                for step in range(pending[k, RELAUNCH], pending[k + 1, RELAUNCH]):
                    fetched = relaunch(
                        kernels, maps, options, states, relaunched, line, now, budget, vector, step, fetched
                    )
            for at in range(kernels[k, WATCH], kernels[k + 1, WATCH]):
                f = lists[at]
                if states[f, CHOSEN] == SWAP and states[f, NEED] == k and states[f, NEEDED_BY] < 0:
                    use_fetched(maps, options, states, line, now, budget, f, vector[f])
        if kernels[k, ACQUIRES] > 0:
            acquire(states, line, now, budget, kernels[k, ACQUIRES])
        now[COMPUTE] += kernels[k, DURATION]
        now[USED] -= kernels[k, RELEASES]
        first, stop = kernels[k, LAST_USED], kernels[k + 1, LAST_USED]
        if first < stop:
            offload(lists, maps, options, states, line, now, budget, vector, first, stop)


def evaluate_all(t: Tables, s: Scratch, vectors: Vectors, results: Ints) -> None:
    """Evaluate all vectors. results[i]: the columns of `columns.RESULTS` for vectors[i]."""
    for i in range(vectors.shape[0]):
        evaluate(t, s, vectors[i])
        results[i, 0] = s.now[COMPUTE]
        results[i, 1] = s.now[PEAK]
        results[i, 2] = s.now[SHORT]
        results[i, 3] = s.now[WAITED]
        results[i, 4] = s.now[RELAUNCHED]
