"""What it costs to recompute dropped neighbours of a block (DTR, section 4.1 and appendix C).

A block's parents are what its kernels read, its children what kernels that read it make. Only blocks that have been
there and are gone count; those that the framework has freed count too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.view import Bools, Ints

#: The neighbours of each block.
Neighbours = Sequence[tuple[int, ...]]


class Surroundings(Protocol):
    """Knows for each block that is there what it costs to lose it."""

    def left(self, b: int) -> None:
        """A block is gone."""
        ...

    def came(self, b: int) -> None:
        """A block is there, for the first time or again."""
        ...

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        ...


def relatives(graph: TaskGraph, can_drop: Bools) -> tuple[Neighbours, Neighbours]:
    """The parents and the children of each block, without those that are never gone, such as weights."""
    parents: list[dict[int, None]] = [{} for _ in graph.sizes]
    children: list[dict[int, None]] = [{} for _ in graph.sizes]
    for reads, writes in zip(graph.reads, graph.writes, strict=True):
        given, made = ([b for b in blocks if can_drop[b]] for blocks in (reads, writes))
        for b in made:
            parents[b].update(dict.fromkeys(r for r in given if r != b))
        for r in given:
            children[r].update(dict.fromkeys(b for b in made if b != r))
    return tuple(map(tuple, parents)), tuple(map(tuple, children))


class Alone:
    """A block's own cost."""

    def __init__(self, costs: Ints) -> None:
        self._own = costs

    def left(self, b: int) -> None:
        """Nothing to note."""

    def came(self, b: int) -> None:
        """Nothing to note."""

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        return self._own[blocks]


class Classes:
    """Classes of gone blocks that are neighbours of each other. They are joined but never split: a block that comes
    back takes its own cost out of its class (appendix C.2).

    A block costs as much as it and the classes of its gone neighbours.
    """

    def __init__(self, costs: Ints, parents: Neighbours, children: Neighbours) -> None:
        self._own = costs.tolist()
        self._near = [tuple(dict.fromkeys(one + two)) for one, two in zip(parents, children, strict=True)]
        self._sum = costs.copy()
        count = len(self._own)
        self._here, self._gone = bytearray(count), bytearray(count)
        #: By number of a class: the one that it has joined, its cost, and which blocks are there and next to it.
        self._joined: list[int] = []
        self._cost: list[int] = []
        self._border: list[Bools] = []
        self._class = [0] * count

    def left(self, b: int) -> None:
        """A block is gone: it joins the classes of its gone neighbours."""
        own, number = self._own[b], len(self._cost)
        self._here[b], self._gone[b], self._class[b] = False, True, number
        border = np.zeros(len(self._own), dtype=np.bool_)
        border[[each for each in self._near[b] if self._here[each]]] = True
        self._joined.append(number)
        self._cost.append(own)
        self._border.append(border)
        self._sum += border * own
        for each in self._near[b]:
            if self._gone[each]:
                self._join(self._find(each), self._find(b))
        self._border[self._find(b)][b] = False

    def came(self, b: int) -> None:
        """A block is there: its class loses its cost, and what is next to it has fewer neighbours that are gone."""
        again = self._gone[b]
        self._here[b], self._gone[b] = True, False
        if again:
            number = self._find(self._class[b], is_class=True)
            self._cost[number] -= self._own[b]
            self._sum -= self._border[number] * self._own[b]
            for each in self._near[b]:
                if self._here[each]:
                    self._count(each, number)
        self._count(b)

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        return self._sum[blocks]

    def _count(self, b: int, before: int = -1) -> None:
        """Counts what is around a block anew. before: a class that it may have been next to."""
        classes = {self._find(each) for each in self._near[b] if self._gone[each]}
        if before >= 0:
            self._border[before][b] = False
        for number in classes:
            self._border[number][b] = True
        self._sum[b] = self._own[b] + sum(self._cost[number] for number in classes)

    def _join(self, one: int, two: int) -> None:
        if one == two:
            return
        cost, border = self._cost, self._border
        self._sum += (border[one] & ~border[two]) * cost[two]
        self._sum += (border[two] & ~border[one]) * cost[one]
        self._joined[one] = two
        cost[two] += cost[one]
        border[two] |= border[one]
        border[one] = border[two]

    def _find(self, b: int, *, is_class: bool = False) -> int:
        """The class of a gone block, or the one that a class has joined."""
        joined = self._joined
        root = number = b if is_class else self._class[b]
        while joined[root] != root:
            root = joined[root]
        while joined[number] != root:
            joined[number], number = root, joined[number]
        return root


