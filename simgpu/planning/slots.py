"""Swap planning over slots of size classes, as SwapAdvisor does it: which block leaves a slot, and when copies run.

All functions work on arrays only, so that numba can compile them; they also run as plain Python, on memoryviews.
`simgpu.planning.slot_planner` makes the arrays and calls these functions.

Device memory is divided into slots. A slot belongs to a size class and holds one block of it at a time. A member of the
search is an order of the kernels and an allocation: which sizes are the size of a class (`tops`; a block takes a slot
of the smallest class that it fits), and a share of each class in the memory that remains when each class has
the slots it cannot do without.

Kernels run in order. A kernel waits for a slot for each block that it is the first to use, and for a copy of each block
that is on the host. Where no slot of the class is free, the block that is needed last leaves (Belady). It is copied
out, unless the host has its value, as soon as its last use has ended, and a copy back begins as soon as its slot is
free; each engine makes one copy after the other, so a copy takes the first gap after that between those decided before.

What is persistent, or outlives the iteration, has a home: the device, as far as its class has slots, else the host. It
is there at the begin, and again at the end. Homes on the device go to what is persistent first, and of that to what is
used first.

An event is a number: 0 is the begin, p + 1 the end of the kernel at position p, -1 - n that of the n-th copy out.
"""

from __future__ import annotations

from typing import NamedTuple

from simgpu.planning.tables import Ints

# Columns of kernels; the last row only ends the list of uses.
USES, DURATION = range(2)
# Columns of uses, by kernel: the block, and whether the kernel writes it.
BLOCK, WRITES = range(2)
# Columns of blocks: its position among the sizes, -1 for an empty block; times of copies; whether it exists at the
# begin, and at the end.
SIZE, OUT_NS, IN_NS, STARTS, STAYS = range(5)
# Of `limits`: bytes; whether one engine copies both ways.
BUDGET, SHARED = range(2)
# Columns of the state of blocks. HELD: its slot, -1 on the host or where it does not exist. EXISTS: whether it does.
# HOME: whether its home is the device. NEXT: its next use. ON_HOST: whether the host has its value. LEFT_AT, LEFT: when
# it left the device, and that event. ENDED_AT, ENDED: of its last use. BUSY: the position that uses it now, plus one.
HELD, EXISTS, HOME, NEXT, ON_HOST, LEFT_AT, LEFT, ENDED_AT, ENDED, BUSY = range(10)
# Columns of the state of classes, by the position of their size. FIRST: their first slot.
CLASS, NEED, DEMAND, LIVE, SLOTS, FIRST = range(6)
# Columns of slots: their block or -1, when they became free, and by which event.
HOLDS, FREE_AT, FREED = range(3)
# Of `now`: time of the kernels; when all copies have ended; counts of records and copies out.
NOW, COPIED, RECORDS, COPIES = range(4)
# Engines, with a row for each stretch of time in which one is busy, in order, and how many there are.
OUT, IN = range(2)
BEGINS, ENDS = range(2)
# Kinds of records, and their columns. A copy out and a drop begin after the event AFTER; a copy in and a birth take a
# slot that is free after it; a copy in needs also that the block had left. BEGUN_AT: when a copy begins.
COPY_OUT, DROP, COPY_IN, BIRTH = range(4)
KIND, OF, POSITION, AFTER, AFTER_LEFT, BEGUN_AT = range(6)

#: Added to the shortage of a member whose slots need more than the budget; larger than any step time.
LACKING = 2**62
#: Shares of classes are from 1 to this; memory is shared out in so many steps.
MOST_SHARE, STEPS = 16, 4096


class SlotTables(NamedTuple):
    """A graph on a node, with the columns above. sizes: of the blocks, ascending, bytes."""

    kernels: Ints
    uses: Ints
    blocks: Ints
    sizes: Ints
    limits: Ints


class SlotScratch(NamedTuple):
    """What planning one member writes. nexts: the next use after each use. records: the decisions, in order. busy: of
    each engine, in `stretches` many rows.
    """

    state: Ints
    classes: Ints
    slots: Ints
    nexts: Ints
    records: Ints
    now: Ints
    busy: Ints
    stretches: Ints


