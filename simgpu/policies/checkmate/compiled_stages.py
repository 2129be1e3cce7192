"""Time and memory of the stages of a schedule, and the best way to keep a few values, compiled. Imports numba.

Stage t ends with the first run of node t. kept[t, v]: whether value v is kept for stage t. What a stage needs and is
not kept runs again in it, in order, as in `simgpu.policies.common.node_schedule`; so a stage's time and memory follow
from what is kept for it and for the next one alone. That makes the best way to keep a few values, with all others as
they are, a shortest path through the stages.

values, nodes, lists, scratch: the tables of `simgpu.policies.checkmate.stage_costs`. work: a row for each name below.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled

_stages = partial(compiled, _nrt=False)

# Columns of values: the node that makes it, the last stage that may need it, its bytes.
MAKER, LAST, SIZE = range(3)
# Columns of nodes: its time; bytes of fixed blocks before it, and while it runs first, with its own values; where what
# it reads, what it makes and what else it acquires when it runs again begin in the lists.
DURATION, FIXED, FIRST_PEAK, INPUTS, OUTPUTS, SCRATCH = range(6)
# Columns of what else a node acquires when it runs again: its bytes, and the first stage in which it is not there.
BYTES, FREED = range(2)
# Rows of work: when a value came or left in this evaluation; the last run that reads it; whether a node runs again; the
# runs; what is to run again; what is to come for the next stage; and, in its first place, a number that grows with each
# evaluation, so that what an earlier one wrote is older than it.
THERE, LAST_AT, AGAIN, RUNS, STACK, WANTED, CLOCK = range(7)


@_stages
def _count(v: Any, t: Any, now: Any, after: Any, common: Any, wanted: Any, values: Any, work: Any) -> Any:
    """Adds a value, if it is kept for the next stage, to the bytes that are kept for both or to those to come."""
    if after[v]:
        if now[v]:
            common += values[v, SIZE]
        elif values[v, MAKER] != t:
            work[WANTED, wanted] = v
            wanted += 1
    return common, wanted


@_stages
def _prepare(t: Any, now: Any, after: Any, values: Any, work: Any) -> Any:
    """Bytes that are kept for a stage and the next, and how many values, which it lists, are to come for the next."""
    common, wanted = 0, 0
    for v in range(now.shape[0]):
        common, wanted = _count(v, t, now, after, common, wanted, values, work)
    return common, wanted


@_stages
def _need(v: Any, now: Any, waiting: Any, values: Any, work: Any) -> Any:
    """Lets the node of a value run again, unless the value is kept or the node does so already."""
    maker = values[v, MAKER]
    if now[v] or work[AGAIN, maker]:
        return waiting
    work[AGAIN, maker] = 1
    work[STACK, waiting] = maker
    return waiting + 1


@_stages
def _runs_of(t: Any, now: Any, wanted: Any, values: Any, nodes: Any, lists: Any, work: Any) -> Any:
    """Writes down the runs of a stage, in order; returns how many run again."""
    waiting, count, n = 0, 0, t
    for at in range(wanted):
        waiting = _need(work[WANTED, at], now, waiting, values, work)
    while True:
        for at in range(nodes[n, INPUTS], nodes[n + 1, INPUTS]):
            waiting = _need(lists[at], now, waiting, values, work)
        if waiting == 0:
            break
        waiting -= 1
        n = work[STACK, waiting]
        place = count
        while place > 0 and work[RUNS, place - 1] > n:
            work[RUNS, place] = work[RUNS, place - 1]
            place -= 1
        work[RUNS, place] = n
        count += 1
    work[RUNS, count] = t
    return count


@_stages
def _is_there(v: Any, now: Any, clock: Any, work: Any) -> Any:
    if abs(work[THERE, v]) == clock:
        return work[THERE, v] > 0
    return now[v] != 0


@_stages
def _free(v: Any, run: Any, now: Any, after: Any, clock: Any, values: Any, work: Any) -> Any:
    """Frees a value that no later run of the stage reads, and that is not kept; returns its bytes."""
    if work[LAST_AT, v] > clock + run or after[v] or not _is_there(v, now, clock, work):
        return 0
    work[THERE, v] = -clock
    return values[v, SIZE]


@_stages
def _stage(
    t: Any, now: Any, after: Any, common: Any, wanted: Any, values: Any, nodes: Any, lists: Any, scratch: Any, work: Any
) -> Any:
    """The time of what runs again in a stage, and its peak in bytes."""
    count = _runs_of(t, now, wanted, values, nodes, lists, work)
    clock = work[CLOCK, 0] + 1
    work[CLOCK, 0] = clock + count
    held, time, peak = common, 0, 0
    for run in range(count + 1):
        n = work[RUNS, run]
        work[AGAIN, n] = 0
        for at in range(nodes[n, INPUTS], nodes[n + 1, INPUTS]):
            v = lists[at]
            if work[LAST_AT, v] < clock and now[v] and not after[v]:
                held += values[v, SIZE]
            work[LAST_AT, v] = clock + run
    for run in range(count + 1):
        n = work[RUNS, run]
        if run < count:
            time += nodes[n, DURATION]
            taken = held + nodes[t, FIXED]
            for at in range(nodes[n, OUTPUTS], nodes[n + 1, OUTPUTS]):
                taken += 0 if _is_there(lists[at], now, clock, work) else values[lists[at], SIZE]
            for at in range(nodes[n, SCRATCH], nodes[n + 1, SCRATCH]):
                taken += scratch[at, BYTES] if scratch[at, FREED] <= t else 0
        else:
            taken = held + nodes[t, FIRST_PEAK]
        peak = max(peak, taken)
        for at in range(nodes[n, OUTPUTS], nodes[n + 1, OUTPUTS]):
            v = lists[at]
            if not _is_there(v, now, clock, work):
                held += values[v, SIZE]
                work[THERE, v] = clock
            held -= _free(v, run, now, after, clock, values, work)
        for at in range(nodes[n, INPUTS], nodes[n + 1, INPUTS]):
            held -= _free(lists[at], run, now, after, clock, values, work)
    return time, peak


@_stages
def stage(t: Any, now: Any, after: Any, values: Any, nodes: Any, lists: Any, scratch: Any, work: Any) -> Any:
    """The time of what runs again in a stage, and its peak in bytes. now, after: what is kept for it and the next."""
    common, wanted = _prepare(t, now, after, values, work)
    return _stage(t, now, after, common, wanted, values, nodes, lists, scratch, work)


@_stages
def total(kept: Any, budget: Any, price: Any, values: Any, nodes: Any, lists: Any, scratch: Any, work: Any) -> Any:
    """The time of what runs again in all stages, and the price of each byte over the budget."""
    costs = 0.0
    for t in range(kept.shape[0] - 1):
        time, peak = stage(t, kept[t], kept[t + 1], values, nodes, lists, scratch, work)
        costs += time + price * max(0, peak - budget)
    return costs


@_stages
def _choose(state: Any, chosen: Any, row: Any) -> None:
    for place in range(chosen.shape[0]):
        row[chosen[place]] = state >> place & 1


@_stages
def _is_possible(state: Any, chosen: Any, t: Any, values: Any) -> Any:
    """Whether the chosen values of a state can all be kept for stage t."""
    for place in range(chosen.shape[0]):
        v = chosen[place]
        if state >> place & 1 and not values[v, MAKER] < t <= values[v, LAST]:
            return False
    return True


@_stages
def _chosen_cost(
    t: Any,
    chosen: Any,
    rows: Any,
    common: Any,
    wanted: Any,
    budget: Any,
    price: Any,
    values: Any,
    nodes: Any,
    lists: Any,
    scratch: Any,
    work: Any,
) -> Any:
    """The cost of a stage. common, wanted: of all values but the chosen."""
    for place in range(chosen.shape[0]):
        common, wanted = _count(chosen[place], t, rows[0], rows[1], common, wanted, values, work)
    time, peak = _stage(t, rows[0], rows[1], common, wanted, values, nodes, lists, scratch, work)
    return time + price * max(0, peak - budget)


@_stages
def _least(state: Any, chosen: Any, t: Any, values: Any, nodes: Any) -> Any:
    """A stage in which these chosen values come takes at least this time: one of their nodes runs again."""
    least = 0
    for place in range(chosen.shape[0]):
        maker = values[chosen[place], MAKER]
        if state >> place & 1 and maker != t:
            least = max(least, nodes[maker, DURATION])
    return least


@_stages
def _is_better(cost: Any, state: Any, other_cost: Any, other: Any) -> Any:
    """Whether a way costs less than another one; of equal ones, the first of the chosen values are rather dropped."""
    return cost >= 0 and (cost < other_cost or (cost == other_cost and state <= other))


@_stages
def keep_best(
    kept: Any,
    chosen: Any,
    best: Any,
    came: Any,
    rows: Any,
    budget: Any,
    price: Any,
    values: Any,
    nodes: Any,
    lists: Any,
    scratch: Any,
    work: Any,
) -> None:
    """Keeps the chosen values in the best way, with all others as they are.

    best: for two stages and each set of the chosen values, the least cost. came: for each stage and set, the set before
    it on that path. rows: what is kept for a stage and the next, to be written to.
    """
    first, last, states = kept.shape[0], 0, 1 << chosen.shape[0]
    for place in range(chosen.shape[0]):
        first, last = min(first, values[chosen[place], MAKER]), max(last, values[chosen[place], LAST])
    for state in range(states):
        best[0, state] = -1.0 if state else 0.0
    for t in range(first, last + 1):
        for v in range(kept.shape[1]):
            rows[0, v], rows[1, v] = kept[t, v], kept[t + 1, v]
        _choose(0, chosen, rows[0])
        _choose(0, chosen, rows[1])
        common, wanted = _prepare(t, rows[0], rows[1], values, work)
        for after in range(states):
            best[1, after] = -1.0
            if not _is_possible(after, chosen, t + 1, values):
                continue
            _choose(after, chosen, rows[1])
            for each in range(states):
                # First from what was kept already: it costs least as a rule, and rules the others out.
                before = each ^ after
                if best[0, before] < 0:
                    continue
                least = best[0, before] + _least(after & ~before, chosen, t, values, nodes)
                if _is_better(best[1, after], came[t + 1, after], least, before):
                    continue
                _choose(before, chosen, rows[0])
                costs = best[0, before] + _chosen_cost(
                    t, chosen, rows, common, wanted, budget, price, values, nodes, lists, scratch, work
                )
                if not _is_better(best[1, after], came[t + 1, after], costs, before):
                    best[1, after], came[t + 1, after] = costs, before
        for state in range(states):
            best[0, state] = best[1, state]
    state = 0
    for t in range(last, first - 1, -1):
        _choose(state, chosen, kept[t + 1])
        state = came[t + 1, state]
