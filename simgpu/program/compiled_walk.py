"""The rules of `simgpu.program.verify` over arrays, compiled. Imports numba.

It walks a program's columns as `ProgramWalk` walks its instructions, and answers only whether every rule holds: where
one does not, `ProgramWalk` says which. `simgpu.program.fast_walk` makes the arrays.

A stamp of a block in a memory is a stream and that stream's clock; stream -1 stands for the beginning. blocks[m, b] has
the columns below; touched[m, s, b]: the clock of stream s when it last used the block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.program import opcodes
from simgpu.program.opcodes import (
    ACQUIRE,
    AWAIT,
    COPY,
    COPY_AS,
    DECODE,
    ENCODE,
    INITIALIZE,
    LAUNCH,
    RELAUNCH,
    RELEASE,
    SIGNAL,
)

_walk = partial(compiled, depends_on=(opcodes,), _nrt=False)

# Columns of a block in a memory: whether it has memory; its value, -1 for none; stamps of its acquire, of its value, of
# its release.
HELD, VALUE, ACQUIRED_BY, ACQUIRED_AT, READY_BY, READY_AT, RELEASED_BY, RELEASED_AT = range(8)
# Columns of what the graph says of a block: the block that it is a form of, -1 for none; whether the host may write it.
FORM_OF, FROM_HOST = range(2)
# Columns of the kernels' accesses: first read, end of reads, first write, end of writes, and the same when it runs
# again; whether it may.
READS, READS_END, WRITES, WRITES_END, INPUTS, INPUTS_END, OUTPUTS, OUTPUTS_END, REPEATABLE = range(9)
# Columns of one access: block, version; of an output, whether the kernel reads that block too.
BLOCK, VERSION, ALSO_READ = range(3)


@_walk
def _ordered(by: Any, at: Any, me: Any, clock: Any) -> Any:
    """Whether a stream is ordered after a stamp."""
    return by == me or by < 0 or at <= clock[me, by]


@_walk
def _is_held(blocks: Any, m: Any, b: Any, me: Any, clock: Any) -> Any:
    return blocks[m, b, HELD] and _ordered(blocks[m, b, ACQUIRED_BY], blocks[m, b, ACQUIRED_AT], me, clock)


@_walk
def _is_unused(touched: Any, m: Any, b: Any, me: Any, clock: Any) -> Any:
    """Whether no other stream may still be using the block."""
    using = 0
    for s in range(touched.shape[1]):
        using += s != me and touched[m, s, b] > clock[me, s]
    return using == 0


@_walk
def _is_ready(blocks: Any, m: Any, b: Any, me: Any, clock: Any) -> Any:
    """Whether the block has a value, written before."""
    return blocks[m, b, VALUE] >= 0 and _ordered(blocks[m, b, READY_BY], blocks[m, b, READY_AT], me, clock)


@_walk
def _set(blocks: Any, touched: Any, m: Any, b: Any, value: Any, me: Any, clock: Any) -> None:
    blocks[m, b, VALUE] = value
    blocks[m, b, READY_BY], blocks[m, b, READY_AT] = me, clock[me, me]
    touched[m, me, b] = clock[me, me]


@_walk
def _acquire(blocks: Any, m: Any, b: Any, me: Any, clock: Any) -> Any:
    if blocks[m, b, HELD] or not _ordered(blocks[m, b, RELEASED_BY], blocks[m, b, RELEASED_AT], me, clock):
        return False
    blocks[m, b, HELD], blocks[m, b, VALUE] = 1, -1
    blocks[m, b, ACQUIRED_BY], blocks[m, b, ACQUIRED_AT] = me, clock[me, me]
    return True


@_walk
def _release(blocks: Any, touched: Any, m: Any, b: Any, me: Any, clock: Any) -> Any:
    if not _is_held(blocks, m, b, me, clock) or not _is_unused(touched, m, b, me, clock):
        return False
    blocks[m, b, HELD], blocks[m, b, VALUE] = 0, -1
    blocks[m, b, RELEASED_BY], blocks[m, b, RELEASED_AT] = me, clock[me, me]
    return True


@_walk
def _move(blocks: Any, touched: Any, there: Any, source: Any, here: Any, target: Any, me: Any, clock: Any) -> Any:
    """A block's value becomes that of another place."""
    if not (_is_ready(blocks, there, source, me, clock) and _is_held(blocks, here, target, me, clock)):
        return False
    if not _is_unused(touched, here, target, me, clock):
        return False
    touched[there, me, source] = clock[me, me]
    _set(blocks, touched, here, target, blocks[there, source, VALUE], me, clock)
    return True


@_walk
def _launch(
    blocks: Any, touched: Any, m: Any, k: Any, kernels: Any, accesses: Any, graph: Any, written: Any, earlier: Any,
    me: Any, clock: Any,
) -> Any:  # fmt: skip
    for a in range(kernels[k, READS], kernels[k, READS_END]):
        b, version = accesses[a, BLOCK], accesses[a, VERSION]
        if not _ordered(blocks[m, b, READY_BY], blocks[m, b, READY_AT], me, clock):
            return False
        value, of = blocks[m, b, VALUE], graph[b, FORM_OF]
        if value != written[b] + version - earlier[b] and (of < 0 or value != written[of] + version - earlier[of]):
            return False
        touched[m, me, b] = clock[me, me]
    for a in range(kernels[k, WRITES], kernels[k, WRITES_END]):
        b, version = accesses[a, BLOCK], accesses[a, VERSION]
        if not (_is_held(blocks, m, b, me, clock) and _is_unused(touched, m, b, me, clock)):
            return False
        _set(blocks, touched, m, b, written[b] + version - earlier[b], me, clock)
    return True


