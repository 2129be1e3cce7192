"""Orders of kernels within their dependencies, by list scheduling: one ready kernel after the other.

The functions work on arrays only, so that numba can compile them; they also run as plain Python, on memoryviews.
"""

from __future__ import annotations

from typing import NamedTuple

from simgpu.planning.tables import Ints

# Columns of kernels; the last row only ends the lists: the first of those that follow it, of its uses, and how many
# it follows.
FOLLOWERS, USED, FOLLOWS = range(3)
# Columns of blocks: bytes, 0 for one whose memory no kernel acquires or releases; how many kernels use it.
BYTES, USERS = range(2)
# Columns of the state of kernels, and of that of blocks: how many it still follows; how many still use it.
WAITS, LEFT = range(2)
# Which ready kernel is next: that with the lowest priority, the one that became ready last, the one with which memory
# grows least.
BY_PRIORITY, NEWEST, FRUGAL = range(3)


class ListTables(NamedTuple):
    """Which kernels must follow which, and the blocks that they use."""

    kernels: Ints
    followers: Ints
    used: Ints
    blocks: Ints


def growth(t: ListTables, state: Ints, k: int) -> int:
    """The bytes that a kernel acquires for its blocks, less those that it is the last to use."""
    total = 0
    for at in range(t.kernels[k, USED], t.kernels[k + 1, USED]):
        b = t.used[at]
        if state[b, LEFT] == t.blocks[b, USERS]:
            total += t.blocks[b, BYTES]
        if state[b, LEFT] == 1:
            total -= t.blocks[b, BYTES]
    return total


def chosen(t: ListTables, state: Ints, ready: Ints, count: int, rule: int, priorities: Ints) -> int:
    """The place among the ready kernels of that which is next."""
    if rule == NEWEST:
        return count - 1
    best = 0
    least = growth(t, state, ready[0]) if rule == FRUGAL else 0
    for at in range(1, count):
        k = ready[at]
        if rule == FRUGAL:
            more = growth(t, state, k)
            if more < least or (more == least and priorities[k] < priorities[ready[best]]):
                best, least = at, more
        elif priorities[k] < priorities[ready[best]]:
            best = at
    return best


def list_order(t: ListTables, state: Ints, ready: Ints, rule: int, priorities: Ints, order: Ints) -> None:
    """Write an order of the kernels."""
    kernels = t.kernels
    count = 0
    for b in range(t.blocks.shape[0]):
        state[b, LEFT] = t.blocks[b, USERS]
    for k in range(kernels.shape[0] - 1):
        state[k, WAITS] = kernels[k, FOLLOWS]
        if kernels[k, FOLLOWS] == 0:
            ready[count] = k
            count += 1
    for at in range(kernels.shape[0] - 1):
        place = chosen(t, state, ready, count, rule, priorities)
        k = ready[place]
        order[at] = k
        count -= 1
        for later in range(place, count):
            ready[later] = ready[later + 1]
        for use in range(kernels[k, USED], kernels[k + 1, USED]):
            state[t.used[use], LEFT] -= 1
        for follower in range(kernels[k, FOLLOWERS], kernels[k + 1, FOLLOWERS]):
            other = t.followers[follower]
            state[other, WAITS] -= 1
            if state[other, WAITS] == 0:
                ready[count] = other
                count += 1
