"""Runs a program on the compiled machine, where that has all that the program needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from types import ModuleType
from typing import Literal, get_args

import numpy as np

from simgpu.compiling import is_cached, is_ready
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.machine.arrays import SAFE, ProgramTables, TableWriter, table_of
from simgpu.machine.containers import Memories
from simgpu.machine.engines import Engines
from simgpu.machine.log import LONGEST, Entry, Ran, in_order
from simgpu.machine.stopped import Reached, StoppedRun, Unmet
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.caching.pool import CachingPool
from simgpu.program.check import CheckedProgram
from simgpu.program.code import Ints, SmallInts
from simgpu.program.columns import Columns
from simgpu.program.instructions import Program
from simgpu.program.opcodes import ACQUIRE, COPY, LAUNCH, RELEASE

#: How a program is run, see `simgpu.machine.run.run_program`.
Engine = Literal["auto", "simpy", "compiled"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
_NAME, _CACHING = "simgpu.machine.compiled", "simgpu.machine.compiled_caching"
#: A copy over a shared link counts billionths of its bytes, and its rate is taken from them: below 4.6 GB, none passes
#: 64 bits.
_SAFE_BYTES = 2**62
#: The largest number of 64 bits.
_LARGEST = 2**63 - 1
#: Links of at least so many bytes per second give every copy a rate of at least one.
_LEAST_RATE = 10**4
#: A run that stops before this time has certainly no timer that SimPy could not reach.
_SURE = 2**57
#: Executed instructions from which loading the compiled functions, or compiling them, takes less time than it saves.
_WORTH_LOADING, _WORTH_COMPILING = 10**5, 10**7
#: Blocks of the caching allocator, in use and free, that the compiled machine has place for, and some more.
_MOST_BLOCKS = 2**20


#: Holes, and the caching allocator's blocks and their order, None without it.
_Spaces = tuple[Ints, Ints | None, Ints | None]


@dataclass(slots=True)
class _Past:
    """How many instructions that the compiled machine has too were executed on SimPy. caching: whether its functions
    with the caching allocator, which are others, are loaded."""

    executed: int = 0
    caching: bool = False


_past = _Past()


def is_chosen(engine: Engine, program: Program, iterations: int, caching: bool = False) -> bool:
    """Whether the compiled machine is wanted, or faster. caching: whether a memory has PyTorch's caching allocator.

    Loading its functions takes time, so it becomes faster when this process has executed so many instructions on SimPy,
    this run's included, that loading would have paid for itself. Without numba there are none.
    """
    if engine != "auto":
        return engine == "compiled"
    if _past.caching if caching else is_ready(_NAME, "execute"):
        return True
    if util.find_spec("numba") is None:
        return False
    _past.executed += iterations * sum(sum(map(len, each.streams.values())) * each.repeat for each in program.segments)
    loads = is_cached(_NAME, "execute") and (not caching or is_cached(_CACHING, "cached"))
    return _past.executed > (_WORTH_LOADING if loads else _WORTH_COMPILING)


def run_compiled(
    checked: CheckedProgram, node: NodeSpec, engines: Engines, memories: Memories, iterations: int
) -> Ran | StoppedRun | None:
    """Run a program; None for a run whose numbers may pass 64 bits, or whose offsets no pool has. The memories hold
    what they hold at the start, and still do afterwards."""
    columns = checked.columns
    if columns is None or not _have_offsets(columns, memories):
        return None
    if any((each.pool.capacity or 0) > _LARGEST or each.pool.used > _LARGEST for each in memories.all):
        return None
    try:
        tables = TableWriter(checked, columns, node, engines, memories).tables()
    except OverflowError:
        return None
    if not _fits(columns, tables, node.host.launch_ns, iterations):
        return None
    return _run(checked, columns, tables, memories, node.host, iterations)


def _have_offsets(columns: Columns, memories: Memories) -> bool:
    """Whether the memories in which a program gives offsets have addresses."""
    names = {columns.memories[columns.rows[row, 1]] for row in columns.offsets}
    return all(isinstance(memories.of(0, name).pool, AddressedPool) for name in names)


def _run(
    checked: CheckedProgram,
    columns: Columns,
    tables: ProgramTables,
    memories: Memories,
    host: HostSpec,
    iterations: int,
) -> Ran | StoppedRun | None:
    from simgpu.machine import compiled as machine
    from simgpu.machine import compiled_caching, compiled_log
    from simgpu.machine import compiled_pools as pools

    rows, streams, executed = columns.rows, len(columns.first), _executed(columns)
    state = np.zeros((streams, machine.BLOCKS + 1), dtype=np.int64)
    state[:, machine.PC] = columns.first[:, 0]
    computing = [each.role == "compute" for each in checked.program.streams]
    state[computing, machine.LAUNCHING] = host.launch_ns
    state[computing, machine.BLOCKS] = host.waits_for_copies
    memory, addresses, spaces, log, begins = _memory_arrays(pools, columns, tables, memories, executed, iterations)
    gpus = [stream.gpu for stream in checked.program.streams]
    own = np.array([gpu if gpu not in gpus[:s] else -1 for s, gpu in enumerate(gpus)], dtype=np.int64)
    counts = np.zeros(6, dtype=np.int64)
    works = iterations * int(executed[rows[:, 0] >= LAUNCH].sum())
    del executed
    uses = np.zeros((len(memory), 2, 2), dtype=np.int64)
    # The caching allocator's free blocks follow the addresses.
    free = 0 if spaces[1] is None else 2 * spaces[1].shape[1]
    layouts = np.full((len(memory), 2, addresses.shape[1] + free), -1, dtype=np.int64)
    entries = np.empty((2 * works + 2 * streams + 64, 4), dtype=np.int32)
    spans = np.empty((len(entries), 2), dtype=np.int64)
    queues = np.zeros((len(memory), streams + 1), dtype=np.int64)
    links = np.zeros((3, len(tables.capacities)), dtype=np.int64)
    links[0] = tables.capacities
    arguments = (
        state, rows, tables.numbers, columns.first, columns.repeats, iterations, own, tables.copies,
        np.zeros((tables.engines + 1, 2 + streams), dtype=np.int64), links, memory,
        tables.places, queues, tables.requests, tables.pieces, addresses, *spaces,
        np.zeros(len(columns.events) + 1, dtype=np.int64), tables.sources, tables.durations,
        np.zeros((streams, 6), dtype=np.int64), counts, log, uses, layouts,
    )  # fmt: skip
    machine.execute(*arguments, entries, spans)
    _past.caching |= spaces[1] is not None
    while counts[machine.OUTCOME] == machine.FULL:
        entries = np.concatenate((entries, np.empty_like(entries)))
        spans = np.concatenate((spans, np.empty_like(spans)))
        machine.execute(*arguments, entries, spans)
    if memory[:, compiled_caching.OVERFLOW].any():
        return None
    if counts[machine.OUTCOME] == machine.STOPPED and counts[machine.NOW] < _SURE:
        reached = [_reached(checked, columns, rank, row) for rank, row in enumerate(state.tolist())]
        worked = entries[: counts[machine.ENTRIES], compiled_log.CAUSE] == compiled_log.WORK
        ended = int(spans[: len(worked)][worked, compiled_log.TO_NS].max(initial=0))
        unmet = _unmet(queues, tables, state[:, machine.PC], memory, spaces)
        return StoppedRun(checked.program, checked.graph, memories, reached, iterations, ended, unmet)
    if counts[machine.OUTCOME] != machine.COMPLETE:
        return None
    levels = [log[:, begin:end] for begin, end in zip(begins, memory[:, pools.LOGGED].tolist(), strict=True)]
    # Writing the log takes as much memory as running, so what it does not need goes first.
    del arguments
    tables.requests = tables.pieces = tables.copies = tables.requests[:0].copy()
    tables.sources = tables.sources[:0].copy()
    entries, spans = entries[: counts[machine.ENTRIES]], spans[: counts[machine.ENTRIES]]
    order = in_order(spans[:, compiled_log.SINCE_NS], entries[:, compiled_log.BY_STREAM])
    log_columns = np.empty((len(Entry._fields), len(entries)), dtype=np.int64)
    for name, column in (("start_ns", compiled_log.SINCE_NS), ("end_ns", compiled_log.TO_NS)):
        log_columns[Entry._fields.index(name)] = spans[order, column]
    del spans
    _write_columns(columns, tables, entries, order, log_columns)
    parities = (iterations % 2, 1 - iterations % 2)
    devices = range(len(memories.devices))
    return Ran(
        log_columns,
        memories.curves(levels),
        [[(uses[m, at].tobytes(), _layout(layouts[m, at], addresses.shape[1])) for at in parities] for m in devices],
        max(int(memory[m, pools.HIGH]) for m in devices),
        max(int(memory[m, pools.BUDDY_PEAK]) for m in devices),
    )


def _write_columns(columns: Columns, tables: ProgramTables, entries: SmallInts, order: Ints, log_columns: Ints) -> None:
    """Write the columns of the log's entries, but for their times."""
    from simgpu.machine import compiled_log

    before = np.empty(len(columns.rows), dtype=np.int32)
    compiled_log.find_work(columns.rows, columns.first.ravel(), before)
    compiled_log.write_columns(
        entries, order, columns.rows, columns.first, tables.numbers, before, tables.labels, tables.memories,
        tables.sizes, tables.resources, log_columns,
    )  # fmt: skip


