"""What it costs to recompute dropped neighbours of a block (DTR, section 4.1 and appendix C).

A block's parents are what its kernels read, its children what kernels that read it make. Only blocks that have been
there and are gone count; those that the framework has freed count too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.recomputation import Recomputation
from simgpu.online.view import Bools, Ints


class Neighbours(NamedTuple):
    """Those of block b are near[starts[b] : starts[b + 1]]."""

    starts: Ints
    near: Ints

    @classmethod
    def of(cls, near: Sequence[Iterable[int]]) -> Neighbours:
        """From the neighbours of each block.

        >>> Neighbours.of([(1, 2), (), (0,)]).starts.tolist()
        [0, 2, 2, 3]
        """
        rows = list(map(tuple, near))
        starts = np.array([0, *accumulate(map(len, rows))], dtype=np.int64)
        return cls(starts, np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(starts[-1])))


class Relatives(NamedTuple):
    """Parents, children, and both, of each block, without those that are never gone, such as weights."""

    parents: Neighbours
    children: Neighbours
    both: Neighbours

    @classmethod
    def of(cls, graph: TaskGraph) -> Relatives:
        """Those of a graph, made once."""
        known: Relatives | None = graph.kept.get(("relatives",))
        if known is None:
            known = graph.kept["relatives",] = cls.listed(*_relatives(graph))
        return known

    @classmethod
    def listed(cls, parents: Sequence[Iterable[int]], children: Sequence[Iterable[int]]) -> Relatives:
        """From the parents and the children of each block."""
        both = [dict.fromkeys((*one, *two)) for one, two in zip(parents, children, strict=True)]
        return cls(Neighbours.of(parents), Neighbours.of(children), Neighbours.of(both))


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


def _relatives(graph: TaskGraph) -> tuple[list[dict[int, None]], list[dict[int, None]]]:
    """The parents and the children of each block."""
    can_drop = Recomputation.of(graph).can_drop.tolist()
    parents: list[dict[int, None]] = [{} for _ in graph.sizes]
    children: list[dict[int, None]] = [{} for _ in graph.sizes]
    for reads, writes in zip(graph.reads, graph.writes, strict=True):
        given, made = ([b for b in blocks if can_drop[b]] for blocks in (reads, writes))
        for b in made:
            parents[b].update(dict.fromkeys(r for r in given if r != b))
        for r in given:
            children[r].update(dict.fromkeys(b for b in made if b != r))
    return parents, children


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
        #: A block is there.
        self.came = self._moves.append
        self._gone = np.zeros(len(costs), dtype=np.bool_)

    def left(self, b: int) -> None:
        """A block is gone."""
        self._moves.append(~b)

    def _new_moves(self) -> Ints:
        moves = np.array(self._moves, dtype=np.int64)
        self._moves.clear()
        return moves


class Classes(_Moves):
    """Classes of gone blocks that are neighbours of each other. They are joined but never split: a block that comes
    back takes its own cost out of its class (appendix C.2).

    A block costs as much as it and the classes of its gone neighbours.
    """

    def __init__(self, costs: Ints, relatives: Relatives) -> None:
        super().__init__(costs)
        self._near = relatives.both
        self._number = self._mark = 0
        #: By number of a class: the one that it has joined, and its cost. By block: the class that it began. Marks.
        self._joined, self._cost, self._marks = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._class = np.zeros(len(costs), dtype=np.int64)

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        from simgpu.policies.dtr.compiled_neighbours import add_classes

        moves = self._new_moves()
        if len(self._joined) < self._number + len(moves):
            more = self._number + len(moves)
            self._joined, self._cost, self._marks = (
                np.concatenate((each, np.zeros(more, dtype=np.int64)))
                for each in (self._joined, self._cost, self._marks)
            )
        classes = self._joined, self._cost, self._class, self._marks
        sums, graph = self._own[blocks], (self._own, *self._near, self._gone)
        self._number = add_classes(moves, blocks, sums, self._number, self._mark + 1, *graph, classes)
        self._mark += len(blocks)
        return sums


class Regions(_Moves):
    """All gone blocks that a block reaches over gone ones, towards its parents and towards its children: what it costs
    to lose it (section 4.1). A region's cost is kept until a block that it reaches comes or leaves.

    A block costs as much as it and the blocks of both regions; with `backward` only, of that towards its parents.
    """

    def __init__(self, costs: Ints, relatives: Relatives, *, backward: bool = False) -> None:
        super().__init__(costs)
        self._up, self._down = _way(relatives.parents), _way(relatives.children)
        self._scratch = tuple(np.zeros(len(costs) + 1, dtype=np.int64) for _ in range(2))
        self._backward, self._mark = backward, 0

    def around(self, blocks: Ints) -> Ints:
        """The costs of these blocks, nanoseconds."""
        from simgpu.policies.dtr.compiled_neighbours import add_regions

        sums, ways = self._own[blocks], (self._up, self._down, not self._backward)
        tables = self._own, self._gone
        self._mark = add_regions(self._new_moves(), blocks, sums, self._mark, *tables, *ways, self._scratch)
        return sums


#: Of one direction: where the neighbours of each block begin, and all of them; the cost of each block's region, whether
#: that is stale, and flags that nobody reads.
_Way = tuple[Ints, Ints, Ints, Bools, Bools]


def _way(towards: Neighbours) -> _Way:
    count = len(towards.starts) - 1
    stale, unread = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    return (*towards, np.zeros(count, dtype=np.int64), stale, unread)
