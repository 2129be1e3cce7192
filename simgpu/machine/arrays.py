"""Machine code as arrays for the compiled simulator, and its results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simgpu.machine import code as ops
from simgpu.machine.code import MachineCode, Op
from simgpu.machine.engines import Engines
from simgpu.machine.stream import Memories, TimedMemory
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.transfer import NANO, copy_ns

Ints = NDArray[np.int64]

#: Times and amounts of memory below the first can be added without passing 64 bits. A copy over a shared link counts
#: billionths of its bytes, and its rate is taken from them: below the second, 4.6 GB, none passes 64 bits.
_SAFE, _SAFE_BYTES = 2**61, 2**62
#: Links of at least so many bytes per second give every copy a rate of at least one.
_LEAST_RATE = 10**4
#: How a program is run, see `simgpu.machine.run.run_program`.
Engine = Literal["auto", "simpy", "compiled"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
_NAME = "simgpu.machine.compiled"
#: Executed ops from which loading the compiled functions, or compiling them, takes less time than it saves.
_WORTH_LOADING, _WORTH_COMPILING = 10**6, 2 * 10**7
#: The code of each op in `simgpu.machine.compiled`.
_CODES = {
    ops.PASS: 0,
    ops.AWAIT: 1,
    ops.END: 2,
    ops.RELEASE: 3,
    ops.SIGNAL: 4,
    ops.ACQUIRE: 5,
    ops.LAUNCH: 6,
    ops.COPY: 7,
}


@dataclass(slots=True)
class StreamRecord:
    """What one stream did: ends of its works and starts of its copies, and the last two states of its GPU's memory."""

    memory: TimedMemory | None
    ends: Ints
    starts: Ints
    snapshots: list[object] = field(default_factory=list)


@dataclass(slots=True)
class CompiledRun:
    """The result of a finished run, as `simgpu.machine.record.timeline_of` reads it."""

    code: MachineCode
    memories: Memories
    iterations: int
    streams: list[StreamRecord]
    stalls: Ints
    releases: Ints
    high_water: int


class _Tables:
    """The rows of the tables that the ops of all streams refer to."""

    def __init__(self, memories: Memories, engines: Sequence[Engines]) -> None:
        self.memories = {id(memory): number for number, memory in enumerate(memories.all)}
        self.requests: list[tuple[int, int, int, int]] = []
        self.pieces: list[tuple[int, int, int]] = []
        self.first_request: list[int] = []
        for memory in memories.all:
            self.first_request.append(len(self.requests))
            if not isinstance(memory.pool, AddressedPool):
                self.requests += [(live, used, 0, 0) for live, used, _, _ in memory.requests]
                continue
            for live, used, pieces, offsets in memory.requests:
                begin = len(self.pieces)
                at = offsets or (-1,) * len(pieces)
                self.pieces += [(*piece, offset) for piece, offset in zip(pieces, at, strict=True)]
                self.requests.append((live, used, begin, len(self.pieces)))
        network = next((each.flows for each in engines if each.flows is not None), None)
        self.links = {} if network is None else {name: at for at, name in enumerate(sorted(network.capacities))}
        self.capacities = [] if network is None else [network.capacities[name] for name in sorted(network.capacities)]
        self.engines: dict[int, int] = {}
        self.copies: list[tuple[int, ...]] = []
        self._known: dict[tuple[object, ...], int] = {}

    def rows(self, stream: Sequence[Op], engines: Engines) -> Iterator[tuple[int, int, int, int]]:
        """Ops with three operands each, as integers."""
        memories, first_request, codes = self.memories, self.first_request, _CODES
        for op in stream:
            code = op[0]
            if code == ops.LAUNCH:
                yield codes[code], op[1], 0, 0
            elif code in (ops.RELEASE, ops.ACQUIRE):
                memory, number = memories[id(op[1])], op[3]
                yield codes[code], memory, first_request[memory] + number // 2, number
            elif code == ops.COPY:
                yield codes[code], self._copy(op, engines), 0, 0
            elif code == ops.AWAIT:
                yield codes[code], op[1], op[2], op[3]
            else:
                yield codes[code], op[1] if code == ops.SIGNAL else 0, 0, 0

    def _copy(self, op: Op, engines: Engines) -> int:
        key = (id(engines), *op)
        if key not in self._known:
            _, link, direction, size, raw = op
            engine = self.engines.setdefault(id(engines.engines[link][direction]), len(self.engines))
            rate, latency = engines.cap(link, direction, size, raw), engines.links[link].latency_ns
            alone = copy_ns(size, rate, latency) if engines.flows is None else -1
            path = [self.links[name] for name in engines.paths[link][direction]] if self.links else []
            self._known[key] = len(self.copies)
            self.copies.append((engine, alone, latency, size * NANO, rate, *(*path, -1, -1, -1)[:3]))
        return self._known[key]


