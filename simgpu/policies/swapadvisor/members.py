"""Members of SwapAdvisor's search: an order of the kernels and an allocation of memory, how they begin, cross, mutate.

An allocation says which sizes are the size of a class, and how memory is shared out among the classes: see
`simgpu.planning.slots`. Every order is topological, and stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.planning.listing import BY_PRIORITY, FRUGAL, NEWEST
from simgpu.planning.slot_planner import SlotPlanner
from simgpu.planning.slots import MOST_SHARE, SIZE, STARTS, STAYS
from simgpu.planning.slots import Members as Rows
from simgpu.planning.tables import Ints

#: Numbers of blocks, shape (sizes, moments).
Counts = NDArray[np.int64]

#: How often a child's order, its classes and its shares change.
_MUTATES = 0.5
#: The most kernels that a changed order moves.
_MOST_MOVED = 3


class Member(NamedTuple):
    """An order of the kernels, and an allocation: by size, whether it is that of a class, and the class's share."""

    order: Ints
    tops: Ints
    shares: Ints


def rows_of(members: Sequence[Member]) -> Rows:
    """The members as arrays, one row each."""
    return Rows(*(np.array([each[part] for each in members], dtype=np.int64) for part in range(3)))


# --- the first members --------------------------------------------------------------------------------------------


def recorded_order(planner: SlotPlanner) -> Ints:
    """The order in which the kernels ran."""
    return np.arange(len(planner.graph.kernels), dtype=np.int64)


class SizeClasses(NamedTuple):
    """Size classes with their slots: which sizes are that of a class, the slots of each, and the bytes of all."""

    tops: Ints
    slots: tuple[tuple[int, int], ...]
    bytes: int


def needed_classes(planner: SlotPlanner) -> SizeClasses:
    """The classes whose slots take the fewest bytes, with the slots without which the iteration cannot run."""
    provided = np.flatnonzero(planner.tables.blocks[:, STAYS] == 0)
    return _cheapest_classes(planner, np.column_stack([_at_ends(planner, provided), _used_at_once(planner)]))


def peak_bytes(planner: SlotPlanner) -> int:
    """The most bytes of the blocks that exist at once in the recorded order, if none ever leaves."""
    every = np.arange(len(planner.tables.blocks))
    at_once = np.column_stack([_at_ends(planner, every), _alive_at_once(planner, recorded_order(planner))])
    return int((np.array(planner.sizes, dtype=np.int64) @ at_once).max(initial=0))


def first_members(planner: SlotPlanner, count: int, *, orders: bool, rng: np.random.Generator) -> list[Member]:
    """The members that the search begins with, at least one for each heuristic.

    Orders: the recorded one, the one that follows each branch to its end, the one in which memory grows least with each
    kernel, and random ones; without `orders` only the recorded one. Classes: those that need the fewest bytes, those
    that need the fewest if no block leaves, a class for each size, and for each power of two. Shares: equal ones, those
    that favour small blocks, and random ones.
    """
    recorded = recorded_order(planner)
    given = [recorded]
    if orders:
        given += [planner.listed(rule, recorded) for rule in (FRUGAL, NEWEST)]
    members = [Member(order, *each) for order in given for each in _allocations(planner, order)]
    while len(members) < count:
        one = members[int(rng.integers(len(members)))]
        order = planner.listed(BY_PRIORITY, rng.permutation(len(recorded))) if orders else recorded
        shares = rng.integers(1, MOST_SHARE + 1, size=len(one.shares))
        members.append(Member(order, one.tops, shares))
    return members


