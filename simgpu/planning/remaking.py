"""What is made again before which kernel, and by which relaunches."""

from __future__ import annotations

from simgpu.planning.columns import (
    BLOCK,
    BYTES,
    CHARGED,
    DEATH,
    FETCH,
    FETCHES,
    GIVEN,
    INPUTS,
    KERNEL,
    LAST_USE,
    MADE,
    MAP,
    NEED,
    NEEDED_BY,
    OUTPUTS,
    PASSING,
    PASSINGS,
    RELAUNCH,
    RELAUNCHES,
    STACK_BLOCK,
    STACK_INPUT,
    STACK_WRITER,
    STAMP,
    STATE,
    TAKEN,
    WATCH,
    WRITERS,
)
from simgpu.planning.tables import Ints, Positions

#: Where a feature map is: there, on the host or on its way, dropped. They begin as the actions have them.
HERE, AWAY, DROPPED = 0, 1, 2


def order_relaunches(
    kernels: Ints,
    blocks: Ints,
    maps: Ints,
    lists: Positions,
    fates: Ints,
    pending: Ints,
    again: Ints,
    making: Ints,
    now: Ints,
) -> None:
    """Fill in the relaunches before each kernel, and which kernel needs each fetched block first."""
    for k in range(kernels.shape[0] - 1):
        pending[k, RELAUNCH] = now[RELAUNCHES]
        first, stop = kernels[k, WATCH], kernels[k + 1, WATCH]
        if first == stop:
            continue
        now[STAMP] += 1
        now[PASSINGS] = 0
        for at in range(first, stop):
            f = lists[at]
            if fates[f, STATE] == DROPPED:
                make(kernels, blocks, lists, fates, again, making, now, maps[f, BLOCK], f, k)
        for p in range(now[PASSINGS]):
            b = making[p, PASSING]
            again[making[b, LAST_USE], GIVEN] += blocks[b, BYTES]
        for at in range(first, stop):
            f = lists[at]
            if fates[f, STATE] == AWAY:
                fates[f, STATE] = HERE
                fates[f, NEED] = k
    pending[kernels.shape[0] - 1, RELAUNCH] = now[RELAUNCHES]


def is_missing(blocks: Ints, fates: Ints, making: Ints, now: Ints, b: int, k: int) -> bool:
    """Whether a block is neither there nor on its way when something is made again before kernel k."""
    if making[b, MADE] == now[STAMP]:
        return False
    f = blocks[b, MAP]
    return bool(blocks[b, DEATH] < k or (f >= 0 and fates[f, STATE] == DROPPED))


def make(
    kernels: Ints,
    blocks: Ints,
    lists: Positions,
    fates: Ints,
    again: Ints,
    making: Ints,
    now: Ints,
    target: int,
    charged: int,
    k: int,
) -> None:
    """The relaunches that make a block and those of its ancestors that are missing."""
    depth = 1
    making[0, STACK_BLOCK], making[0, STACK_WRITER], making[0, STACK_INPUT] = target, blocks[target, WRITERS], -1
    while depth > 0:
        top = depth - 1
        b, writer, at = making[top, STACK_BLOCK], making[top, STACK_WRITER], making[top, STACK_INPUT]
        if writer == blocks[b + 1, WRITERS]:
            depth -= 1
            continue
        kernel = lists[writer]
        if at < 0:
            at = kernels[kernel, INPUTS]
        result = -1
        while at < kernels[kernel + 1, INPUTS] and result < 0:
            r = lists[at]
            at += 1
            if r != b and is_missing(blocks, fates, making, now, r, k):
                result = r
        if result >= 0:
            making[top, STACK_INPUT] = at
            making[depth, STACK_BLOCK], making[depth, STACK_WRITER] = result, blocks[result, WRITERS]
            making[depth, STACK_INPUT] = -1
            depth += 1
        else:
            note_relaunch(kernels, blocks, lists, fates, again, making, now, kernel, b, charged, k)
            making[top, STACK_WRITER] = writer + 1
            making[top, STACK_INPUT] = -1


def fetch_for(blocks: Ints, fates: Ints, now: Ints, b: int, here: int, k: int) -> None:
    """A block that is away is fetched for relaunch `here` before kernel k."""
    f = blocks[b, MAP]
    if f >= 0 and fates[f, STATE] == AWAY and blocks[b, DEATH] >= k:
        fates[f, STATE] = HERE
        fates[f, NEED] = k
        fates[f, NEEDED_BY] = here
        fates[now[FETCHES], FETCH] = f
        now[FETCHES] += 1


def note_relaunch(
    kernels: Ints,
    blocks: Ints,
    lists: Positions,
    fates: Ints,
    again: Ints,
    making: Ints,
    now: Ints,
    kernel: int,
    b: int,
    charged: int,
    k: int,
) -> None:
    """One relaunch on the way to block b, with the memory that it takes and gives back."""
    here = now[RELAUNCHES]
    now[RELAUNCHES] = here + 1
    for at in range(kernels[kernel, INPUTS], kernels[kernel + 1, INPUTS]):
        r = lists[at]
        if making[r, MADE] == now[STAMP]:
            making[r, LAST_USE] = here
        else:
            fetch_for(blocks, fates, now, r, here, k)
    takes = gives = 0
    for at in range(kernels[kernel, OUTPUTS], kernels[kernel + 1, OUTPUTS]):
        other = lists[at]
        if not is_missing(blocks, fates, making, now, other, k):
            if making[other, MADE] != now[STAMP]:
                fetch_for(blocks, fates, now, other, here, k)
            continue
        takes += blocks[other, BYTES]
        if other != b and blocks[other + 1, WRITERS] - blocks[other, WRITERS] > 1:
            # After one of its writers it is not what its readers want: scratch, and no more.
            gives += blocks[other, BYTES]
        elif blocks[other, DEATH] < k:
            making[other, MADE] = now[STAMP]
            making[other, LAST_USE] = here
            making[now[PASSINGS], PASSING] = other
            now[PASSINGS] += 1
        else:
            fates[blocks[other, MAP], STATE] = HERE
    again[here, KERNEL], again[here, TAKEN], again[here, GIVEN], again[here, CHARGED] = kernel, takes, gives, charged
