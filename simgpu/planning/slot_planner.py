"""The arrays of `simgpu.planning.slots` for a graph on a node, and the functions compiled or in plain Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from simgpu.compiling import compiled_together, is_cached
from simgpu.graph.reordered import must_follow
from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns, sending_rate
from simgpu.planning import listing, slots
from simgpu.planning.listing import ListTables
from simgpu.planning.options import Decisions
from simgpu.planning.slots import CLASS, HOME, LACKING, RECORDS, SLOTS, STARTS, STAYS, Members, SlotScratch, SlotTables
from simgpu.planning.tables import Ints, why_not

#: The most distinct sizes; of more, each is rounded up to five significant bits.
MOST_SIZES = 128
#: Planned kernels from which loading the compiled functions, or compiling them, takes less time than it saves.
_WORTH_LOADING, _WORTH_COMPILING = 10**4, 10**5
_OPTIONS = {"nogil": True, "_nrt": False}


@cache
def compiled_plan_all() -> Callable[[SlotTables, SlotScratch, Members, Ints], None]:
    """`slots.plan_all`, compiled at its first call."""
    compiled: Callable[[SlotTables, SlotScratch, Members, Ints], None] = compiled_together(
        "plan_all", (slots,), (sys.modules[__name__],), **_OPTIONS
    )
    return compiled


@cache
def compiled_list_order() -> Callable[..., None]:
    """`listing.list_order`, compiled at its first call."""
    compiled: Callable[..., None] = compiled_together("list_order", (listing,), (sys.modules[__name__],), **_OPTIONS)
    return compiled


@dataclass(frozen=True)
class Planned:
    """A member's plan. time_ns: the step time. records: the decisions, one a row (`simgpu.planning.slots`).

    slots: for each size class, its bytes and its number of slots, largest first. away: the persistent blocks whose home
    is the host.
    """

    time_ns: int
    records: Ints
    slots: tuple[tuple[int, int], ...]
    away: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SlotPlanner:
    """Plans swaps for orders and allocations of one graph on one node.

    Times are those of the machine, to the nanosecond, where `why_not` is None. work: how many kernels will be planned
    in all, which decides whether the functions are compiled.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 100]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> planner = SlotPlanner(graph, node, budget=700)
    >>> planner.sizes
    (100, 200)
    >>> planner.planned(tuple(range(6)), (1, 1), (1, 1)).slots
    ((200, 1), (100, 2))
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    work: int = 0

    @property
    def why_not(self) -> str | None:
        """Why times are not exact on this node, None where they are."""
        return why_not(self.graph, self.node, Decisions((), ()))

    @cached_property
    def _size_of(self) -> tuple[int, ...]:
        """By block, the bytes that it takes, padding counted; 0 for one that never exists."""
        graph, alignment = self.graph, self.node.gpu.alignment
        exact = [
            0 if birth is None else aligned(size, alignment)
            for birth, size in zip(graph.births, graph.sizes, strict=True)
        ]
        if len({*exact}) <= MOST_SIZES:
            return tuple(exact)
        return tuple(aligned(aligned(size, 1 << max(size.bit_length() - 5, 0)), alignment) for size in exact)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the blocks, ascending, bytes."""
        return tuple(sorted({size for size in self._size_of if size}))

    @cached_property
    def tables(self) -> SlotTables:
        """The arrays of this graph, node and budget."""
        graph, node = self.graph, self.node
        place = {size: number for number, size in enumerate(self.sizes)}
        kernels: list[tuple[int, int]] = []
        uses: list[tuple[int, int]] = []
        for k, used in enumerate(self.used):
            kernels.append((len(uses), graph.durations[k]))
            uses += [(b, int(b in graph.writes[k])) for b in used]
        kernels.append((len(uses), 0))
        kernel_bandwidth = node.gpu.cdma.kernel_bandwidth if node.gpu.cdma is not None else 0
        blocks = []
        for b, size in enumerate(self._size_of):
            copied, raw = graph.copy_sizes[b], graph.blocks[b].bytes
            rates = [
                sending_rate(node.gpu, kernel_bandwidth, copied, raw, rate)
                for rate in (node.link.d2h_bandwidth, node.link.h2d_bandwidth)
            ]
            out_ns, in_ns = (copy_ns(copied, rate, node.link.latency_ns) for rate in rates)
            starts, stays = graph.births[b] == BEFORE, graph.births[b] is not None and self.stays[b]
            blocks.append((place.get(size, -1), out_ns, in_ns, int(starts), int(stays)))
        limits = self.budget, int(node.gpu.copy_engines == 1)
        return SlotTables(_rows(kernels, 2), _rows(uses, 2), _rows(blocks, 5), _array(self.sizes), _array(limits))

    @property
    def stays(self) -> tuple[bool, ...]:
        """By block, whether it stays to the iteration's end."""
        return tuple(release is None for release in self.graph.needed_releases)

    @cached_property
    def used(self) -> tuple[tuple[int, ...], ...]:
        """The blocks that must be on the device while each kernel runs, in the order of the graph.

        A block that the host writes in mid-iteration is used by the kernel for which it does so. The first kernel uses
        what the host provides at the begin and no kernel uses.
        """
        graph = self.graph
        more: list[list[int]] = [[] for _ in graph.kernels]
        for b, birth in enumerate(graph.births):
            if birth is not None and birth >= 0 and b in graph.written_by_host:
                more[birth].append(b)
            elif birth == BEFORE and not graph.uses[b] and not self.stays[b]:
                more[0].append(b)
        return tuple(
            tuple(dict.fromkeys((*reads, *writes, *others)))
            for reads, writes, others in zip(graph.reads, graph.writes, more, strict=True)
        )

    def times(self, members: Members) -> Ints:
        """The step time of each member, or `LACKING` and the bytes that its slots lack."""
        results = np.zeros(len(members.orders), np.int64)
        self._plan(members, results)
        return results

    def planned(self, order: tuple[int, ...], tops: tuple[int, ...], shares: tuple[int, ...]) -> Planned | None:
        """The plan of one member, None where its slots need more than the budget."""
        time = int(self.times(Members(*(_array([each]) for each in (order, tops, shares))))[0])
        if time >= LACKING:
            return None
        scratch = self._scratch
        classes = scratch.classes.tolist()
        held = [(self.sizes[i], row[SLOTS]) for i, row in enumerate(classes) if row[CLASS] == i and row[SLOTS]]
        persistent = self.tables.blocks[:, [STARTS, STAYS]].all(axis=1)
        away = np.flatnonzero(persistent & (scratch.state[:, HOME] == 0)).tolist()
        return Planned(time, scratch.records[: scratch.now[RECORDS]].copy(), tuple(held[::-1]), tuple(away))

    def _plan(self, members: Members, results: Ints) -> None:
        if self._is_compiled:
            compiled_plan_all()(self.tables, self._scratch, members, results)
        else:
            arrays = (SlotTables(*map(_view, self.tables)), SlotScratch(*map(_view, self._scratch)))
            slots.plan_all(*arrays, Members(*map(_view, members)), _view(results))

    @cached_property
    def _is_compiled(self) -> bool:
        """Whether so much is planned that compiled functions are faster."""
        worth = _WORTH_LOADING if is_cached(slots.__name__, "plan_all") else _WORTH_COMPILING
        return self.work > worth and find_spec("numba") is not None

    @cached_property
    def _scratch(self) -> SlotScratch:
        t = self.tables
        most = 2 * (len(t.uses) + 2 * len(t.blocks))
        return SlotScratch(
            state=np.zeros((len(t.blocks), 10), np.int64),
            classes=np.zeros((len(t.sizes), 6), np.int64),
            slots=np.zeros((len(t.blocks), 3), np.int64),
            nexts=np.zeros(len(t.uses), np.int64),
            records=np.zeros((most, 6), np.int64),
            now=np.zeros(4, np.int64),
            busy=np.zeros((2, most, 2), np.int64),
            stretches=np.zeros(2, np.int64),
        )

    # --- orders -----------------------------------------------------------------------------------------------

    @cached_property
    def follows(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, those that it must follow."""
        return must_follow(self.graph)

    @cached_property
    def _list_tables(self) -> ListTables:
        graph = self.graph
        followers: list[list[int]] = [[] for _ in graph.kernels]
        for k, before in enumerate(self.follows):
            for other in before:
                followers[other].append(k)
        kernels: list[tuple[int, int, int]] = []
        lists: list[int] = []
        used: list[int] = []
        for k, each in enumerate(self.used):
            kernels.append((len(lists), len(used), len(self.follows[k])))
            lists += followers[k]
            used += each
        kernels.append((len(lists), len(used), 0))
        users = np.bincount(np.array(used, dtype=np.int64), minlength=len(graph.sizes)).tolist()
        passing = [
            0 if birth in (None, BEFORE) or stays else size
            for birth, stays, size in zip(graph.births, self.stays, self._size_of, strict=True)
        ]
        blocks = list(zip(passing, users, strict=True))
        return ListTables(_rows(kernels, 3), _array(lists), _array(used), _rows(blocks, 2))

    def listed(self, rule: int, priorities: Ints) -> Ints:
        """An order by list scheduling (`simgpu.planning.listing`). priorities: of the kernels, lowest first."""
        count = len(self.graph.kernels)
        order, ready = np.zeros(count, np.int64), np.zeros(count, np.int64)
        state = np.zeros((max(count, len(self.graph.sizes)), 2), np.int64)
        if self._is_compiled:
            compiled_list_order()(self._list_tables, state, ready, rule, priorities, order)
        else:
            of_all, first, given, out = map(_view, (state, ready, priorities, order))
            listing.list_order(ListTables(*map(_view, self._list_tables)), of_all, first, rule, given, out)
        return order


def _array(rows: Any) -> Ints:
    return np.array(rows, dtype=np.int64)


def _rows(rows: Any, columns: int) -> Ints:
    return _array(rows).reshape(-1, columns)


def _view(array: Any) -> Any:
    """Elements of a memoryview are Python's integers, which are faster one by one."""
    return memoryview(array)