def _fits(columns: Columns, tables: ProgramTables, launch_ns: int, iterations: int) -> bool:
    """Whether times stay far below 64 bits, and rates above zero."""
    code, streams, copies = columns.rows[:, 0], len(columns.first), tables.copies.astype(np.float64)
    executed, numbers = _executed(columns), tables.numbers
    launches, copied = np.flatnonzero((code >= LAUNCH) & (code < COPY)), np.flatnonzero(code >= COPY)
    total = float((executed[launches] * tables.durations[numbers[launches]].astype(np.float64)).sum())
    total += launch_ns * float(executed[code >= LAUNCH].sum())
    if len(copies):
        slowest = min(SAFE, float(copies[:, 4].min()), float(tables.capacities.min(initial=SAFE)))
        if len(tables.capacities) and slowest < _LEAST_RATE:
            return False
        shared = copies[:, 2] + streams * copies[:, 3] / max(slowest, 1)
        longest = np.where(copies[:, 1] >= 0, copies[:, 1], shared)
        total += float((executed[copied] * longest[numbers[copied]]).sum())
        if float((copies[:, 3] + copies[:, 4]).max()) >= _SAFE_BYTES:
            return False
    return iterations * total < LONGEST


def _reached(checked: CheckedProgram, columns: Columns, rank: int, state: list[int]) -> Reached:
    """How far a stream has got."""
    from simgpu.machine import compiled as machine

    stream, segments = checked.program.streams[rank], checked.program.segments
    if state[machine.STATUS] != machine.FINISHED:
        segment, repetition = state[machine.SEGMENT], state[machine.REPETITION]
        position = state[machine.PC] - int(columns.first[rank, segment])
        return Reached(stream, state[machine.ITERATION], segment, repetition, position, False)
    lengths = [len(segment.streams.get(stream, ())) for segment in segments]
    last = next((length for length in reversed(lengths) if length), 1) - 1
    return Reached(stream, state[machine.ITERATION] - 1, len(segments) - 1, segments[-1].repeat - 1, last, True)


