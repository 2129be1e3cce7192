"""Equation 10 of moDNN a second time, for any task of a plan that is read back from its program."""

from __future__ import annotations

from collections.abc import Collection

from simgpu.program.instructions import Acquire, Await, Release
from tests.papers.modnn_plans import Round, padded

#: Duration, workspace and name of an algorithm.
Way = tuple[int, int, str]


def stand_before_choice(part: Round, k: int) -> None:
    """Walk on to where kernel k's algorithm is chosen: its inputs and outputs are there, its workspace is not."""
    absent = [b for b in part.data[k] if b not in part.at]
    if absent:
        _take_in(part, k, absent[0])
    else:
        while isinstance(released := part.next(), Release) and all(_is_over(part, b, k) for b in released.blocks):
            part.step(0)
    fetched = [end for copy, _, end in part.copies if copy.dst == "device" and copy.block in part.inputs[k]]
    while part.clock[0] < max(fetched, default=0):
        part.next()
        part.step(0)


def _take_in(part: Round, k: int, absent: int) -> None:
    """Walk on until what kernel k lacked has its memory and has been loaded."""
    while not (isinstance(taking := part.next(), Acquire) and absent in taking.blocks):
        part.step(0)
    part.step(0)
    if any(b in part.inputs[k] for b in taking.blocks):
        while not isinstance(part.next(), Await):
            part.step(0)
        part.step(0)


def _is_over(part: Round, b: int, k: int) -> bool:
    """Whether nobody needs a block from kernel k on."""
    return part.is_scratch(b) or part.uses[b][-1] < k


def gains(part: Round, k: int) -> dict[Way, int]:
    """Equation 10 of each way to run kernel k whose workspace fits."""
    pending = part.lacking(k)
    missing = pending[1] if pending and part.due(k, *pending, part.fastest(k)) else []
    base = min(part.ways[k], key=lambda way: (way[1], way[0], way[2]))
    gained = {}
    for way in part.ways[k]:
        penalties = _penalties(part, k, padded(way[1], part.node), missing)
        if penalties is not None:
            delay, held_up = penalties
            gained[way] = base[0] - way[0] - delay - sum(part.transfer(b, out=False) for b in held_up)
    return gained


def _penalties(part: Round, k: int, workspace: int, missing: Collection[int]) -> tuple[int, list[int]] | None:
    """The delay of making space for a workspace, and the blocks that then do not fit; None where it does not fit."""
    schemes = [()] if part.has_hole(workspace) else part.schemes(workspace, part.data[k])
    if schemes:
        best = min(schemes, key=lambda scheme: (_delay(part, workspace, scheme), *_moved(part, scheme)))
        holes = part.holes(best)
        placed(holes, workspace)
        return _delay(part, workspace, best), [b for b in missing if placed(holes, part.size(b)) is None]
    alone = [[0, part.available - sum(map(part.size, part.data[k])) - workspace]]
    if alone[0][1] < 0:
        return None
    return _defragmentation(part, k), [b for b in missing if placed(alone, part.size(b)) is None]


def _delay(part: Round, workspace: int, moved: Collection[int]) -> int:
    """How much longer the task waits for a workspace where these blocks have to move out first.

    It also waits until the data stream has let go of all that the workspace lies upon: where another copy out of there
    is under way, figure 3 holds whatever that copy was for.
    """
    start = placed(part.holes(moved), workspace)
    assert start is not None
    free = [at for low, high, at in part.released if low < start + workspace and start < high]
    return max(part.delay(moved), max(free, default=0) - part.clock[0])


def _moved(part: Round, scheme: Collection[int]) -> tuple[int, int]:
    """Bytes that a scheme moves, out and in again, and its address: of equal delays the least is taken."""
    sizes = part.graph.copy_sizes
    return sum(sizes[b] * (1 if b in part.host else 2) for b in scheme), min((part.at[b][0] for b in scheme), default=0)


def _defragmentation(part: Round, k: int) -> int:
    """How much longer compute waits until all is copied out and what kernel k takes in is there again."""
    outputs = set(part.data[k]) - set(part.inputs[k])
    values = [b for b in sorted(part.at, key=lambda b: (part.at[b][0], b)) if b not in part.stays | outputs]
    begin = max(part.clock[0] + part.delay(values), part.clock[1])
    return begin + sum(part.transfer(b, out=False) for b in part.inputs[k]) - part.clock[0]


def placed(holes: list[list[int]], size: int) -> int | None:
    """Take an address from holes of start and size, None where none is large enough; exact fit first, then first fit.

    So section 3.3 has it.
    """
    if not size:
        return 0
    fitting = [hole for hole in holes if hole[1] == size] or [hole for hole in holes if hole[1] >= size]
    if not fitting:
        return None
    start = fitting[0][0]
    fitting[0][0] += size
    fitting[0][1] -= size
    return start
