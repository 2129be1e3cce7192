"""What is issued says by events alone what must happen before what, and never takes more memory than there is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import POOLS, run_program
from simgpu.memory.pool import aligned
from simgpu.policies.registry import make_policy
from simgpu.program.instructions import Acquire, Copy, Decode, Encode, Launch, Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.validation.measured import MeasuredKind
from simgpu.validation.replay.issue import Issued, Limits, issue
from simgpu.validation.replay.order import WORK, Step, issue_order
from tests.semantics.hand_made import node as example_node
from tests.semantics.random_traces import nodes, placements, traces
from tests.validation.lazy_device import LazyDevice

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25)
ITERATIONS = 3


def steps_of(program: Program, graph: TaskGraph, node: NodeSpec, budget: int | None) -> list[Step]:
    timeline = run_program(program, graph, node, budget=budget, iterations=ITERATIONS).timeline
    pool = POOLS["counting"](budget, node.gpu.alignment)
    return list(issue_order(program, graph, timeline, pool, node.host.pinned_memory))


def issued(
    program: Program, graph: TaskGraph, node: NodeSpec, budget: int, seed: int
) -> tuple[list[Step], LazyDevice, Issued]:
    """The program on a device that has not a byte more than the budget."""
    try:
        steps = steps_of(program, graph, node, budget)
    except OutOfMemoryError:
        assume(False)
    device = LazyDevice(Random(seed), limit=budget)
    limits = Limits(budget, node.host.pinned_memory, node.gpu.alignment)
    return steps, device, issue(steps, program, graph, device, limits, ITERATIONS)  # type: ignore[arg-type]


def works(steps: list[Step], program: Program, device: LazyDevice) -> list[tuple[Step, int, tuple[Any, ...]]]:
    """Each work in the order issued, with when it was done and what the device did."""
    requested: defaultdict[str, int] = defaultdict(int)
    done = {(role, number): (when, (kind, *on)) for when, (role, number, kind, on) in enumerate(device.done)}
    result = []
    for step in steps:
        if isinstance(step.instruction, WORK):
            role = str(program.streams[step.stream])
            result.append((step, *done[role, requested[role]]))
            requested[role] += 1
    assert len(result) == len(device.done)
    return result


def touched(step: Step, graph: TaskGraph) -> tuple[set[Any], set[Any]]:
    """What a work reads and writes, by place and block."""
    match step.instruction:
        case Launch(k, again, makes):
            writes = makes if again and makes else graph.writes[k]
            return {("device", b) for b in graph.reads[k]}, {("device", b) for b in writes}
        case Copy(b, src, dst):
            return {(src, b)}, {(dst, step.instruction.copied)}
        case Encode(b, into, memory):
            return {(memory, b)}, {(memory, into)}
        case Decode(b, source, memory):
            return {(memory, source)}, {(memory, b)}
    raise AssertionError(step)


def check_conflicts(done: list[tuple[Step, int, tuple[Any, ...]]], graph: TaskGraph) -> None:
    """Works of which one writes what the other touches were done in the order in which the machine did them."""
    places = [touched(step, graph) for step, *_ in done]
    for later, (reads, writes) in enumerate(places):
        for earlier in range(later):
            first_reads, first_writes = places[earlier]
            if first_writes & (reads | writes) or first_reads & writes:
                assert done[earlier][1] < done[later][1], f"{done[earlier][0]} after {done[later][0]}"


def check_copies(done: list[tuple[Step, int, tuple[Any, ...]]]) -> None:
    """A block goes out of the buffer it came into, comes back from where it went, and no buffer is two blocks' at once.

    Copies that use one buffer for different blocks were done in the order in which they were issued.
    """
    out_of: dict[int, int] = {}
    users: defaultdict[int, list[int]] = defaultdict(list)
    for step, when, (kind, *what) in done:
        assert (kind == "copy") == isinstance(step.instruction, Copy)
        match step.instruction:
            case Copy(_, "device"):
                target, source = what
                out_of[step.instruction.copied] = target
            case Copy(b):
                target, source = what
                assert source == out_of.get(b, source)
            case _:
                continue
        users[target].append(when)
        users[source].append(when)
    assert all(one < other for times in users.values() for one, other in pairwise(times))


def check_outcome(program: Program, graph: TaskGraph, node: NodeSpec, budget: int, result: Issued) -> None:
    timeline = run_program(program, graph, node, budget=budget, iterations=ITERATIONS).timeline
    last = [span for span in timeline if span.iteration == ITERATIONS - 1 and not span.kind.is_stall]
    for stream in {span.stream for span in last}:
        simulated = [(span.name, span.bytes) for span in last if span.stream == stream]
        real = [(span.op or span.name, span.bytes) for span in result.spans if span.stream == stream]
        assert real == simulated
    copied = {kind: sum(span.bytes for span in last if span.label == kind) for kind in ("copy_d2h", "copy_h2d")}
    assert (result.d2h_bytes, result.h2d_bytes) == (copied["copy_d2h"], copied["copy_h2d"])
    assert result.peak_bytes <= result.allocated_bytes <= budget
    assert len(result.iteration_ends_ns) == ITERATIONS


@pytest.mark.slow
@many
@given(st.data(), st.integers(0, 2**32), st.booleans())
def test_any_placement_however_the_device_takes_its_time(data: st.DataObject, seed: int, barrier: bool):
    trace, node = data.draw(traces()), data.draw(nodes())
    node = replace(node, gpu=replace(node.gpu, alignment=1))
    graph = TaskGraph.of(trace)
    program = lower(graph, data.draw(placements(graph, layer_barrier=barrier)))
    budget = data.draw(st.integers(0, sum(block.bytes for block in trace.blocks)))
    steps, device, result = issued(program, graph, node, budget, seed)
    done = works(steps, program, device)
    check_conflicts(done, graph)
    check_copies(done)
    check_outcome(program, graph, node, budget, result)


@many
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 900)), min_size=1, max_size=6),
    st.sampled_from(["vdnn", "none", "superneurons", "save_on_cpu", "async_offload"]),
    st.integers(0, 1000),
    st.integers(0, 2**32),
)
def test_policies_on_chains(layers: list[tuple[int, int, int]], policy: str, spare: int, seed: int):
    forward, backward, sizes = zip(*layers, strict=True)
    budget = 2 * max(sizes) + spare
    node = example_node(memory=budget)
    try:
        result = simulate(chain(forward, backward, sizes), node, make_policy(policy))
    except OutOfMemoryError:
        assume(False)
    program, graph = replace(result.program, transforms=()), result.graph
    steps, device, outcome = issued(program, graph, node, budget, seed)
    done = works(steps, program, device)
    check_conflicts(done, graph)
    check_copies(done)
    check_outcome(program, graph, node, budget, outcome)


@given(st.integers(0, 2**32))
def test_memory_that_a_stream_takes_is_free_on_the_device_by_then(seed: int):
    """No event orders compute after the offload of x1: only the host waits for it, before it allocates x3."""
    graph = TaskGraph.of(chain([10, 10, 10], [10, 10, 10], [400, 400, 400]))
    program = lower(graph, Placement((Swap(graph.block("x1"), after=0, before=5, fetch_with=5),)))
    _, _, result = issued(program, graph, example_node(), 800, seed)
    assert result.peak_bytes == 800


@given(st.integers(0, 2**32))
def test_the_host_never_allocates_more_than_the_limit_with_padding(seed: int):
    """Blocks of 300 B take 512 B each, as the allocator of the node would have it."""
    graph = TaskGraph.of(chain([10] * 4, [10] * 4, [300] * 4))
    node = example_node(alignment=512)
    result = simulate(graph.trace, node, "vdnn", budget=3 * 512)
    steps = steps_of(result.program, graph, node, 3 * 512)
    device = LazyDevice(Random(seed))
    outcome = issue(steps, result.program, graph, device, Limits(3 * 512, None, 512), ITERATIONS)  # type: ignore[arg-type]
    assert device.most <= 3 * 300
    assert outcome.peak_bytes % aligned(300, 512) == 0
    assert outcome.peak_bytes <= outcome.allocated_bytes <= 3 * 512


def test_memory_that_is_never_released_raises_an_error():
    graph = TaskGraph.of(chain([5, 5], [7, 7], [100, 100]))
    program, node = lower(graph, Placement()), example_node()
    steps = steps_of(program, graph, node, 1000)
    device = LazyDevice(Random(0))
    with pytest.raises(ProgramError, match="exceed the limit: 100 of 150 B are allocated, and no release"):
        issue(steps, program, graph, device, Limits(150, None, 1), ITERATIONS)  # type: ignore[arg-type]


def test_a_full_device_is_an_input_error():
    graph = TaskGraph.of(chain([5, 5], [7, 7], [100, 100]))
    program, node = lower(graph, Placement()), example_node()
    steps = steps_of(program, graph, node, 1000)
    device = LazyDevice(Random(0), limit=150)
    with pytest.raises(InputError, match="no memory for 100 bytes on a lazy device: the lazy device is full; stop"):
        issue(steps, program, graph, device, Limits(1000, None, 1), ITERATIONS)  # type: ignore[arg-type]


def test_an_unlimited_program_does_not_run_away_with_memory():
    """Nothing waits for the device, so the host could ask for all iterations at once."""
    graph = TaskGraph.of(chain([5, 5], [7, 7], [100, 100]))
    result = simulate(graph.trace, example_node(), "ideal")
    steps = steps_of(result.program, graph, example_node(), None)
    device = LazyDevice(Random(1), limit=200)
    outcome = issue(steps, result.program, graph, device, Limits(200, None, 1), ITERATIONS)  # type: ignore[arg-type]
    assert outcome.peak_bytes == 200
    assert sum(isinstance(step.instruction, Acquire) for step in steps) > ITERATIONS


def test_copied_bytes_are_counted_by_direction():
    graph = TaskGraph.of(chain([10] * 3, [10] * 3, [400] * 3))
    result = simulate(graph.trace, example_node(memory=1200), "vdnn")
    _, _, outcome = issued(result.program, graph, example_node(), 1200, seed=3)
    kinds = {span.stream: span.kind for span in outcome.spans}
    assert kinds == {"compute": MeasuredKind.KERNEL, "d2h": MeasuredKind.COPY_D2H, "h2d": MeasuredKind.COPY_H2D}