def _layout(layout: Ints, addresses: int) -> bytes:
    """The addresses of all blocks, and of the caching allocator's free blocks, which end with -1."""
    free = layout[addresses:]
    end = int(np.argmax(free < 0)) if len(free) else 0
    return layout[: addresses + end].tobytes()


def _unmet(queues: Ints, tables: ProgramTables, at: Ints, memory: Ints, spaces: _Spaces) -> list[Unmet]:
    """The first request in the queue of each memory that has one. at: the row of each stream."""
    from simgpu.machine import compiled_caching as caching
    from simgpu.machine import compiled_pools as pools

    holes, _, order = spaces
    unmet = []
    for m in np.flatnonzero(queues[:, 0]).tolist():
        stream, used = int(queues[m, 1]), int(memory[m, pools.USED])
        hole = int(memory[m, pools.LIMIT]) - used
        if memory[m, pools.PLACING] == pools.PLACED:
            hole = int(holes[m, : memory[m, pools.HOLES], 1].max(initial=0))
        elif order is not None and memory[m, pools.PLACING] == pools.CACHED:
            hole = int(memory[m, pools.LIMIT] - memory[m, caching.RESERVED])
            for kind in range(2):
                count = memory[m, caching.FREE_BLOCKS + kind]
                hole = max(hole, int(order[m, kind, :count, 1].max(initial=0)))
        requested = tables.requests[tables.numbers[at[stream]], 1]
        unmet.append(Unmet(m, stream, int(requested), used, hole, int(memory[m, caching.RESERVED])))
    return unmet


def _executed(columns: Columns) -> SmallInts:
    """How often each row is executed in an iteration."""
    repeats = np.tile(columns.repeats.astype(np.int32), len(columns.first))
    return np.repeat(repeats, np.diff([*columns.first.ravel(), len(columns.rows)]))


