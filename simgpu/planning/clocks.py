"""Time and memory of one placement, by three clocks: algorithm 2 of HOME (section 3.4), made exact.

Functions on arrays alone, which numba compiles and Python runs as they are.

The compute stream, the copies out and the copies in have a clock each. The stages of algorithm 2 are kernels here.
While memory is short, the oldest copy out is waited for, and that wait is charged to its tensor (lines 3 to 9); before
a kernel, what it needs is swapped in or made again, and what that takes beyond the kernel's own time is charged to the
tensor (lines 11 to 18); then time and memory move on (line 19). Waiting follows the machine to the nanosecond, since a
copy out frees memory only at its end, one copy at a time. Where memory does not suffice even after all copies out have
ended, the walk goes on as if it did, and tells by how many bytes it was short at worst, so that placements that do not
fit can be told apart.
"""

from __future__ import annotations

from simgpu.planning.columns import (
    ACTION,
    AFTER,
    AHEAD,
    AWAY_AT,
    BACK_AT,
    BEFORE,
    BEGUN,
    CHARGED,
    CHOSEN,
    COMPUTE,
    DECODE_NS,
    DRAINED,
    DURATION,
    EARLY,
    ENCODE_NS,
    ENCODED,
    FETCH,
    FETCHES,
    FIRST,
    FREE_AT,
    FREED,
    GIVEN,
    GIVES,
    HELD,
    IN,
    IN_NS,
    ISSUE,
    KERNEL,
    LAST,
    LEAVE,
    LINE,
    LINE_END,
    MOVED,
    NEED,
    NEEDED_BY,
    NEXT,
    OF,
    OUT,
    OUT_NS,
    OVERHEAD,
    PEAK,
    RANK,
    RELAUNCH,
    RELAUNCHED,
    SHORT,
    SIZE,
    SORTED,
    STATE,
    STEP,
    TAKEN,
    TAKES,
    UNSORTED,
    WAITED,
    WATCH,
)
from simgpu.planning.remaking import order_relaunches
from simgpu.planning.tables import Ints, Positions, Scratch, Tables, Vectors

KEEP, SWAP, RECOMPUTE = 0, 1, 2


def choose(maps: Ints, options: Ints, fates: Ints, vector: Vectors) -> bool:
    """Look up what the vector says; returns whether anything is made again."""
    again = False
    for f in range(maps.shape[0]):
        action = options[f, vector[f], ACTION]
        fates[f, CHOSEN] = fates[f, STATE] = action
        fates[f, NEED] = maps[f, BEFORE]
        fates[f, NEEDED_BY] = -1
        fates[f, OVERHEAD] = fates[f, DRAINED] = 0
        again |= action == RECOMPUTE
    return again


def plan_fetches(
    kernels: Ints, maps: Ints, options: Ints, step_first: Ints, fates: Ints, pending: Ints, vector: Vectors
) -> None:
    """Which fetches each kernel triggers, in the order in which their blocks are needed."""
    count = 0
    for f in range(maps.shape[0]):
        if fates[f, CHOSEN] == SWAP:
            fates[count, UNSORTED] = f
            count += 1
    # By first need, then by rank: nearly sorted the other way round, since what is made first is needed last.
    for i in range(count):
        f = fates[count - 1 - i, UNSORTED]
        j = i - 1
        while j >= 0:
            other = fates[j, SORTED]
            later = fates[other, NEED] - fates[f, NEED]
            if later < 0 or (later == 0 and maps[other, RANK] < maps[f, RANK]):
                break
            fates[j + 1, SORTED] = other
            j -= 1
        fates[j + 1, SORTED] = f
    for i in range(count):
        f = fates[i, SORTED]
        step = max(kernels[fates[f, NEED], STEP] - options[f, vector[f], AHEAD], 0)
        k = max(step_first[step], maps[f, AFTER] + 1)
        fates[f, NEXT] = -1
        if pending[k, FIRST] < 0:
            pending[k, FIRST] = f
        else:
            fates[pending[k, LAST], NEXT] = f
        pending[k, LAST] = f


