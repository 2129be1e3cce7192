"""Swap planning over slots: its times are the machine's, its classes limit the memory, its victims are Belady's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.planning.listing import BY_PRIORITY, FRUGAL, NEWEST
from simgpu.planning.slot_planner import Planned, SlotPlanner
from simgpu.planning.slots import (
    AFTER,
    BEGUN_AT,
    BIRTH,
    COPY_IN,
    COPY_OUT,
    DROP,
    KIND,
    LACKING,
    MOST_SHARE,
    Members,
)
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.swapadvisor.program import program_of
from simgpu.program.instructions import Program
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate
from simgpu.simulation.tasks import task_graph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.planning.test_wide_bound import chains
from tests.semantics.hand_made import block, graph, held, kernel, node
from tests.semantics.random_traces import traces
from tests.semantics.random_training import trainings

some = settings(deadline=None, suppress_health_check=list(HealthCheck))


def node_of(alignment: int = 1) -> NodeSpec:
    """7 bytes per nanosecond out, 3 in."""
    gpu = GpuSpec("gpu", 10**6, alignment=alignment)
    return NodeSpec("bench", gpu, LinkSpec("link", 7 * 10**9, 3 * 10**9, latency_ns=1))


@dataclass(frozen=True)
class Fixed(Policy):
    """A policy that returns a given program."""

    name = "fixed"
    summary = source = "for tests"

    program: Program

    def plan(self, context: PlanContext) -> Program:
        return self.program


@st.composite
def drawn_members(draw: st.DrawFn, planner: SlotPlanner) -> tuple[tuple[int, ...], ...]:
    """Any order and any allocation."""
    count, sizes = len(planner.graph.kernels), len(planner.sizes)
    priorities = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    order = planner.listed(BY_PRIORITY, np.array(priorities, dtype=np.int64))
    tops = draw(st.lists(st.integers(0, 1), min_size=sizes, max_size=sizes))
    shares = draw(st.lists(st.integers(1, MOST_SHARE), min_size=sizes, max_size=sizes))
    return tuple(order.tolist()), tuple(tops), tuple(shares)


@some
@given(
    st.one_of(chains(), traces(max_kernels=14), trainings(max_layers=6)),
    st.floats(0.3, 1.1),
    st.sampled_from([1, 8]),
    st.data(),
)
def test_planned_time_is_the_machine_s(trace: Trace, share: float, alignment: int, data: st.DataObject) -> None:
    machine = node_of(alignment)
    tasks = task_graph(trace, machine)
    most = sum(tasks.sizes) + alignment * len(tasks.sizes)
    planner = SlotPlanner(tasks, machine, max(int(most * share), 1))
    assert planner.why_not is None
    member = data.draw(drawn_members(planner))
    planned = planner.planned(*member)
    assume(planned is not None)
    assert planned is not None
    program = program_of(planner, member[0], planned)
    verify(program, tasks, capacity=planner.budget, alignment=alignment, node=machine)
    result = simulate(trace, machine, Fixed(program), budget=planner.budget)
    assert result.iteration_ns == planned.time_ns
    slots = sum(size * count for size, count in planned.slots)
    assert result.metrics.device_peak_bytes <= slots <= planner.budget


@some
@given(st.one_of(chains(), traces(max_kernels=14), trainings(max_layers=6)), st.floats(0.3, 1.0), st.data())
def test_slots_limit_each_class_and_what_is_needed_last_leaves(trace: Trace, share: float, data: st.DataObject) -> None:
    """Follows the decisions with sets of blocks; next uses are looked up in the order itself."""
    machine = node_of()
    tasks = task_graph(trace, machine)
    planner = SlotPlanner(tasks, machine, max(int(sum(tasks.sizes) * share), 1))
    order, tops, shares = data.draw(drawn_members(planner))
    planned = planner.planned(order, tops, shares)
    assume(planned is not None)
    assert planned is not None
    slots = dict(planned.slots)
    bounds = [size for size, top in zip(planner.sizes, tops, strict=True) if top or size == planner.sizes[-1]]
    class_of = {b: min(bound for bound in bounds if bound >= size) for b, size in enumerate(tasks.sizes) if size}
    used = [planner.used[k] for k in order]
    end = len(order)

    def next_use(b: int, at: int) -> int:
        later = [place for place in range(at, end) if b in used[place]]
        return later[0] if later else end

    here = {b for b, birth in enumerate(tasks.births) if birth == BEFORE and b in class_of and b not in planned.away}
    records = planned.records.tolist()
    for at in range(end + 1):
        assert all(count <= slots[size] for size, count in Counter(class_of[b] for b in here).items())
        while records and records[0][2] == at:
            kind, b, *_ = records.pop(0)
            if kind in (COPY_OUT, DROP):
                assert b in here
                same = [other for other in here if class_of[other] == class_of[b]]
                assert len(same) == slots[class_of[b]] or at == end
                others = [other for other in same if at == end or other not in used[at]]
                assert b in others
                assert at == end or next_use(b, at) == max(next_use(other, at) for other in others)
                here.remove(b)
            else:
                assert b not in here and kind in (COPY_IN, BIRTH)
                here.add(b)
                assert sum(class_of[other] == class_of[b] for other in here) <= slots[class_of[b]]
        if at < end:
            assert {b for b in used[at] if b in class_of} <= here
            here -= {b for b in used[at] if next_use(b, at + 1) == end and not planner.stays[b]}
    assert not records


def planned_of(tasks: TaskGraph, budget: int) -> Planned:
    """The plan of the recorded order with a class for each size, at a byte per nanosecond, run on the machine."""
    planner = SlotPlanner(tasks, node(), budget)
    sizes, order = len(planner.sizes), tuple(range(len(tasks.kernels)))
    planned = planner.planned(order, (1,) * sizes, (1,) * sizes)
    assert planned is not None
    result = simulate(tasks.trace, node(), Fixed(program_of(planner, order, planned)), budget=budget)
    assert result.iteration_ns == planned.time_ns
    return planned


def decisions(tasks: TaskGraph, planned: Planned) -> list[tuple[int, str]]:
    return [(kind, tasks.blocks[b].id) for kind, b, *_ in planned.records.tolist()]


def test_a_block_leaves_right_after_its_last_use_and_returns_to_the_first_free_slot() -> None:
    """a is needed last. It leaves from 50 on, when A has ended; C waits until 150. D ends at 250 and frees two slots;
    a comes back until 350, and E ends at 400."""
    tasks = graph(
        [
            kernel("A", 50, "", "a"),
            kernel("B", 50, "", "b"),
            kernel("C", 50, "", "c"),
            kernel("D", 50, "b c"),
            kernel("E", 50, "a"),
        ],
        [block(name, 100) for name in "abc"],
    )
    planned = planned_of(tasks, 299)
    assert (planned.time_ns, planned.slots) == (400, ((100, 2),))
    assert decisions(tasks, planned) == [(BIRTH, "a"), (BIRTH, "b"), (COPY_OUT, "a"), (BIRTH, "c"), (COPY_IN, "a")]


def test_weights_that_exceed_the_memory_begin_on_the_host() -> None:
    """v begins on the host. w leaves from 50 to 150, v comes back until 250, B ends at 300. v has not changed, so w
    takes its slot at once, until 400."""
    tasks = graph([kernel("A", 50, "w"), kernel("B", 50, "v")], [held("w", 100), held("v", 100)])
    planned = planned_of(tasks, 199)
    assert planned.away == (tasks.block("v"),)
    assert planned.time_ns == 400
    assert decisions(tasks, planned) == [(COPY_OUT, "w"), (COPY_IN, "v"), (DROP, "v"), (COPY_IN, "w")]


def test_a_copy_takes_the_first_gap_of_its_engine() -> None:
    """One slot of 100 bytes, one of 40. a leaves until 150, then s until 190. D ends at 250, and s may come back; E
    ends at 300, and a may. The copy of a is decided first, but that of s fits before it, from 250 to 290. F ends at
    450."""
    tasks = graph(
        [
            kernel("A", 50, "", "a"),
            kernel("B", 50, "", "s"),
            kernel("C", 50, "", "b"),
            kernel("D", 50, "", "t"),
            kernel("E", 50, "b"),
            kernel("F", 50, "a s"),
        ],
        [block("a", 100), block("s", 40), block("b", 100), block("t", 40)],
    )
    planned = planned_of(tasks, 179)
    assert planned.slots == ((100, 1), (40, 1))
    assert planned.time_ns == 450
    copied = [row[BEGUN_AT] for row in planned.records.tolist() if row[KIND] == COPY_IN]
    assert copied == [300, 250]


def test_a_block_takes_the_slot_that_became_free_last_if_one_is_free_in_time() -> None:
    """Three slots. m leaves until 150, P ends at 200. p dies then, q at 250, r at 300. n takes the slot of r at once,
    and m that of p, from 200 to 300, so G does not wait."""
    tasks = graph(
        [
            kernel("M", 50, "", "m"),
            kernel("P", 50, "", "p q r"),
            kernel("Q", 50, "q"),
            kernel("R", 50, "r"),
            kernel("N", 50, "", "n"),
            kernel("G", 50, "m n"),
        ],
        [block(name, 100) for name in "mpqrn"],
    )
    planned = planned_of(tasks, 399)
    (back,) = [row for row in planned.records.tolist() if row[KIND] == COPY_IN]
    assert planned.slots == ((100, 3),)
    assert (back[AFTER], back[BEGUN_AT]) == (2, 200)
    assert planned.time_ns == 400


def test_an_iteration_ends_when_what_has_changed_is_back_on_the_host() -> None:
    """The host provides r at the begin, so v begins on the host. It comes back from 50 to 150, and leaves at 200."""
    tasks = graph([kernel("A", 50, "r"), kernel("B", 50, "v", "v")], [held("r", 100, release="A"), held("v", 100)])
    planned = planned_of(tasks, 199)
    assert planned.away == (tasks.block("v"),)
    assert decisions(tasks, planned) == [(COPY_IN, "v"), (COPY_OUT, "v")]
    assert planned.time_ns == 300


def test_members_without_enough_slots_are_ranked_by_what_they_lack() -> None:
    tasks = graph([kernel("A", 50, "", "a b")], [block("a", 100), block("b", 60)])
    planner = SlotPlanner(tasks, node(), 150)
    rows = np.array([[1, 1], [0, 1]])
    members = Members(np.zeros((2, 1), np.int64), rows, np.ones((2, 2), np.int64))
    assert (planner.times(members) - LACKING).tolist() == [10, 50]


@pytest.mark.slow
def test_compiled_functions_plan_as_plain_python_does() -> None:
    trace = load_trace("resnet20-cifar-cpu")
    machine = load_node("laptop-2gb")
    tasks = task_graph(trace, machine)
    plain, compiled = (SlotPlanner(tasks, machine, 25 * 2**20, work) for work in (0, 10**9))
    recorded = np.arange(len(tasks.kernels))
    for rule in (BY_PRIORITY, FRUGAL, NEWEST):
        priorities = recorded * 7 % 11
        order = plain.listed(rule, priorities)
        assert order.tolist() == compiled.listed(rule, priorities).tolist()
        member = tuple(order.tolist()), (1,) * len(plain.sizes), (3,) * len(plain.sizes)
        one, two = plain.planned(*member), compiled.planned(*member)
        assert one is not None and two is not None
        assert (one.time_ns, one.slots, one.away) == (two.time_ns, two.slots, two.away)
        assert one.records.tolist() == two.records.tolist()
