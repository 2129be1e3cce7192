"""Runs a program on the compiled machine, where that has all that the program needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from typing import Literal, get_args

import numpy as np

from simgpu.compiling import is_cached, is_ready
from simgpu.hardware.spec import NodeSpec
from simgpu.machine import tables as layout
from simgpu.machine.arrays import SAFE, ProgramTables, TableWriter, table_of
from simgpu.machine.containers import Memories
from simgpu.machine.engines import Engines
from simgpu.machine.log import LONGEST, Entry, Ran, in_order
from simgpu.machine.stopped import Reached, StoppedRun, Unmet
from simgpu.memory.addressed import AddressedPool
from simgpu.program.check import CheckedProgram
from simgpu.program.code import Ints
from simgpu.program.columns import Columns
from simgpu.program.instructions import Program
from simgpu.program.opcodes import ACQUIRE, COPY, LAUNCH, RELEASE

#: How a program is run, see `simgpu.machine.run.run_program`.
Engine = Literal["auto", "simpy", "compiled"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
_NAME = "simgpu.machine.compiled"
#: A copy over a shared link counts billionths of its bytes, and its rate is taken from them: below 4.6 GB, none passes
#: 64 bits.
_SAFE_BYTES = 2**62
#: Links of at least so many bytes per second give every copy a rate of at least one.
_LEAST_RATE = 10**4
#: A run that stops before this time has certainly no timer that SimPy could not reach.
_SURE = 2**57
#: Executed instructions from which loading the compiled functions, or compiling them, takes less time than it saves.
_WORTH_LOADING, _WORTH_COMPILING = 10**5, 10**7


@dataclass(slots=True)
class _Past:
    """How many instructions that the compiled machine has too were executed on SimPy."""

    executed: int = 0


_past = _Past()


def is_chosen(engine: Engine, program: Program, iterations: int) -> bool:
    """Whether the compiled machine is wanted, or faster.

    Loading its functions takes time, so it becomes faster when this process has executed so many instructions on SimPy,
    this run's included, that loading would have paid for itself. Without numba there are none.
    """
    if engine != "auto":
        return engine == "compiled"
    if is_ready(_NAME, "execute"):
        return True
    if util.find_spec("numba") is None:
        return False
    _past.executed += iterations * sum(sum(map(len, each.streams.values())) * each.repeat for each in program.segments)
    return _past.executed > (_WORTH_LOADING if is_cached(_NAME, "execute") else _WORTH_COMPILING)


def run_compiled(
    checked: CheckedProgram, node: NodeSpec, engines: Engines, memories: Memories, iterations: int
) -> Ran | StoppedRun | None:
    """Run a program; None for a run whose numbers may pass 64 bits, or whose offsets no pool has. The memories hold
    what they hold at the start, and still do afterwards."""
    columns = checked.columns
    if columns is None or (columns.offsets and not isinstance(memories.devices[0].pool, AddressedPool)):
        return None
    try:
        tables = TableWriter(checked, columns, node, engines, memories).tables()
    except OverflowError:
        return None
    if not _fits(columns, tables, iterations):
        return None
    return _run(checked, columns, tables, memories, iterations)


def _run(
    checked: CheckedProgram, columns: Columns, tables: ProgramTables, memories: Memories, iterations: int
) -> Ran | StoppedRun | None:
    from simgpu.machine import compiled as machine

    ops = tables.ops
    streams, executed = len(columns.first), iterations * _executed(columns)
    state = np.zeros((streams, layout.STREAM_COLUMNS), dtype=np.int64)
    state[:, layout.PC] = columns.first[:, 0]
    memory, addresses, holes, log, begins = _memory_arrays(memories, tables, executed)
    gpus = [stream.gpu for stream in checked.program.streams]
    own = np.array([gpu if gpu not in gpus[:s] else -1 for s, gpu in enumerate(gpus)], dtype=np.int64)
    counts = np.zeros(layout.COUNTS, dtype=np.int64)
    works = int(executed[ops[:, 0] >= LAUNCH].sum())
    uses = np.zeros((len(memory), 2, 2), dtype=np.int64)
    layouts = np.full((len(memory), 2, addresses.shape[1]), -1, dtype=np.int64)
    entries = np.empty((2 * works + 2 * streams + 64, layout.ENTRY_COLUMNS), dtype=np.int64)
    queues = np.zeros((len(memory), layout.BEFORE_QUEUE + streams), dtype=np.int64)
    links = np.zeros((3, len(tables.capacities)), dtype=np.int64)
    links[0] = tables.capacities
    arguments = (
        state, ops, columns.first, columns.repeats, iterations, own, tables.copies,
        np.zeros((tables.engines + 1, layout.BEFORE_ENGINE_QUEUE + streams), dtype=np.int64), links, memory,
        queues, tables.requests, tables.pieces, addresses, holes,
        np.zeros(len(columns.events) + 1, dtype=np.int64), np.zeros((streams, layout.FLOW_COLUMNS), dtype=np.int64),
        counts, log, uses, layouts,
    )  # fmt: skip
    machine.execute(*arguments, entries)
    while counts[layout.OUTCOME] == layout.FULL:
        entries = np.concatenate((entries, np.empty_like(entries)))
        machine.execute(*arguments, entries)
    if counts[layout.OUTCOME] == layout.STOPPED and counts[layout.NOW] < _SURE:
        reached = [_reached(checked, columns, rank, row) for rank, row in enumerate(state.tolist())]
        logged = entries[: counts[layout.ENTRIES]]
        ended = int(logged[logged[:, layout.CAUSE] == layout.WORK, layout.TO_NS].max(initial=0))
        unmet = _first_unmet(queues, tables, state[:, layout.PC], memory, holes)
        return StoppedRun(checked.program, checked.graph, memories, reached, iterations, ended, unmet)
    if counts[layout.OUTCOME] != layout.COMPLETE:
        return None
    levels = [log[:, begin:end] for begin, end in zip(begins, memory[:, layout.LOGGED].tolist(), strict=True)]
    entries = entries[: counts[layout.ENTRIES]]
    log_columns = np.empty((len(Entry._fields), len(entries)), dtype=np.int64)
    machine.write_columns(
        entries,
        in_order(entries[:, layout.SINCE_NS], entries[:, layout.BY_STREAM]),
        tables.labels,
        tables.sizes,
        log_columns,
    )
    order = (iterations % 2, 1 - iterations % 2)
    devices = range(len(memories.devices))
    return Ran(
        log_columns,
        memories.curves(levels),
        [[(uses[m, at].tobytes(), layouts[m, at].tobytes()) for at in order] for m in devices],
        max(int(memory[m, layout.HIGH]) for m in devices),
        max(int(memory[m, layout.BUDDY_PEAK]) for m in devices),
    )


def _fits(columns: Columns, tables: ProgramTables, iterations: int) -> bool:
    """Whether times stay far below 64 bits, and rates above zero."""
    ops, streams, copies = tables.ops, len(columns.first), tables.copies.astype(np.float64)
    times = iterations * _executed(columns).astype(np.float64)
    launches, copied = ops[:, 0] == LAUNCH, ops[:, 0] == COPY
    total = float((times * ops[:, 1])[launches].sum())
    if len(copies):
        slowest = min(SAFE, float(copies[:, layout.CAP].min()), float(tables.capacities.min(initial=SAFE)))
        if len(tables.capacities) and slowest < _LEAST_RATE:
            return False
        shared = copies[:, layout.DELAY] + streams * copies[:, layout.BYTES] / max(slowest, 1)
        longest = np.where(copies[:, layout.ALONE] >= 0, copies[:, layout.ALONE], shared)
        total += float((times[copied] * longest[ops[copied, 1]]).sum())
        if float((copies[:, layout.BYTES] + copies[:, layout.CAP]).max()) >= _SAFE_BYTES:
            return False
    return total < LONGEST


def _reached(checked: CheckedProgram, columns: Columns, rank: int, state: list[int]) -> Reached:
    """How far a stream has got."""
    stream, segments = checked.program.streams[rank], checked.program.segments
    if state[layout.STATUS] != layout.FINISHED:
        segment, repetition = state[layout.SEGMENT], state[layout.REPETITION]
        position = state[layout.PC] - int(columns.first[rank, segment])
        return Reached(stream, state[layout.ITERATION], segment, repetition, position, False)
    lengths = [len(segment.streams.get(stream, ())) for segment in segments]
    last = next((length for length in reversed(lengths) if length), 1) - 1
    return Reached(stream, state[layout.ITERATION] - 1, len(segments) - 1, segments[-1].repeat - 1, last, True)


def _first_unmet(queues: Ints, tables: ProgramTables, at: Ints, memory: Ints, holes: Ints) -> Unmet | None:
    """The first request in the queue of the first memory that has one. at: the row of each stream."""
    for m in np.flatnonzero(queues[:, 0]).tolist():
        stream, used = int(queues[m, 1]), int(memory[m, layout.USED])
        hole = int(memory[m, layout.LIMIT]) - used
        if memory[m, layout.ADDRESSED]:
            hole = int(holes[m, : memory[m, layout.HOLES], 1].max(initial=0))
        requested = tables.requests[tables.ops[at[stream], 2], layout.REQUESTED_USED]
        return Unmet(m, stream, int(requested), used, hole)
    return None


def _executed(columns: Columns) -> Ints:
    """How often each row is executed in an iteration."""
    return columns.repeats[columns.segments_of_rows]


def _memory_arrays(
    memories: Memories, tables: ProgramTables, executed: Ints
) -> tuple[Ints, Ints, Ints, Ints, list[int]]:
    """State, addresses by block, holes and log of each memory, with what it holds at the start, and where its part of
    the log begins."""
    ops, pieces = tables.ops, tables.pieces
    memory = np.zeros((len(memories.all), layout.MEMORY_COLUMNS), dtype=np.int64)
    addressed = [each.pool for each in memories.all if isinstance(each.pool, AddressedPool)]
    known = [block for pool in addressed for block in pool.addresses]
    blocks = 1 + max([int(pieces[:, 0].max(initial=0)), *known]) if addressed else 0
    addresses = np.full((len(memory), blocks), -1, dtype=np.int64)
    holes = np.zeros((len(memory), blocks + 3 if addressed else 0, 2), dtype=np.int64)
    asks = (ops[:, 0] == RELEASE) | (ops[:, 0] == ACQUIRE)
    changes = np.bincount(ops[asks, 1], weights=executed[asks], minlength=len(memory)).astype(np.int64)
    for number, each in enumerate(memories.all):
        pool = each.pool
        memory[number, :4] = pool.limit, pool.live, pool.used, pool.high_water
        memory[number, layout.CARVED], memory[number, layout.BUDDY_PEAK] = each.carved, each.buddy_peak
        if isinstance(pool, AddressedPool):
            found = list(pool.holes)
            memory[number, layout.ADDRESSED], memory[number, layout.HOLES] = 1, len(found)
            holes[number, : len(found)] = table_of(found, 2)
            for block, start in pool.addresses.items():
                addresses[number, block] = start
    # Each memory's part of the log begins with what it holds at the start.
    initial = np.array([len(each.times) for each in memories.all], dtype=np.int64)
    ends = np.cumsum(changes + initial)
    begins = ends - changes - initial
    memory[:, layout.LOGGED] = begins + initial
    log = np.empty((3, int(ends[-1])), dtype=np.int64)
    for each, begin in zip(memories.all, begins.tolist(), strict=True):
        log[:, begin : begin + len(each.times)] = each.levels
    return memory, addresses, holes, log, begins.tolist()