class Members(NamedTuple):
    """Members of the search, one a row. orders: (members, kernels); tops, shares: (members, sizes)."""

    orders: Ints
    tops: Ints
    shares: Ints


def look_ahead(t: SlotTables, s: SlotScratch, orders: Ints, member: int) -> None:
    """Note the next use after each use, and the first use of each block: K for the end of the iteration, K + 1 for
    never."""
    kernels, uses, state = t.kernels, t.uses, s.state
    count = kernels.shape[0] - 1
    for b in range(state.shape[0]):
        state[b, NEXT] = count + 1 - t.blocks[b, STAYS]
    for at in range(count):
        k = orders[member, count - 1 - at]
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            b = uses[use, BLOCK]
            s.nexts[use] = state[b, NEXT]
            state[b, NEXT] = count - 1 - at


def classify(classes: Ints, tops: Ints, member: int) -> None:
    """Note the class of each size."""
    last = classes.shape[0] - 1
    for at in range(last + 1):
        i = last - at
        classes[i, CLASS] = i if at == 0 or tops[member, i] else classes[i + 1, CLASS]
        classes[i, NEED] = classes[i, DEMAND] = classes[i, LIVE] = 0


def measure_need(t: SlotTables, s: SlotScratch) -> None:
    """Note the slots of each class without which the iteration cannot run: at its begin for what the host provides then
    and no kernel keeps, and in each kernel."""
    kernels, uses, blocks, classes = t.kernels, t.uses, t.blocks, s.classes
    for b in range(blocks.shape[0]):
        if blocks[b, STARTS] and not blocks[b, STAYS]:
            count_one(blocks, classes, b, NEED)
    for i in range(classes.shape[0]):
        classes[i, LIVE] = 0
    for k in range(kernels.shape[0] - 1):
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            count_one(blocks, classes, uses[use, BLOCK], NEED)
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            i = blocks[uses[use, BLOCK], SIZE]
            if i >= 0:
                classes[classes[i, CLASS], LIVE] = 0


def count_one(blocks: Ints, classes: Ints, b: int, column: int) -> None:
    """One more block of a class at the same time; `column` has the most so far."""
    if blocks[b, SIZE] >= 0:
        c = classes[blocks[b, SIZE], CLASS]
        classes[c, LIVE] += 1
        classes[c, column] = max(classes[c, column], classes[c, LIVE])


def measure_demand(t: SlotTables, s: SlotScratch, orders: Ints, member: int) -> None:
    """Note how many blocks of each class exist at once if none ever leaves."""
    kernels, uses, blocks, classes, state = t.kernels, t.uses, t.blocks, s.classes, s.state
    dead = kernels.shape[0]
    for b in range(blocks.shape[0]):
        state[b, EXISTS] = blocks[b, STARTS]
        if blocks[b, STARTS]:
            count_one(blocks, classes, b, DEMAND)
    for at in range(kernels.shape[0] - 1):
        k = orders[member, at]
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            b = uses[use, BLOCK]
            if not state[b, EXISTS]:
                state[b, EXISTS] = 1
                count_one(blocks, classes, b, DEMAND)
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            i = blocks[uses[use, BLOCK], SIZE]
            if s.nexts[use] == dead and i >= 0:
                classes[classes[i, CLASS], LIVE] -= 1