class Regions:
    """All gone blocks that a block reaches over gone ones, towards its parents and towards its children: what it costs
    to lose it (section 4.1).

    A block costs as much as it and the blocks of both regions; with `backward` only, of that towards its parents.
    """

    def __init__(self, costs: Ints, parents: Neighbours, children: Neighbours, *, backward: bool = False) -> None:
        self._own = costs
        self._here, self._gone = bytearray(len(costs)), bytearray(len(costs))
        self._up = _Way(costs, parents, self._here, self._gone)
        self._down = _Way(costs, children, self._here, self._gone)
        self._backward = backward

    def left(self, b: int) -> None:
        """A block is gone: it joins the regions that end at it."""
        up, down = self._up.region(b), self._down.region(b)
        self._here[b], self._gone[b] = False, True
        for each in _bits(down[1]):
            self._up.join(each, b, *up)
        for each in _bits(up[1]):
            self._down.join(each, b, *down)

    def came(self, b: int) -> None:
        """A block is there: regions end at it."""
        again = self._gone[b]
        self._here[b], self._gone[b] = True, False
        self._up.find_later((b,))
        self._down.find_later((b,))
        if again:
            self._up.find_later(_bits(self._down.region(b)[1]))
            self._down.find_later(_bits(self._up.region(b)[1]))
            return
        # What a new block was made of is there.
        for each in self._up.near(b):
            self._down.ends_at(each, b)

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        result = self._own[blocks] + self._up.sums(blocks)
        return result if self._backward else result + self._down.sums(blocks)


class _Way:
    """Regions in one direction. towards: the neighbours there.

    Of each block that is there, as bits: the blocks inside its region, and those that are there and at which it ends.
    """

    def __init__(self, costs: Ints, towards: Neighbours, here: bytearray, gone: bytearray) -> None:
        self._towards, self._here, self._gone = towards, here, gone
        self._costs = costs
        count = len(towards)
        self._inside, self._ends = [0] * count, [0] * count
        self._sum = np.zeros(count, dtype=np.int64)
        #: Blocks whose region has to be found anew.
        self._later: set[int] = set()
        self._seen = [0] * count
        self._searches = 0

    def region(self, b: int) -> tuple[int, int]:
        """The blocks inside a block's region, and those at which it ends."""
        if b in self._later:
            self._find(b)
        return self._inside[b], self._ends[b]

    def join(self, b: int, gone: int, inside: int, ends: int) -> None:
        """A block at which the region of b ended is gone: with its own region it is inside now."""
        if b in self._later:
            return
        more = (inside | 1 << gone) & ~(self._inside[b] | 1 << b)
        self._inside[b] |= more
        self._ends[b] = (self._ends[b] & ~(1 << gone) | ends) & ~(1 << b)
        if more:
            self._sum[b] += _sum(more, self._costs)

    def ends_at(self, b: int, new: int) -> None:
        """A new block is next to b."""
        self._ends[b] |= 1 << new

    def find_later(self, blocks: Iterable[int]) -> None:
        """The regions of these blocks have changed."""
        self._later.update(blocks)

    def near(self, b: int) -> tuple[int, ...]:
        """The neighbours of a block in this direction."""
        return self._towards[b]

    def sums(self, blocks: Ints) -> Ints:
        """The costs of the regions of these blocks."""
        if self._later:
            for b in [each for each in self._later if self._here[each]]:
                self._find(b)
        return self._sum[blocks]

    def _find(self, b: int) -> None:
        self._later.discard(b)
        self._searches += 1
        number, seen, towards, gone = self._searches, self._seen, self._towards, self._gone
        inside, ends, waiting = [], [], [b]
        seen[b] = number
        while waiting:
            for each in towards[waiting.pop()]:
                if seen[each] != number:
                    seen[each] = number
                    if gone[each]:
                        inside.append(each)
                        waiting.append(each)
                    elif self._here[each]:
                        ends.append(each)
        self._inside[b], self._ends[b] = _mask(inside), _mask(ends)
        self._sum[b] = int(self._costs[inside].sum()) if inside else 0


def _mask(blocks: Sequence[int]) -> int:
    if not blocks:
        return 0
    flags = bytearray(max(blocks) // 8 + 1)
    for b in blocks:
        flags[b >> 3] |= 1 << (b & 7)
    return int.from_bytes(flags, "little")


def _bits(mask: int) -> list[int]:
    if not mask:
        return []
    flags = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(flags, bitorder="little")).tolist()
    return found


def _sum(mask: int, costs: Ints) -> int:
    return int(costs[_bits(mask)].sum())