def take(fates: Ints, line: Ints, now: Ints, budget: int, size: int) -> None:
    """Take device memory: wait for the oldest copies out while it is short."""
    first, end = now[LINE], now[LINE_END]
    held = now[HELD] + size
    while first < end and (line[first, FREE_AT] <= now[COMPUTE] or held > budget):
        wait = line[first, FREE_AT] - now[COMPUTE]
        if wait > 0:
            fates[line[first, OF], OVERHEAD] += wait
            now[WAITED] += wait
            now[COMPUTE] += wait
        held -= line[first, FREED]
        first += 1
    now[LINE] = first
    now[HELD] = held
    now[PEAK] = max(now[PEAK], held)
    now[SHORT] = max(now[SHORT], held - budget)


def wait_until(fates: Ints, now: Ints, time: int, f: int) -> None:
    """The compute stream waits, on account of a feature map."""
    wait = time - now[COMPUTE]
    if wait > 0:
        fates[f, OVERHEAD] += wait
        now[WAITED] += wait
        now[COMPUTE] = time


def trigger(
    options: Ints, fates: Ints, pending: Ints, line: Ints, now: Ints, limits: Ints, vector: Vectors, k: int
) -> None:
    """The fetches that kernel k triggers."""
    budget, drains = limits[2], limits[3]
    f = pending[k, FIRST]
    pending[k, FIRST] = -1
    while f >= 0:
        if drains and fates[f, AWAY_AT] > now[COMPUTE]:
            wait_until(fates, now, max(now[OUT], now[IN]), f)
            fates[f, DRAINED] = 1
        wait_until(fates, now, fates[f, AWAY_AT], f)
        take(fates, line, now, budget, options[f, vector[f], MOVED])
        now[IN] = max(now[IN], now[COMPUTE]) + options[f, vector[f], IN_NS]
        fates[f, BACK_AT] = now[IN]
        f = fates[f, NEXT]


def have_back(maps: Ints, options: Ints, fates: Ints, line: Ints, now: Ints, budget: int, f: int, chosen: int) -> None:
    """A fetched feature map is needed now."""
    wait_until(fates, now, fates[f, BACK_AT], f)
    if options[f, chosen, ENCODED]:
        take(fates, line, now, budget, maps[f, SIZE])
        now[COMPUTE] += options[f, chosen, DECODE_NS]
        fates[f, OVERHEAD] += options[f, chosen, DECODE_NS]
        now[HELD] -= options[f, chosen, MOVED]


def leave(
    lists: Positions,
    maps: Ints,
    options: Ints,
    fates: Ints,
    line: Ints,
    now: Ints,
    budget: int,
    vector: Vectors,
    a: int,
    b: int,
) -> None:
    """Feature maps that a kernel was the last to use in forward go: those that `lists` names from a to b."""
    for at in range(a, b):
        f = lists[at]
        if fates[f, CHOSEN] == RECOMPUTE:
            now[HELD] -= maps[f, SIZE]
    for at in range(a, b):
        f = lists[at]
        if fates[f, CHOSEN] == SWAP and options[f, vector[f], ENCODED]:
            take(fates, line, now, budget, options[f, vector[f], MOVED])
            now[COMPUTE] += options[f, vector[f], ENCODE_NS]
            fates[f, OVERHEAD] += options[f, vector[f], ENCODE_NS]
            now[HELD] -= maps[f, SIZE]
    ended = now[COMPUTE]
    for at in range(a, b):
        f = lists[at]
        if fates[f, CHOSEN] == SWAP:
            begun = fates[f, BEGUN] if options[f, vector[f], EARLY] else ended
            now[OUT] = max(max(now[OUT], begun) + options[f, vector[f], OUT_NS], ended)
            fates[f, AWAY_AT] = now[OUT]
            end = now[LINE_END]
            line[end, FREE_AT] = now[OUT]
            line[end, FREED] = options[f, vector[f], MOVED]
            line[end, OF] = f
            now[LINE_END] = end + 1