def _allocations(planner: SlotPlanner, order: Ints) -> list[tuple[Ints, Ints]]:
    sizes = planner.sizes
    by_power = [int(size.bit_length() < larger.bit_length()) for size, larger in pairwise(sizes)]
    classes = {
        tuple(each): None
        for each in (
            needed_classes(planner).tops.tolist(),
            _cheapest_classes(planner, _alive_at_once(planner, order)).tops.tolist(),
            [1] * len(sizes),
            [*by_power, 1][: len(sizes)],
        )
    }
    rank = np.arange(len(sizes))
    equal = np.full(len(sizes), MOST_SHARE // 2)
    small_first = np.maximum(MOST_SHARE * (len(sizes) - rank) // max(len(sizes), 1), 1)
    return [(np.array(tops, dtype=np.int64), shares) for tops in classes for shares in (equal, small_first)]


def _at_ends(planner: SlotPlanner, among: Ints) -> Counts:
    """Those of some blocks that exist at the iteration's begin, and at its end, counted by size."""
    blocks = planner.tables.blocks
    return np.column_stack(
        [_counted(planner, among[blocks[among, column] == 1].tolist()) for column in (STARTS, STAYS)]
    )


def _used_at_once(planner: SlotPlanner) -> Counts:
    """The blocks that each kernel uses, counted by size."""
    return np.column_stack([_counted(planner, used) for used in planner.used])


def _alive_at_once(planner: SlotPlanner, order: Ints) -> Counts:
    """The blocks that exist while each kernel runs in an order, counted by size."""
    size_of, stays = planner.tables.blocks[:, SIZE].tolist(), planner.tables.blocks[:, STAYS].tolist()
    last = {b: at for at, k in enumerate(order.tolist()) for b in planner.used[k]}
    alive = set(np.flatnonzero(planner.tables.blocks[:, STARTS]).tolist())
    now = _counted(planner, sorted(alive))
    counts = np.zeros((len(planner.sizes), len(order)), np.int64)
    for at, k in enumerate(order.tolist()):
        for b in planner.used[k]:
            if b not in alive and size_of[b] >= 0:
                now[size_of[b]] += 1
            alive.add(b)
        counts[:, at] = now
        for b in planner.used[k]:
            if last[b] == at and not stays[b] and size_of[b] >= 0:
                now[size_of[b]] -= 1
    return counts


def _counted(planner: SlotPlanner, blocks: Sequence[int]) -> Ints:
    """How many of these blocks have each size."""
    places = planner.tables.blocks[list(blocks), SIZE]
    return np.bincount(places[places >= 0], minlength=len(planner.sizes))


def _cheapest_classes(planner: SlotPlanner, counts: Counts) -> SizeClasses:
    """The classes with the fewest bytes in slots, if each has one for each of its blocks at any moment.

    A class holds neighbouring sizes, so the best classes of the smaller sizes are part of the best classes of more.
    """
    sizes = planner.sizes
    least, begins, needs = [0], [0], [0]
    for top in range(len(sizes)):
        # Blocks of the sizes from each one up to the top, at the moment that has most of them.
        slots = np.cumsum(counts[top::-1], axis=0).max(axis=1)[::-1]
        totals = [least[begin] + int(slots[begin]) * sizes[top] for begin in range(top + 1)]
        least.append(min(totals))
        begins.append(totals.index(least[-1]))
        needs.append(int(slots[begins[-1]]))
    tops, found = np.zeros(len(sizes), np.int64), []
    top = len(sizes)
    while top > 0:
        tops[top - 1] = 1
        found.append((sizes[top - 1], needs[top]))
        top = begins[top]
    return SizeClasses(tops, tuple(found), least[-1])


# --- children -----------------------------------------------------------------------------------------------------


def crossed(one: Member, two: Member, rng: np.random.Generator) -> Member:
    """A child: of each part, the first places as in one parent, the rest as in the other.

    The kernels that the first one's order has not run yet follow in the order of the second.
    """
    cut = int(rng.integers(len(one.order) + 1))
    missing = np.ones(len(one.order), dtype=bool)
    missing[one.order[:cut]] = False
    order = np.concatenate([one.order[:cut], two.order[missing[two.order]]])
    tops, shares = (
        np.concatenate([part[:at], other[at:]])
        for part, other in ((one.tops, two.tops), (one.shares, two.shares))
        for at in [int(rng.integers(len(part) + 1))]
    )
    return Member(order, tops, shares)


@dataclass(frozen=True, eq=False)
class Mutation:
    """Changes a member. orders: whether orders change."""

    planner: SlotPlanner
    orders: bool

    def __call__(self, member: Member, rng: np.random.Generator) -> Member:
        """A changed member, which may be the same."""
        order, tops, shares = member
        if self.orders and rng.random() < _MUTATES:
            order = self._other_order(order, rng)
        if len(tops) and rng.random() < _MUTATES:
            tops = tops.copy()
            tops[int(rng.integers(len(tops)))] ^= 1
        if len(tops) and rng.random() < _MUTATES:
            shares = shares.copy()
            shares[int(rng.integers(len(shares)))] = int(rng.integers(1, MOST_SHARE + 1))
        return Member(order, tops, shares)

    def _other_order(self, order: Ints, rng: np.random.Generator) -> Ints:
        """The order with one to three kernels moved next to others, as far as the dependencies let them."""
        count = len(order)
        priorities = np.empty(count, np.int64)
        priorities[order] = 2 * np.arange(count)
        for _ in range(int(rng.integers(1, _MOST_MOVED + 1))):
            kernel, place, side = (int(each) for each in rng.integers((count, count, 2)))
            priorities[kernel] = 2 * place + 2 * side - 1
        return self.planner.listed(BY_PRIORITY, priorities)