@_walk
def _relaunch(
    blocks: Any, touched: Any, m: Any, k: Any, kernels: Any, accesses: Any, listed: Any, first: Any, end: Any,
    written: Any, earlier: Any, me: Any, clock: Any,
) -> Any:  # fmt: skip
    """A kernel runs again for the listed blocks from `first` to `end`, or for all that it can restore."""
    for a in range(kernels[k, INPUTS], kernels[k, INPUTS_END]):
        b = accesses[a, BLOCK]
        expected = written[b] + accesses[a, VERSION] - earlier[b]
        if not _is_ready(blocks, m, b, me, clock) or blocks[m, b, VALUE] != expected:
            return False
        touched[m, me, b] = clock[me, me]
    found = 0
    for a in range(kernels[k, OUTPUTS], kernels[k, OUTPUTS_END]):
        b, makes = accesses[a, BLOCK], first == end
        for n in range(first, end):
            makes = makes or listed[n] == b
        found += makes
        if not _is_held(blocks, m, b, me, clock) or (accesses[a, ALSO_READ] and not makes):
            return False
        if makes:
            if not _is_unused(touched, m, b, me, clock):
                return False
            _set(blocks, touched, m, b, written[b] + accesses[a, VERSION] - earlier[b], me, clock)
        else:
            touched[m, me, b] = clock[me, me]
    return first == end or found == end - first


@_walk
def walk(  # noqa: C901 - one branch per code
    rows: Any, positions: Any, ends: Any, expected: Any, repeats: Any, signalled_in: Any, listed: Any, memories: Any,
    used: Any, clock: Any, heard: Any, clocks: Any, blocks: Any, touched: Any, graph: Any, kernels: Any, accesses: Any,
    written: Any, earlier: Any, launched: Any,
) -> Any:  # fmt: skip
    """Walk the streams of one repetition of a segment from their positions to their ends; whether all rules hold.

    signalled_in[e]: the segment that signals an event. expected[i]: how many signals of its events a wait needs,
    less its lag. repeats[i]: how often the segment repeats, 0 for this one. memories[s, n]: the memory of name n
    that a stream reaches; used[s]: that of its kernels. clock[s]: the latest clocks of all streams that stream s
    knows. heard[e]: how often an event was signalled; clocks[e, n]: the clocks of the signalling stream at its
    signals. launched[k]: in this repetition.
    """
    moving = True
    while moving:
        moving = False
        for me in range(len(positions)):
            while positions[me] < ends[me]:
                row = positions[me]
                code, x, y, z = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3]
                good = True
                if code == AWAIT:
                    i = signalled_in[x]
                    target = expected[i] - y
                    if repeats[i] > 2:  # see `ProgramWalk`
                        target = expected[i] - y // repeats[i] * 2 - min(y % repeats[i], 1)
                    if heard[x] < target:
                        break
                    if target > 0:
                        for s in range(clock.shape[1]):
                            clock[me, s] = max(clock[me, s], clocks[x, target - 1, s])
                elif code == SIGNAL:
                    for s in range(clock.shape[1]):
                        clocks[x, heard[x], s] = clock[me, s]
                    heard[x] += 1
                    clock[me, me] += 1
                elif code == ACQUIRE:
                    for n in range(y, z):
                        good = good and _acquire(blocks, memories[me, x], listed[n], me, clock)
                elif code == RELEASE:
                    for n in range(y, z):
                        good = good and _release(blocks, touched, memories[me, x], listed[n], me, clock)
                elif code == INITIALIZE:
                    m = memories[me, x]
                    for n in range(y, z):
                        b = listed[n]
                        good = good and graph[b, FROM_HOST] and _is_held(blocks, m, b, me, clock)
                        good = good and _is_unused(touched, m, b, me, clock)
                        written[b] += 1
                        _set(blocks, touched, m, b, written[b] - earlier[b], me, clock)
                elif code == COPY:
                    good = _move(blocks, touched, memories[me, y], x, memories[me, z], x, me, clock)
                elif code == COPY_AS:
                    good = _move(blocks, touched, memories[me, y], graph[x, FORM_OF], memories[me, z], x, me, clock)
                elif code == ENCODE:
                    good = _move(blocks, touched, memories[me, y], graph[x, FORM_OF], memories[me, y], x, me, clock)
                elif code == DECODE:
                    good = _move(blocks, touched, memories[me, y], x, memories[me, y], graph[x, FORM_OF], me, clock)
                elif code == LAUNCH:
                    good = not launched[x] and _launch(
                        blocks, touched, used[me], x, kernels, accesses, graph, written, earlier, me, clock
                    )
                    launched[x] = True
                elif code == RELAUNCH:
                    good = launched[x] and kernels[x, REPEATABLE] == 1 and _relaunch(
                        blocks, touched, used[me], x, kernels, accesses, listed, y, z, written, earlier, me, clock
                    )  # fmt: skip
                if not good:
                    return False
                positions[me] = row + 1
                moving = True
    stopped = 0
    for me in range(len(positions)):
        stopped += positions[me] < ends[me]
    return stopped == 0
