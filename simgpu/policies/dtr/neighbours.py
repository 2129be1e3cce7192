"""What it costs to recompute dropped neighbours of a block (DTR, section 4.1 and appendix C).

A block's parents are what its kernels read, its children what kernels that read it make. Only blocks that have been
there and are gone count; those that the framework has freed count too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
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


class _Moves:
    """Notes which blocks come and leave, and works it all off when costs are asked for."""

    def __init__(self, costs: Ints) -> None:
        self._own = costs
        self._moves: list[int] = []
        self._gone = np.zeros(len(costs), dtype=np.bool_)

    def left(self, b: int) -> None:
        """A block is gone."""
        self._moves.append(~b)

    def came(self, b: int) -> None:
        """A block is there."""
        self._moves.append(b)

    def _new_moves(self) -> Ints:
        moves = np.array(self._moves, dtype=np.int64)
        self._moves.clear()
        return moves


class Classes(_Moves):
    """Classes of gone blocks that are neighbours of each other. They are joined but never split: a block that comes
    back takes its own cost out of its class (appendix C.2).

    A block costs as much as it and the classes of its gone neighbours.
    """

    def __init__(self, costs: Ints, parents: Neighbours, children: Neighbours) -> None:
        super().__init__(costs)
        near = [tuple(dict.fromkeys(one + two)) for one, two in zip(parents, children, strict=True)]
        self._starts, self._near = _listed(near)
        self._number = self._mark = 0
        #: By number of a class: the one that it has joined, and its cost. By block: the class that it began. Marks.
        self._joined, self._cost, self._marks = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._class = np.zeros(len(costs), dtype=np.int64)

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        from simgpu.policies.dtr.compiled_neighbours import follow_classes, sum_classes

        moves = self._new_moves()
        if len(self._joined) < self._number + len(moves):
            more = self._number + len(moves)
            self._joined, self._cost, self._marks = (
                np.concatenate((each, np.zeros(more, dtype=np.int64)))
                for each in (self._joined, self._cost, self._marks)
            )
        near, classes = (self._starts, self._near, self._gone), (self._joined, self._cost, self._class, self._marks)
        self._number = follow_classes(moves, self._number, self._own, *near, classes)
        sums = self._own[blocks]
        sum_classes(blocks, sums, self._mark + 1, *near, classes)
        self._mark += len(blocks)
        return sums


class Regions(_Moves):
    """All gone blocks that a block reaches over gone ones, towards its parents and towards its children: what it costs
    to lose it (section 4.1). A region's cost is kept until a block that it reaches comes or leaves.

    A block costs as much as it and the blocks of both regions; with `backward` only, of that towards its parents.
    """

    def __init__(self, costs: Ints, parents: Neighbours, children: Neighbours, *, backward: bool = False) -> None:
        super().__init__(costs)
        self._up, self._down = (_way(towards) for towards in (parents, children))
        self._scratch = tuple(np.zeros(len(costs) + 1, dtype=np.int64) for _ in range(2))
        self._backward, self._mark = backward, 0

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        from simgpu.policies.dtr.compiled_neighbours import follow_regions, sum_regions

        tables = self._own, self._gone
        self._mark = follow_regions(self._new_moves(), self._mark, *tables, self._up, self._down, self._scratch)
        sums = self._own[blocks]
        for way in (self._up,) if self._backward else (self._up, self._down):
            self._mark = sum_regions(blocks, sums, self._mark, *tables, way, self._scratch)
        return sums


#: Of one direction: where the neighbours of each block begin, and all of them; the cost of each block's region, whether
#: that is stale, and flags that nobody reads.
_Way = tuple[Ints, Ints, Ints, Bools, Bools]


def _way(towards: Neighbours) -> _Way:
    count = len(towards)
    stale, unread = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    return (*_listed(towards), np.zeros(count, dtype=np.int64), stale, unread)


def _listed(near: Neighbours) -> tuple[Ints, Ints]:
    """Where the neighbours of each block begin, and all of them."""
    starts = np.array([0, *accumulate(map(len, near))], dtype=np.int64)
    return starts, np.fromiter(chain.from_iterable(near), dtype=np.int64, count=int(starts[-1]))