def shared_out(sizes: Ints, classes: Ints, shares: Ints, member: int, step: int) -> int:
    """Give each class what it needs and, by its share, so many steps of what it lacks; returns the bytes of slots."""
    total = 0
    for c in range(classes.shape[0]):
        if classes[c, CLASS] == c:
            lacks = classes[c, DEMAND] - classes[c, NEED]
            extra = min(lacks * shares[member, c] * step // STEPS, lacks)
            classes[c, SLOTS] = classes[c, NEED] + extra
            total += classes[c, SLOTS] * sizes[c]
    return total


def allot(sizes: Ints, classes: Ints, budget: int, shares: Ints, member: int) -> int:
    """Note the slots of each class; returns the bytes that lack, 0 if the slots fit.

    What the steps leave goes to classes of large blocks first.
    """
    lacking = shared_out(sizes, classes, shares, member, 0) - budget
    if lacking > 0:
        return lacking
    low, high = 0, STEPS
    while low < high:
        middle = (low + high + 1) // 2
        if shared_out(sizes, classes, shares, member, middle) <= budget:
            low = middle
        else:
            high = middle - 1
    rest = budget - shared_out(sizes, classes, shares, member, low)
    first = 0
    for at in range(classes.shape[0]):
        c = classes.shape[0] - 1 - at
        if classes[c, CLASS] == c:
            more = min(classes[c, DEMAND] - classes[c, SLOTS], rest // sizes[c])
            classes[c, SLOTS] += more
            rest -= more * sizes[c]
            classes[c, FIRST] = first
            first += classes[c, SLOTS]
    return 0


def choose_homes(t: SlotTables, s: SlotScratch, orders: Ints, member: int) -> None:
    """Note which blocks have their home on the device."""
    kernels, uses, blocks, classes, state = t.kernels, t.uses, t.blocks, s.classes, s.state
    for c in range(classes.shape[0]):
        classes[c, LIVE] = 0
    for b in range(blocks.shape[0]):
        state[b, HOME] = blocks[b, STARTS] and not blocks[b, STAYS]
        if state[b, HOME] and blocks[b, SIZE] >= 0:
            classes[classes[blocks[b, SIZE], CLASS], LIVE] += 1
    for at in range(kernels.shape[0] - 1):
        k = orders[member, at]
        for use in range(kernels[k, USES], kernels[k + 1, USES]):
            if blocks[uses[use, BLOCK], STARTS]:
                choose_home(blocks, classes, state, uses[use, BLOCK])
    for persistent in range(1, -1, -1):
        for b in range(blocks.shape[0]):
            if blocks[b, STAYS] and blocks[b, STARTS] == persistent:
                choose_home(blocks, classes, state, b)


def choose_home(blocks: Ints, classes: Ints, state: Ints, b: int) -> None:
    """Let a block have its home on the device if it has none yet and its class has a slot for it."""
    if not state[b, HOME]:
        state[b, HOME] = 1
        if blocks[b, SIZE] >= 0:
            c = classes[blocks[b, SIZE], CLASS]
            state[b, HOME] = classes[c, LIVE] < classes[c, SLOTS]
            classes[c, LIVE] += state[b, HOME]


def begin(t: SlotTables, s: SlotScratch) -> None:
    """Empty all slots but those of the blocks that are on the device at the begin."""
    blocks, state, classes, slots = t.blocks, s.state, s.classes, s.slots
    for column in range(s.now.shape[0]):
        s.now[column] = 0
    s.stretches[OUT] = s.stretches[IN] = 0
    for c in range(classes.shape[0]):
        if classes[c, CLASS] == c:
            for slot in range(classes[c, FIRST], classes[c, FIRST] + classes[c, SLOTS]):
                slots[slot, HOLDS] = -1
                slots[slot, FREE_AT] = slots[slot, FREED] = 0
            classes[c, LIVE] = 0
    for b in range(blocks.shape[0]):
        for column in range(ON_HOST, BUSY + 1):
            state[b, column] = 0
        state[b, EXISTS] = blocks[b, STARTS]
        state[b, HELD] = -1
        state[b, ON_HOST] = blocks[b, STARTS] and not state[b, HOME]
        if blocks[b, STARTS] and state[b, HOME] and blocks[b, SIZE] >= 0:
            c = classes[blocks[b, SIZE], CLASS]
            state[b, HELD] = classes[c, FIRST] + classes[c, LIVE]
            slots[state[b, HELD], HOLDS] = b
            classes[c, LIVE] += 1


def copied(s: SlotScratch, engine: int, ready: int, duration: int) -> int:
    """Let an engine make a copy in its first gap from a time on; returns when it begins."""
    busy, count = s.busy, s.stretches[engine]
    place = count
    while place > 0 and busy[engine, place - 1, ENDS] > ready:
        place -= 1
    # The stretches from `place` on end after that time.
    start = ready
    while place < count and start + duration > busy[engine, place, BEGINS]:
        start = busy[engine, place, ENDS]
        place += 1
    end = start + duration
    s.now[COPIED] = max(s.now[COPIED], end)
    joins_left = place > 0 and busy[engine, place - 1, ENDS] == start
    joins_right = place < count and busy[engine, place, BEGINS] == end
    if joins_left and joins_right:
        busy[engine, place - 1, ENDS] = busy[engine, place, ENDS]
        for later in range(place, count - 1):
            busy[engine, later, BEGINS] = busy[engine, later + 1, BEGINS]
            busy[engine, later, ENDS] = busy[engine, later + 1, ENDS]
        s.stretches[engine] = count - 1
    elif joins_left:
        busy[engine, place - 1, ENDS] = end
    elif joins_right:
        busy[engine, place, BEGINS] = start
    else:
        for at in range(count - place):
            busy[engine, count - at, BEGINS] = busy[engine, count - at - 1, BEGINS]
            busy[engine, count - at, ENDS] = busy[engine, count - at - 1, ENDS]
        busy[engine, place, BEGINS] = start
        busy[engine, place, ENDS] = end
        s.stretches[engine] = count + 1
    return int(start)


def record(s: SlotScratch, kind: int, b: int, at: int, after: int, after_left: int, begun_at: int) -> None:
    """Note a decision."""
    row = s.now[RECORDS]
    s.records[row, KIND] = kind
    s.records[row, OF] = b
    s.records[row, POSITION] = at
    s.records[row, AFTER] = after
    s.records[row, AFTER_LEFT] = after_left
    s.records[row, BEGUN_AT] = begun_at
    s.now[RECORDS] = row + 1


def free_slot(classes: Ints, slots: Ints, c: int, latest: int) -> int:
    """The slot of a class that became free last, but not after `latest`; else the first to become free; -1 if none is
    free."""
    best, first = -1, -1
    for slot in range(classes[c, FIRST], classes[c, FIRST] + classes[c, SLOTS]):
        if slots[slot, HOLDS] < 0:
            free_at = slots[slot, FREE_AT]
            if free_at <= latest and (best < 0 or free_at > slots[best, FREE_AT]):
                best = slot
            if first < 0 or free_at < slots[first, FREE_AT]:
                first = slot
    return best if best >= 0 else first


def needed_last(state: Ints, classes: Ints, slots: Ints, c: int, at: int) -> int:
    """The slot of a class whose block is needed last; of equal ones that whose last use ended first."""
    best, next_use, ended_at = -1, -1, -1
    for slot in range(classes[c, FIRST], classes[c, FIRST] + classes[c, SLOTS]):
        b = slots[slot, HOLDS]
        later = state[b, NEXT] > next_use
        if state[b, BUSY] != at + 1 and (later or (state[b, NEXT] == next_use and state[b, ENDED_AT] < ended_at)):
            best, next_use, ended_at = slot, state[b, NEXT], state[b, ENDED_AT]
    return best


def evict(t: SlotTables, s: SlotScratch, slot: int, at: int) -> None:
    """Free a slot of its block."""
    state, now, b = s.state, s.now, s.slots[slot, HOLDS]
    state[b, LEFT_AT], state[b, LEFT] = state[b, ENDED_AT], state[b, ENDED]
    if state[b, ON_HOST]:
        record(s, DROP, b, at, state[b, ENDED], 0, 0)
    else:
        start = copied(s, IN if t.limits[SHARED] else OUT, state[b, ENDED_AT], t.blocks[b, OUT_NS])
        record(s, COPY_OUT, b, at, state[b, ENDED], 0, start)
        now[COPIES] += 1
        state[b, LEFT_AT], state[b, LEFT] = start + t.blocks[b, OUT_NS], -now[COPIES]
        state[b, ON_HOST] = 1
    state[b, HELD] = s.slots[slot, HOLDS] = -1
    s.slots[slot, FREE_AT], s.slots[slot, FREED] = state[b, LEFT_AT], state[b, LEFT]


def settle(t: SlotTables, s: SlotScratch, b: int, at: int, latest: int) -> int:
    """Give a block a slot of its class; returns the slot."""
    c = s.classes[t.blocks[b, SIZE], CLASS]
    slot = free_slot(s.classes, s.slots, c, latest)
    if slot < 0:
        slot = needed_last(s.state, s.classes, s.slots, c, at)
        evict(t, s, slot, at)
    s.slots[slot, HOLDS] = b
    s.state[b, HELD] = slot
    return slot


def fetch(t: SlotTables, s: SlotScratch, b: int, at: int) -> int:
    """Copy a block back to the device; returns when it arrives."""
    slot = settle(t, s, b, at, -1)
    start = copied(s, IN, max(s.slots[slot, FREE_AT], s.state[b, LEFT_AT]), t.blocks[b, IN_NS])
    record(s, COPY_IN, b, at, s.slots[slot, FREED], s.state[b, LEFT], start)
    return int(start + t.blocks[b, IN_NS])


def run_kernel(t: SlotTables, s: SlotScratch, k: int, at: int) -> None:
    """Run a kernel as soon as its blocks have their slots and values."""
    uses, blocks, state, slots = t.uses, t.blocks, s.state, s.slots
    first, stop = t.kernels[k, USES], t.kernels[k + 1, USES]
    for use in range(first, stop):
        state[uses[use, BLOCK], BUSY] = at + 1
    start = s.now[NOW]
    for use in range(first, stop):
        b = uses[use, BLOCK]
        if state[b, EXISTS] and state[b, HELD] < 0 and blocks[b, SIZE] >= 0:
            start = max(start, fetch(t, s, b, at))
    for use in range(first, stop):
        b = uses[use, BLOCK]
        if not state[b, EXISTS] and blocks[b, SIZE] >= 0:
            slot = settle(t, s, b, at, start)
            record(s, BIRTH, b, at, slots[slot, FREED], 0, 0)
            start = max(start, slots[slot, FREE_AT])
        state[b, EXISTS] = 1
    s.now[NOW] = start + t.kernels[k, DURATION]
    for use in range(first, stop):
        b = uses[use, BLOCK]
        state[b, NEXT] = s.nexts[use]
        state[b, ENDED_AT], state[b, ENDED] = s.now[NOW], at + 1
        if uses[use, WRITES]:
            state[b, ON_HOST] = 0
        if s.nexts[use] == t.kernels.shape[0] and blocks[b, SIZE] >= 0:
            slot = state[b, HELD]
            slots[slot, HOLDS] = -1
            slots[slot, FREE_AT], slots[slot, FREED] = s.now[NOW], at + 1


def go_home(t: SlotTables, s: SlotScratch) -> int:
    """Bring every block to its home; returns when all copies have ended."""
    blocks, state, count = t.blocks, s.state, t.kernels.shape[0] - 1
    for b in range(blocks.shape[0]):
        if state[b, HOME]:
            state[b, BUSY] = count + 1
    for b in range(blocks.shape[0]):
        if blocks[b, STARTS] and blocks[b, STAYS] and not state[b, HOME] and state[b, HELD] >= 0:
            evict(t, s, state[b, HELD], count)
    for b in range(blocks.shape[0]):
        if blocks[b, STAYS] and state[b, HOME] and state[b, HELD] < 0 and blocks[b, SIZE] >= 0:
            fetch(t, s, b, count)
    return int(max(s.now[NOW], s.now[COPIED]))


def run_all(t: SlotTables, s: SlotScratch, orders: Ints, member: int) -> int:
    """The step time of a member whose classes have their slots; the decisions are in `records`."""
    choose_homes(t, s, orders, member)
    begin(t, s)
    for at in range(t.kernels.shape[0] - 1):
        run_kernel(t, s, orders[member, at], at)
    return go_home(t, s)


def plan_all(t: SlotTables, s: SlotScratch, m: Members, results: Ints) -> None:
    """Plan all members. results[member]: its step time (ns), or `LACKING` and the bytes that its slots lack.

    The records and the classes of the last one remain.
    """
    for member in range(m.orders.shape[0]):
        look_ahead(t, s, m.orders, member)
        classify(s.classes, m.tops, member)
        measure_need(t, s)
        measure_demand(t, s, m.orders, member)
        lacking = allot(t.sizes, s.classes, t.limits[BUDGET], m.shares, member)
        results[member] = LACKING + lacking if lacking > 0 else run_all(t, s, m.orders, member)
