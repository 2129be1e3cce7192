"""Passive mode: blocks are evicted only when memory is short, least recently used first, and fetched when used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.capuchin.passive import Use, demand, passive_program, passive_run
from simgpu.program.instructions import COMPUTE, Copy, Launch, Program
from simgpu.program.verify import verify
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from tests.semantics.hand_made import block, graph, held, kernel, node, run, times, trace
from tests.semantics.random_traces import nodes, traces

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)

#: Four layers; at the end of forward x1 (persistent) to x4 are resident, 850 bytes; F3 alone needs 650.
CHAIN = chain([5, 7, 9, 4], [10, 14, 18, 6], [100, 200, 300, 250])


@dataclass(frozen=True)
class Fixed(Policy):
    """Runs a program that is already written."""

    name = "fixed"
    summary = source = "for trial runs"

    program: Program

    def plan(self, context: PlanContext) -> Program:
        return self.program


def context_of(trace: Trace, where: NodeSpec, budget: int) -> PlanContext:
    def trial(program: Program) -> Result:
        return simulate(trace, where, Fixed(program), budget=budget)

    return PlanContext(TaskGraph.of(trace), where, budget, trial, np.random.default_rng(0))


def copies(program: Program, tasks: TaskGraph) -> list[str]:
    """Copies out, then copies in, each in stream order; all of them are synchronous."""
    return [
        f"{'out' if step.src == 'device' else 'in'}:{tasks.blocks[step.block].id}"
        for part in program.segments
        for code in part.streams.values()
        for step in code
        if isinstance(step, Copy)
    ]


def test_ample_memory_causes_no_copies():
    tasks = TaskGraph.of(CHAIN)
    program = passive_program(tasks, 850)
    assert list(program.segments[0].streams) == [COMPUTE]
    assert copies(passive_program(tasks, 849), tasks) == ["out:x2", "in:x2"]


def test_compute_waits_for_every_copy():
    """x2 is offloaded before F2 can write x3 and fetched before B2. At 1 GB/s a byte takes a nanosecond."""
    tasks = TaskGraph.of(CHAIN)
    result = run(passive_program(tasks, 650), tasks, node(650))
    assert times(result) == {
        "F1": (0, 5),
        "F2": (5, 12),
        "out:x2": (12, 212),  # before x4's 250 bytes are taken for F3
        "F3": (212, 221),
        "F4": (221, 225),
        "B4": (225, 231),
        "B3": (231, 249),
        "in:x2": (249, 449),
        "B2": (449, 463),
        "B1": (463, 473),
    }


def test_the_least_recently_accessed_block_is_evicted_first():
    """a was written first but read last; b is the least recently used, then c."""
    kernels = [
        kernel("make", writes="a b c"),
        kernel("read-c", reads="c"),
        kernel("read-a", reads="a"),
        kernel("need-room", writes="d"),
        *(kernel(f"use-{name}", reads=name) for name in "abcd"),
    ]
    blocks = [block("a", 10), block("b", 10), block("c", 10), block("d", 15)]
    tasks = graph(kernels, blocks)
    # 30 bytes are held when d requests 15: a budget of 44 evicts one block, 34 evicts two.
    assert [copy for copy in copies(passive_program(tasks, 44), tasks) if "out" in copy] == ["out:b"]
    assert [copy for copy in copies(passive_program(tasks, 34), tasks) if "out" in copy] == ["out:b", "out:c"]


def test_reads_count_as_earlier_accesses_than_writes():
    kernels = [kernel("make", writes="a"), kernel("step", reads="a", writes="b"), kernel("room", writes="c")]
    tasks = graph([*kernels, kernel("use", reads="a b")], [block(name, 10) for name in "abc"])
    assert copies(passive_program(tasks, 20), tasks) == ["out:a", "in:a"]


def test_a_block_may_be_evicted_several_times():
    kernels = [kernel("make", writes="a b"), kernel("1", reads="a"), kernel("2", reads="b"), kernel("3", reads="a")]
    big = [kernel(f"big-{n}", writes=f"w{n}") for n in range(3)]
    tasks = graph(
        [kernels[0], big[0], kernels[1], big[1], kernels[2], big[2], kernels[3], kernel("4", reads="b")],
        [block("a", 10), block("b", 10), *(block(f"w{n}", 15) for n in range(3))],
    )
    message = copies(passive_program(tasks, 25), tasks)
    assert [copy for copy in message if "out" in copy] == ["out:a", "out:b", "out:a"]
    run(passive_program(tasks, 25), tasks, node(25), iterations=2)


def test_persistent_blocks_and_blocks_without_later_use_are_not_evicted():
    kernels = [kernel("a", reads="w", writes="x"), kernel("b", writes="y"), kernel("c", reads="w x y")]
    tasks = graph(kernels, [held("w", 50), block("x", 10), block("y", 10)])
    assert copies(passive_program(tasks, 60), tasks) == ["out:x", "in:x"]
    with pytest.raises(OutOfMemoryError) as caught:
        run(passive_program(tasks, 69), tasks, node(69))
    assert caught.value.kernel == "c"


def test_a_kernel_that_cannot_fit_ends_the_run_out_of_memory():
    tasks = TaskGraph.of(CHAIN)
    with pytest.raises(OutOfMemoryError, match="kernel F3"):
        run(passive_program(tasks, 649), tasks, node(649))


def test_padding_counts_towards_memory_in_use():
    kernels = [kernel("a", writes="x"), kernel("b", writes="y"), kernel("c", reads="x"), kernel("d", reads="y")]
    tasks = graph(kernels, [block("x", 1), block("y", 1)])
    assert copies(passive_program(tasks, 512, 512), tasks) == ["out:x", "out:y", "in:x", "in:y"]
    assert copies(passive_program(tasks, 1024, 512), tasks) == []
    assert demand(tasks, 512) == (512, 1024, 1024, 512)


@many
@given(st.data())
def test_any_trace_at_any_budget_gives_a_legal_program_within_the_budget(data: st.DataObject):
    recorded, where = data.draw(traces()), data.draw(nodes())
    alignment = where.gpu.alignment
    tasks = TaskGraph.of(recorded)
    most = max(demand(tasks, alignment))
    budget = data.draw(st.integers(0, most + 1))
    program = passive_program(tasks, budget, alignment)
    verify(program, tasks)
    if budget >= most:
        assert not copies(program, tasks)
    try:
        result = simulate(recorded, where, Fixed(program), budget=budget)
    except OutOfMemoryError as error:
        assert error.space == "device"
        assert needs_of_one_kernel(tasks, alignment) > budget
        return
    curve = result.timeline.memory("device")
    assert max(curve.used, default=0) <= budget
    assert result.steady


def needs_of_one_kernel(tasks: TaskGraph, alignment: int) -> int:
    """The minimum device memory: persistent blocks, plus the blocks that a single kernel touches or initializes."""
    sizes = [aligned(size, alignment) for size in tasks.sizes]
    needs = 0
    for k in range(len(tasks.kernels)):
        there = {*tasks.reads[k], *tasks.writes[k], *(b for b, birth in enumerate(tasks.births) if birth == k)}
        for b, built in enumerate(tasks.blocks):
            birth, release = tasks.births[b], tasks.needed_releases[b]
            alive = birth is not None and birth <= k and (release is None or k <= max(release, 0))
            if alive and (built.persistent or tasks.next_use(b, k) is None):
                there.add(b)
        needs = max(needs, sum(sizes[b] for b in there))
    return needs


@many
@given(st.data())
def test_an_iteration_takes_its_compute_and_all_its_copies(data: st.DataObject):
    recorded, where = data.draw(traces()), data.draw(nodes())
    tasks, link = TaskGraph.of(recorded), where.link
    budget = data.draw(st.integers(needs_of_one_kernel(tasks, where.gpu.alignment), 10**5))
    program = passive_program(tasks, budget, where.gpu.alignment)
    result = simulate(recorded, where, Fixed(program), budget=budget)
    expected = recorded.compute_ns
    for part in program.segments:
        for code in part.streams.values():
            for step in code:
                if isinstance(step, Copy):
                    rate = link.d2h_bandwidth if step.src == "device" else link.h2d_bandwidth
                    expected += copy_ns(tasks.copy_sizes[step.block], rate, link.latency_ns)
    assert result.iteration_ns == expected


@many
@given(st.data())
def test_evictions_and_fetches_match_a_list_of_accesses(data: st.DataObject):
    tasks = TaskGraph.of(data.draw(traces()))
    needs = needs_of_one_kernel(tasks, 1)
    budget = data.draw(st.integers(needs, max(needs, *demand(tasks))))
    assert copies(passive_program(tasks, budget), tasks) == by_the_list(tasks, budget)


def by_the_list(tasks: TaskGraph, budget: int) -> list[str]:
    """Copies out, then copies in, by a plain list of all accesses so far; the victim has the oldest last access."""
    list_of_accesses: list[int] = []
    on_device = {b for b, birth in enumerate(tasks.births) if birth == BEFORE}
    away: set[int] = set()
    message: dict[str, list[str]] = {"out": [], "in": []}
    for k in range(len(tasks.kernels)):
        touched = [*tasks.reads[k], *tasks.writes[k]]
        missing = {b for b in touched if b in away}
        born = {b for b, birth in enumerate(tasks.births) if birth == k}
        for wanted in (missing, born):
            while wanted and sum(tasks.sizes[b] for b in on_device | wanted) > budget:
                victims = [b for b in on_device if may_leave(tasks, b, k)]
                victim = min(victims, key=lambda b: len(list_of_accesses) - list_of_accesses[::-1].index(b))
                message["out"].append(tasks.blocks[victim].id)
                on_device.remove(victim)
                away.add(victim)
            on_device |= wanted
            away -= wanted
        message["in"] += [tasks.blocks[b].id for b in dict.fromkeys(touched) if b in missing]
        list_of_accesses += [*(b for b in tasks.writes[k] if b in born), *sorted(born - set(touched)), *touched]
        evicted = {b for b, last in enumerate(tasks.needed_releases) if last is not None and max(last, 0) <= k}
        on_device -= evicted
    return [f"{way}:{name}" for way, names in message.items() for name in names]


def may_leave(tasks: TaskGraph, b: int, k: int) -> bool:
    """Whether a block may be evicted: not used by this kernel, not persistent, not empty, and used later."""
    own = {*tasks.reads[k], *tasks.writes[k]}
    return b not in own and not tasks.blocks[b].persistent and tasks.sizes[b] > 0 and tasks.next_use(b, k) is not None


# --- what is measured -----------------------------------------------------------------------------------------


def test_measured_times_exclude_stalls():
    accesses = passive_run(context_of(CHAIN, node(), 650))
    assert accesses.starts_ns == (0, 5, 12, 21, 25, 31, 49, 63)
    assert accesses.ends_ns == (5, 12, 21, 25, 31, 49, 63, 73)
    assert accesses.uses(accesses.graph.block("x2")) == (Use(0, 0, 5), Use(1, 5, 12), Use(6, 49, 63))
    assert accesses.swapping_ns == 2 * 200
    assert accesses.demand == (300, 600, 850, 850, 850, 600, 300, 100)


def test_the_peak_lasts_from_its_first_kernel_to_its_last():
    peak = passive_run(context_of(CHAIN, node(), 650)).peak
    assert peak == (2, 4, 12, 31, 850)


def test_a_network_that_passive_mode_cannot_run_is_out_of_memory():
    with pytest.raises(OutOfMemoryError):
        passive_run(context_of(CHAIN, node(), 649))


def test_several_compute_streams_are_refused():
    two = trace([kernel("a", writes="x"), kernel("b", reads="x", stream=1)], [block("x", 10)])
    with pytest.raises(InputError, match="capuchin runs one layer at a time"):
        passive_run(context_of(two, node(), 100))


@pytest.mark.parametrize("name", ["resnet20-cifar-cpu", "vgg11-cifar-cpu"])
def test_recorded_networks_run_in_passive_mode(name: str):
    recorded = load_trace(name)
    tasks = TaskGraph.of(recorded)
    budget = max(demand(tasks)) * 4 // 5
    accesses = passive_run(context_of(recorded, node(10**12), budget))
    assert accesses.swapping_ns > 0
    assert accesses.ends_ns[-1] == recorded.compute_ns
    kernels = [step for step in passive_program(tasks, budget).segments[0].streams[COMPUTE] if isinstance(step, Launch)]
    assert len(kernels) == len(tasks.kernels)