def why_not(code: MachineCode) -> str:
    """Why the compiled simulator cannot run a program; empty if it can."""
    if code.demands_vary:
        return "kernels slow down its compressed copies"
    if code.linked:
        return "kernels share the link to buddy memory"
    if any(op[0] not in _CODES for stream in code.segments for part in stream for op in part.ops):
        return "its kernels access host memory"
    return ""


def is_chosen(engine: Engine, code: MachineCode, iterations: int) -> bool:
    """Whether the compiled simulator, which has all ops of the code, is asked for, or faster.

    Until its functions are loaded in this process, it is faster only for long runs; without numba there are none.
    """
    if engine != "auto":
        return engine == "compiled"
    if _NAME in sys.modules:
        return True
    if util.find_spec("numba") is None:
        return False
    executed = iterations * sum(len(part.ops) * part.repeat for stream in code.segments for part in stream)
    return executed > (_WORTH_LOADING if _is_cached() else _WORTH_COMPILING)


def _is_cached() -> bool:
    """Whether an earlier process has compiled the functions, and numba has kept them next to the file."""
    path = Path(__file__)
    return any((path.parent / "__pycache__").glob("compiled.execute_*.nbi"))


def run_compiled(
    code: MachineCode, engines: Sequence[Engines], memories: Memories, iterations: int
) -> CompiledRun | None:
    """Run machine code; None for a run that stops before all streams have finished, or whose numbers may pass 64 bits.

    engines[stream]: of its GPU. The memories hold what they hold at the start; their logs are those of the run
    afterwards, if it finished, and else unchanged.
    """
    try:
        return _run(code, engines, memories, iterations)
    except OverflowError:
        return None


def _run(code: MachineCode, engines: Sequence[Engines], memories: Memories, iterations: int) -> CompiledRun | None:
    from simgpu.machine import compiled as machine
    from simgpu.machine import compiled_pools as pools

    tables, streams = _Tables(memories, engines), len(code.streams)
    rows: list[tuple[int, int, int, int]] = []
    first = np.zeros((streams, len(code.segments[0])), dtype=np.int64)
    for s, parts in enumerate(code.segments):
        for g, part in enumerate(parts):
            first[s, g] = len(rows)
            rows += tables.rows(part.ops, engines[s])
    table, pieces = _table(rows, 4), _table(tables.pieces, 3)
    repeats = np.array([part.repeat for part in code.segments[0]], dtype=np.int64)
    if not _fits(table, first, repeats, iterations, tables):
        return None
    works = [sum(len(part.works) * part.repeat for part in parts) * iterations for parts in code.segments]
    state = np.zeros((streams, 12), dtype=np.int64)
    state[:, machine.PC], state[:, machine.SINCE] = first[:, 0], -1
    bases = np.cumsum([0, *works])
    state[:, machine.ENDS] = state[:, machine.STARTS] = bases[:-1]
    executed = iterations * _executed(first, repeats, len(table))
    memory, addresses, holes, log = _memory_arrays(pools, memories, table, executed, pieces)
    begins = memory[:, pools.LOGGED].copy()
    own = np.array([_own(code, s) for s in range(streams)], dtype=np.int64)
    counts = np.zeros(9, dtype=np.int64)
    ends, starts = np.zeros(bases[-1], dtype=np.int64), np.zeros(bases[-1], dtype=np.int64)
    uses = np.zeros((len(memory), 2, 2), dtype=np.int64)
    layouts = np.full((len(memory), 2, addresses.shape[1]), -1, dtype=np.int64)
    stalls, releases = np.zeros((1024, 7), dtype=np.int64), np.zeros((1024, 3), dtype=np.int64)
    links = np.zeros((3, len(tables.capacities)), dtype=np.int64)
    links[0] = tables.capacities
    arguments = (
        state, table, first, repeats, iterations, own, _table(tables.copies, 8),
        np.zeros((len(tables.engines) + 1, 2 + streams), dtype=np.int64), links,
        memory, np.zeros((len(memory), streams + 1), dtype=np.int64), _table(tables.requests, 4),
        pieces, addresses, holes, np.zeros(len(code.signaller) + 1, dtype=np.int64),
        np.zeros((streams, 6), dtype=np.int64), counts, ends, starts, log, uses, layouts,
    )  # fmt: skip
    machine.execute(*arguments, stalls, releases)
    while counts[machine.OUTCOME] == machine.FULL:
        stalls, releases = (np.concatenate((each, np.zeros_like(each))) for each in (stalls, releases))
        machine.execute(*arguments, stalls, releases)
    if counts[machine.OUTCOME] != machine.COMPLETE:
        return None
    records = []
    for s in range(streams):
        begun = slice(bases[s], state[s, machine.STARTS])
        record = StreamRecord(None, ends[bases[s] : bases[s + 1]], starts[begun])
        if own[s] >= 0:
            record.memory = memories.all[own[s]]
            order = (iterations % 2, 1 - iterations % 2)
            record.snapshots = [(uses[own[s], at].tobytes(), layouts[own[s], at].tobytes()) for at in order]
        records.append(record)
    for number, each in enumerate(memories.all):
        begin, end = int(begins[number]) - len(each.times), int(memory[number, pools.LOGGED])
        each.write_log(log[begin:end, 0], log[begin:end, 1])
    high = max(int(memory[number, pools.HIGH]) for number in range(len(memories.devices)))
    made = int(counts[machine.STALLS]), int(counts[machine.RELEASES])
    return CompiledRun(code, memories, iterations, records, stalls[: made[0]], releases[: made[1]], high)


