"""The order of recomputation: the relaunches before each kernel."""

from __future__ import annotations

from simgpu.planning.columns import (
    ACQUIRED,
    BLOCK,
    BYTES,
    CHARGED,
    DEATH,
    FETCH,
    FETCHES,
    INPUTS,
    KERNEL,
    LAST_USE,
    MAP,
    NEED,
    NEEDED_BY,
    OUTPUTS,
    PASSING,
    PASSINGS,
    RECOMPUTED,
    RELAUNCH,
    RELAUNCHES,
    RELEASED,
    STACK_BLOCK,
    STACK_INPUT,
    STACK_WRITER,
    STAMP,
    STATE,
    WATCH,
    WRITERS,
)
from simgpu.planning.tables import Ints, Positions

#: Where a feature map is: resident, on the host or being copied, dropped. The numbers are those of the actions.
RESIDENT, ON_HOST, DROPPED = 0, 1, 2


def order_relaunches(
    kernels: Ints,
    blocks: Ints,
    maps: Ints,
    lists: Positions,
    states: Ints,
    pending: Ints,
    relaunches: Ints,
    recomputing: Ints,
    now: Ints,
) -> None:
    """Fill in the relaunches before each kernel, and the kernel that first needs each fetched block."""
    for k in range(kernels.shape[0] - 1):
        pending[k, RELAUNCH] = now[RELAUNCHES]
        first, stop = kernels[k, WATCH], kernels[k + 1, WATCH]
        if first == stop:
            continue
        now[STAMP] += 1
        now[PASSINGS] = 0
        for at in range(first, stop):
            f = lists[at]
            if states[f, STATE] == DROPPED:
                recompute(kernels, blocks, lists, states, relaunches, recomputing, now, maps[f, BLOCK], f, k)
        for p in range(now[PASSINGS]):
            b = recomputing[p, PASSING]
            relaunches[recomputing[b, LAST_USE], RELEASED] += blocks[b, BYTES]
        for at in range(first, stop):
            f = lists[at]
            if states[f, STATE] == ON_HOST:
                states[f, STATE] = RESIDENT
                states[f, NEED] = k
    pending[kernels.shape[0] - 1, RELAUNCH] = now[RELAUNCHES]


def is_missing(blocks: Ints, states: Ints, recomputing: Ints, now: Ints, b: int, k: int) -> bool:
    """Whether a block is neither resident nor on the host when blocks are recomputed before kernel k."""
    if recomputing[b, RECOMPUTED] == now[STAMP]:
        return False
    f = blocks[b, MAP]
    return bool(blocks[b, DEATH] < k or (f >= 0 and states[f, STATE] == DROPPED))


def recompute(
    kernels: Ints,
    blocks: Ints,
    lists: Positions,
    states: Ints,
    relaunches: Ints,
    recomputing: Ints,
    now: Ints,
    target: int,
    charged: int,
    k: int,
) -> None:
    """Add the relaunches that recompute a block and its missing ancestors."""
    depth = 1
    recomputing[0, STACK_BLOCK], recomputing[0, STACK_WRITER] = target, blocks[target, WRITERS]
    recomputing[0, STACK_INPUT] = -1
    while depth > 0:
        top = depth - 1
        b, writer, at = recomputing[top, STACK_BLOCK], recomputing[top, STACK_WRITER], recomputing[top, STACK_INPUT]
        if writer == blocks[b + 1, WRITERS]:
            depth -= 1
            continue
        kernel = lists[writer]
        if at < 0:
            at = kernels[kernel, INPUTS]
        missing = -1
        while at < kernels[kernel + 1, INPUTS] and missing < 0:
            r = lists[at]
            at += 1
            if r != b and is_missing(blocks, states, recomputing, now, r, k):
                missing = r
        if missing >= 0:
            recomputing[top, STACK_INPUT] = at
            recomputing[depth, STACK_BLOCK], recomputing[depth, STACK_WRITER] = missing, blocks[missing, WRITERS]
            recomputing[depth, STACK_INPUT] = -1
            depth += 1
        else:
            note_relaunch(kernels, blocks, lists, states, relaunches, recomputing, now, kernel, b, charged, k)
            recomputing[top, STACK_WRITER] = writer + 1
            recomputing[top, STACK_INPUT] = -1


def fetch_for(blocks: Ints, states: Ints, now: Ints, b: int, here: int, k: int) -> None:
    """Fetch a block on the host for relaunch `here` before kernel k."""
    f = blocks[b, MAP]
    if f >= 0 and states[f, STATE] == ON_HOST and blocks[b, DEATH] >= k:
        states[f, STATE] = RESIDENT
        states[f, NEED] = k
        states[f, NEEDED_BY] = here
        states[now[FETCHES], FETCH] = f
        now[FETCHES] += 1


def note_relaunch(
    kernels: Ints,
    blocks: Ints,
    lists: Positions,
    states: Ints,
    relaunches: Ints,
    recomputing: Ints,
    now: Ints,
    kernel: int,
    b: int,
    charged: int,
    k: int,
) -> None:
    """Add one relaunch for block b, with the memory that it acquires and releases."""
    here = now[RELAUNCHES]
    now[RELAUNCHES] = here + 1
    for at in range(kernels[kernel, INPUTS], kernels[kernel + 1, INPUTS]):
        r = lists[at]
        if recomputing[r, RECOMPUTED] == now[STAMP]:
            recomputing[r, LAST_USE] = here
        else:
            fetch_for(blocks, states, now, r, here, k)
    acquired = released = 0
    for at in range(kernels[kernel, OUTPUTS], kernels[kernel + 1, OUTPUTS]):
        other = lists[at]
        if not is_missing(blocks, states, recomputing, now, other, k):
            if recomputing[other, RECOMPUTED] != now[STAMP]:
                fetch_for(blocks, states, now, other, here, k)
            continue
        acquired += blocks[other, BYTES]
        if other != b and blocks[other + 1, WRITERS] - blocks[other, WRITERS] > 1:
            # After one of several writers it does not have its final value yet: it is scratch memory.
            released += blocks[other, BYTES]
        elif blocks[other, DEATH] < k:
            recomputing[other, RECOMPUTED] = now[STAMP]
            recomputing[other, LAST_USE] = here
            recomputing[now[PASSINGS], PASSING] = other
            now[PASSINGS] += 1
        else:
            states[blocks[other, MAP], STATE] = RESIDENT
    relaunches[here, KERNEL], relaunches[here, CHARGED] = kernel, charged
    relaunches[here, ACQUIRED], relaunches[here, RELEASED] = acquired, released
