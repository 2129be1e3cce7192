"""What gone blocks around a block cost, compiled. Imports numba.

moves: what has happened since the last call, in order: b for a block that came, ~b for one that left. starts, near: the
neighbours of block b are near[starts[b] : starts[b + 1]]. gone[b]: whether a block has been there and is gone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled

_around = partial(compiled, _nrt=False)


@_around
def _class_of(number: Any, joined: Any) -> Any:
    """The class that a class has joined in the end."""
    while joined[number] != number:
        joined[number] = joined[joined[number]]
        number = joined[number]
    return number


@_around
def _new_class(b: Any, number: Any, own: Any, starts: Any, near: Any, gone: Any, classes: Any) -> Any:
    """Block b is gone: what its gone neighbours belong to joins a class that begins with it."""
    joined, costs, class_of, _ = classes
    gone[b], class_of[b] = True, number
    joined[number], costs[number] = number, own[b]
    for at in range(starts[b], starts[b + 1]):
        if gone[near[at]]:
            other = _class_of(class_of[near[at]], joined)
            if other != number:
                joined[other] = number
                costs[number] += costs[other]


@_around
def _join(moves: Any, number: Any, own: Any, starts: Any, near: Any, gone: Any, classes: Any) -> Any:
    """Joins classes. number: of the next class, which is returned. classes: by number of a class the one that it has
    joined, and its cost; by block, the class that it began; a mark by class."""
    joined, costs, class_of, _ = classes
    for move in moves:
        if move < 0:
            _new_class(~move, number, own, starts, near, gone, classes)
            number += 1
        elif gone[move]:
            gone[move] = False
            costs[_class_of(class_of[move], joined)] -= own[move]
    return number


@_around
def add_classes(
    moves: Any,
    blocks: Any,
    sums: Any,
    number: Any,
    mark: Any,
    own: Any,
    starts: Any,
    near: Any,
    gone: Any,
    classes: Any,
) -> Any:
    """Follows the moves, and adds to the sum of each of these blocks the costs of the classes next to it, each once.

    number: of the next class; returns the new one. mark: a number that grows with each call by the number of blocks.
    """
    number = _join(moves, number, own, starts, near, gone, classes)
    joined, costs, class_of, marks = classes
    for place, b in enumerate(blocks):
        for at in range(starts[b], starts[b + 1]):
            if gone[near[at]]:
                found = _class_of(class_of[near[at]], joined)
                if marks[found] != mark + place:
                    marks[found] = mark + place
                    sums[place] += costs[found]
    return number


@_around
def _reach(b: Any, mark: Any, starts: Any, near: Any, gone: Any, marks: Any, stack: Any, own: Any, stale: Any) -> Any:
    """The cost of the gone blocks that block b reaches over gone ones; marks the others that it reaches as stale."""
    cost, waiting = 0, 1
    stack[0], marks[b] = b, mark
    while waiting:
        waiting -= 1
        each = stack[waiting]
        for at in range(starts[each], starts[each + 1]):
            other = near[at]
            if marks[other] == mark:
                continue
            marks[other] = mark
            if gone[other]:
                cost += own[other]
                stack[waiting] = other
                waiting += 1
            else:
                stale[other] = True
    return cost


@_around
def _follow(moves: Any, mark: Any, own: Any, gone: Any, up: Any, down: Any, scratch: Any) -> Any:
    """Notes whose regions change. up, down: the neighbours in a direction; by block the cost of its region there, and
    whether that is stale. Returns the mark, a number that grows with each search."""
    marks, stack = scratch
    for move in moves:
        b = move if move >= 0 else ~move
        if move < 0 or gone[b]:
            mark += 2
            _reach(b, mark - 1, down[0], down[1], gone, marks, stack, own, up[3])
            _reach(b, mark, up[0], up[1], gone, marks, stack, own, down[3])
        gone[b] = move < 0
        up[3][b] = down[3][b] = True
    return mark


@_around
def _sum_regions(blocks: Any, sums: Any, mark: Any, own: Any, gone: Any, way: Any, scratch: Any) -> Any:
    """Adds to the sum of each of these blocks the cost of its region in a direction. Returns the mark."""
    starts, near, costs, stale, unused = way
    marks, stack = scratch
    for place, b in enumerate(blocks):
        if stale[b]:
            mark += 1
            costs[b] = _reach(b, mark, starts, near, gone, marks, stack, own, unused)
            stale[b] = False
        sums[place] += costs[b]
    return mark


@_around
def add_regions(
    moves: Any, blocks: Any, sums: Any, mark: Any, own: Any, gone: Any, up: Any, down: Any, both: Any, scratch: Any
) -> Any:
    """Follows the moves, and adds to the sum of each of these blocks the costs of its regions: of that towards its
    parents, and with `both` of that towards its children. mark: of the last search; returns the new one."""
    mark = _follow(moves, mark, own, gone, up, down, scratch)
    mark = _sum_regions(blocks, sums, mark, own, gone, up, scratch)
    return _sum_regions(blocks, sums, mark, own, gone, down, scratch) if both else mark