def relaunch(
    kernels: Ints,
    maps: Ints,
    options: Ints,
    fates: Ints,
    again: Ints,
    line: Ints,
    now: Ints,
    budget: int,
    vector: Vectors,
    step: int,
    fetched: int,
) -> int:
    """One relaunch; returns how many fetches were for relaunches, up to here."""
    while fetched < now[FETCHES] and fates[fates[fetched, FETCH], NEEDED_BY] == step:
        f = fates[fetched, FETCH]
        have_back(maps, options, fates, line, now, budget, f, vector[f])
        fetched += 1
    take(fates, line, now, budget, again[step, TAKEN])
    ns = kernels[again[step, KERNEL], DURATION]
    now[COMPUTE] += ns
    now[RELAUNCHED] += ns
    fates[again[step, CHARGED], OVERHEAD] += ns
    now[HELD] -= again[step, GIVEN]
    return fetched


def evaluate(t: Tables, s: Scratch, vector: Vectors) -> None:
    """What a vector costs: afterwards `s.now` and the overheads in `s.fates` tell."""
    kernels, lists, maps, options = t.kernels, t.lists, t.maps, t.options
    fates, pending, again, line, now = s.fates, s.pending, s.again, s.line, s.now
    resident, given, budget = t.limits[0], t.limits[1], t.limits[2]
    stamp = now[-1]
    now[:] = 0
    now[-1] = stamp
    some = choose(maps, options, fates, vector)
    if some:
        order_relaunches(kernels, t.blocks, maps, lists, fates, pending, again, s.making, now)
    plan_fetches(kernels, maps, options, t.step_first, fates, pending, vector)
    now[HELD] = resident + given
    now[PEAK], now[SHORT] = now[HELD], max(now[HELD] - budget, 0)
    fetched = 0
    for k in range(kernels.shape[0] - 1):
        for at in range(kernels[k, ISSUE], kernels[k + 1, ISSUE]):
            fates[lists[at], BEGUN] = now[COMPUTE]
        if pending[k, FIRST] >= 0:
            trigger(options, fates, pending, line, now, t.limits, vector, k)
        if kernels[k, WATCH] < kernels[k + 1, WATCH]:
            if some:
                for step in range(pending[k, RELAUNCH], pending[k + 1, RELAUNCH]):
                    fetched = relaunch(kernels, maps, options, fates, again, line, now, budget, vector, step, fetched)
            for at in range(kernels[k, WATCH], kernels[k + 1, WATCH]):
                f = lists[at]
                if fates[f, CHOSEN] == SWAP and fates[f, NEED] == k and fates[f, NEEDED_BY] < 0:
                    have_back(maps, options, fates, line, now, budget, f, vector[f])
        if kernels[k, TAKES] > 0:
            take(fates, line, now, budget, kernels[k, TAKES])
        now[COMPUTE] += kernels[k, DURATION]
        now[HELD] -= kernels[k, GIVES]
        if kernels[k, LEAVE] < kernels[k + 1, LEAVE]:
            leave(lists, maps, options, fates, line, now, budget, vector, kernels[k, LEAVE], kernels[k + 1, LEAVE])


def evaluate_all(t: Tables, s: Scratch, vectors: Vectors, result: Ints) -> None:
    """result[i]: what `columns.RESULT` names of vectors[i]."""
    for i in range(vectors.shape[0]):
        evaluate(t, s, vectors[i])
        result[i, 0] = s.now[COMPUTE]
        result[i, 1] = s.now[PEAK]
        result[i, 2] = s.now[SHORT]
        result[i, 3] = s.now[WAITED]
        result[i, 4] = s.now[RELAUNCHED]