def _memory_arrays(
    pools: ModuleType,
    columns: Columns,
    tables: ProgramTables,
    memories: Memories,
    executed: SmallInts,
    iterations: int,
) -> tuple[Ints, Ints, _Spaces, Ints, list[int]]:
    """State, addresses by block, spaces and log of each memory, with what it holds at the start, and where its part of
    the log begins."""
    from simgpu.machine import compiled_caching as caching

    code, pieces = columns.rows[:, 0], tables.pieces
    memory = np.zeros((len(memories.all), caching.COLUMNS), dtype=np.int64)
    placing = [each.pool for each in memories.all if isinstance(each.pool, AddressedPool | CachingPool)]
    known = [block for each in placing for block in each.addresses]
    blocks = 1 + max([int(pieces[:, 0].max(initial=0)), *known]) if placing else 0
    addresses = np.full((len(memory), blocks), -1, dtype=np.int64)
    held = [sum(1 for _ in each.allocator.blocks()) for each in placing if isinstance(each, CachingPool)]
    slots = max((count + min(4 * blocks, _MOST_BLOCKS) + 1024 for count in held), default=0)
    holes = np.zeros((len(memory), max(blocks, slots) + 3 if placing else 0, 2), dtype=np.int64)
    spaces: _Spaces = holes, None, None
    if slots:
        cached = np.zeros((len(memory), slots, 5), dtype=np.int64)
        spaces = holes, cached, np.zeros((len(memory), 2, slots, 2), dtype=np.int64)
    asks = np.flatnonzero((code == RELEASE) | (code == ACQUIRE))
    places = tables.places[columns.streams_of(asks), columns.rows[asks, 1]]
    changes = iterations * np.bincount(places, executed[asks], minlength=len(memory)).astype(np.int64)
    for number, each in enumerate(memories.all):
        pool = each.pool
        memory[number, :4] = pool.limit, pool.live, pool.used, pool.high_water
        memory[number, pools.CARVED], memory[number, pools.BUDDY_PEAK] = each.carved, each.buddy_peak
        if isinstance(pool, AddressedPool):
            found = list(pool.holes)
            memory[number, pools.PLACING], memory[number, pools.HOLES] = pools.PLACED, len(found)
            holes[number, : len(found)] = table_of(found, 2)
            for block, start in pool.addresses.items():
                addresses[number, block] = start
        elif isinstance(pool, CachingPool):
            memory[number, pools.PLACING] = pools.CACHED
            _write_caching(pool, number, memory, addresses, spaces)
        if each.reserved is not None:
            # Each first try and each serving of the queue, which follows a release, may be refused.
            changes[number] += iterations * int(executed[asks].sum())
            memory[number, caching.NOTED] = (each.reserved or [0])[-1]
    # Each memory's part of the log begins with what it holds at the start.
    initial = np.array([len(each.times) for each in memories.all], dtype=np.int64)
    ends = np.cumsum(changes + initial)
    begins = ends - changes - initial
    memory[:, pools.LOGGED] = begins + initial
    log = np.empty((4 if slots else 3, int(ends[-1])), dtype=np.int64)
    for each, begin in zip(memories.all, begins.tolist(), strict=True):
        levels = each.levels
        log[: len(levels), begin : begin + len(each.times)] = levels
    return memory, addresses, spaces, log, begins.tolist()


def _write_caching(pool: CachingPool, m: int, memory: Ints, addresses: Ints, spaces: _Spaces) -> None:
    """What a caching allocator holds at the start."""
    from simgpu.machine import compiled_caching as caching
    from simgpu.machine import compiled_pools as pools

    holes, blocks, order = spaces
    assert blocks is not None and order is not None
    found = list(pool.device.free_addresses())
    memory[m, pools.HOLES] = len(found)
    holes[m, : len(found)] = table_of(found, 2)
    held = list(pool.allocator.blocks())
    numbers = {id(block): number for number, block in enumerate(held)}
    numbers[id(None)] = -1
    rows = [(b.address, b.size, numbers[id(b.previous)], numbers[id(b.next)], not b.allocated) for b in held]
    blocks[m, : len(held)] = table_of(rows, 5)
    for kind, small in enumerate((True, False)):
        free = [block for each in pool.allocator.pools.values() if each.small is small for block in each]
        order[m, kind, : len(free)] = table_of([(numbers[id(block)], block.size) for block in free], 2)
        memory[m, caching.FREE_BLOCKS + kind] = len(free)
    addresses[m, list(pool.held)] = [numbers[id(block)] for block in pool.held.values()]
    slots = blocks.shape[1]
    blocks[m, len(held) :, caching.BEHIND] = np.arange(len(held) + 1, slots + 1)
    memory[m, caching.UNUSED], memory[m, caching.LEFT] = len(held), slots - len(held)
    memory[m, caching.RESERVED] = pool.allocator.statistics.reserved