def _own(code: MachineCode, s: int) -> int:
    """The position of the GPU's memory for the first stream of each GPU, else -1."""
    gpu = code.streams[s].gpu
    return gpu if s == 0 or code.streams[s - 1].gpu != gpu else -1


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _fits(table: Ints, first: Ints, repeats: Ints, iterations: int, tables: _Tables) -> bool:
    """Whether times and amounts of memory stay far below 64 bits, and rates above zero."""
    times = iterations * _executed(first, repeats, len(table)).astype(np.float64)
    launches, copies = table[:, 0] == _CODES[ops.LAUNCH], table[:, 0] == _CODES[ops.COPY]
    total = float((times * table[:, 1])[launches].sum())
    if tables.copies:
        slowest = min([_SAFE, *(row[4] for row in tables.copies), *tables.capacities])
        if tables.capacities and slowest < _LEAST_RATE:
            return False
        shared = [row[2] + len(first) * row[3] / max(slowest, 1) for row in tables.copies]
        longest = [alone if alone >= 0 else flow for (_, alone, *_), flow in zip(tables.copies, shared, strict=True)]
        total += float((times[copies] * np.array(longest, dtype=np.float64)[table[copies, 1]]).sum())
    used = sum(row[1] for row in tables.requests)
    return total < _SAFE and used < _SAFE and max((row[3] + row[4] for row in tables.copies), default=0) < _SAFE_BYTES


def _executed(first: Ints, repeats: Ints, count: int) -> Ints:
    """How often each op is executed in an iteration."""
    order = np.append(first.ravel(), count)
    return np.repeat(np.tile(repeats, len(first)), np.diff(order))


def _memory_arrays(
    columns: ModuleType, memories: Memories, table: Ints, executed: Ints, pieces: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """State, addresses by block, holes and log of each memory, with what it holds at the start."""
    memory = np.zeros((len(memories.all), 7), dtype=np.int64)
    addressed = [each.pool for each in memories.all if isinstance(each.pool, AddressedPool)]
    known = [block for pool in addressed for block in pool.addresses]
    blocks = 1 + max([int(pieces[:, 0].max(initial=0)), *known]) if addressed else 0
    addresses = np.full((len(memory), blocks), -1, dtype=np.int64)
    holes = np.zeros((len(memory), blocks + 3 if addressed else 0, 2), dtype=np.int64)
    asks = (table[:, 0] == _CODES[ops.RELEASE]) | (table[:, 0] == _CODES[ops.ACQUIRE])
    changes = np.bincount(table[asks, 1], weights=executed[asks], minlength=len(memory)).astype(np.int64)
    at = 0
    for number, each in enumerate(memories.all):
        pool = each.pool
        memory[number, :4] = pool.limit, pool.live, pool.used, pool.high_water
        if isinstance(pool, AddressedPool):
            found = list(pool.holes)
            memory[number, columns.ADDRESSED], memory[number, columns.HOLES] = 1, len(found)
            holes[number, : len(found)] = _table(found, 2)
            for block, start in pool.addresses.items():
                addresses[number, block] = start
        memory[number, columns.LOGGED] = at + len(each.times)
        at += len(each.times) + int(changes[number])
    log = np.zeros((at, 2), dtype=np.int64)
    for number, each in enumerate(memories.all):
        end = int(memory[number, columns.LOGGED])
        log[end - len(each.times) : end] = _table(list(zip(each.times, each.changes, strict=True)), 2)
    return memory, addresses, holes, log
