"""One host thread can issue a program in the order in which the simulated machine came to its instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import POOLS, run_program
from simgpu.memory.pool import aligned
from simgpu.policies.registry import make_policy
from simgpu.program.instructions import DEVICE, HOST, Acquire, Await, Launch, Program, Release, Segment, Signal
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import StreamId
from simgpu.trace.chain import chain
from simgpu.validation.replay.order import WORK, Step, issue_order
from tests.semantics.hand_made import node as example_node
from tests.semantics.networks import moved, networks
from tests.semantics.random_traces import nodes, placements, traces

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25)
pools = st.sampled_from(["counting", "addressed"])


def ordered(
    program: Program, graph: TaskGraph, node: NodeSpec, budget: int | None, pool: str
) -> tuple[list[Step], Timeline]:
    timeline = run_program(program, graph, node, budget=budget, pool=pool).timeline
    space = POOLS[pool](budget, node.gpu.alignment)
    return list(issue_order(program, graph, timeline, space, node.host.pinned_memory)), timeline


def check(program: Program, graph: TaskGraph, node: NodeSpec, budget: int | None, pool: str) -> None:
    """Copies that queue for one engine take time here: a timeline does not show the order of those that take none."""
    if node.gpu.copy_engines == 1:
        node = replace(node, link=replace(node.link, latency_ns=max(node.link.latency_ns, 1)))
    try:
        steps, timeline = ordered(program, graph, node, budget, pool)
    except OutOfMemoryError:
        assume(False)
    issues_each_stream_as_it_is_written(steps, program, len(timeline.iteration_ends_ns))
    waits_only_for_what_was_signalled(steps)
    uses_memory_as_the_machine_did(steps, program, graph, timeline, node.gpu.alignment)


def issues_each_stream_as_it_is_written(steps: list[Step], program: Program, iterations: int) -> None:
    for number, stream in enumerate(program.streams):
        once = [
            instruction
            for segment in program.segments
            for _ in range(segment.repeat)
            for instruction in segment.streams.get(stream, ())
        ]
        issued = [(step.iteration, step.instruction) for step in steps if step.stream == number]
        assert issued == [(iteration, instruction) for iteration in range(iterations) for instruction in once]


def waits_only_for_what_was_signalled(steps: list[Step]) -> None:
    happened: Counter[int] = Counter()
    for step in steps:
        if isinstance(step.instruction, Signal):
            happened[step.instruction.event] += 1
            assert step.nth == happened[step.instruction.event]
        elif isinstance(step.instruction, Await):
            assert step.nth <= happened[step.instruction.event]


def uses_memory_as_the_machine_did(
    steps: list[Step], program: Program, graph: TaskGraph, timeline: Timeline, alignment: int
) -> None:
    """Each request and each release in the very order in which the simulated memory saw them."""
    for space, sizes, unit, curve in (
        (DEVICE, graph.sizes, alignment, timeline.memory("device")),
        (HOST, graph.copy_sizes, 1, timeline.memory("host")),
    ):

        def bytes_of(blocks: tuple[int, ...], sizes: tuple[int, ...] = sizes, unit: int = unit) -> int:
            return sum(aligned(sizes[b], unit) for b in blocks)

        used = [bytes_of(each.blocks) for each in program.initial_contents if each.memory == space]
        for step in steps:
            match step.instruction:
                case Acquire(blocks, where) if where == space:
                    used.append(used[-1] + bytes_of(blocks) if used else bytes_of(blocks))
                case Release(blocks, where) if where == space:
                    used.append(used[-1] - bytes_of(blocks))
        assert used == curve.used.tolist()


@pytest.mark.slow
@many
@given(st.data(), pools, st.booleans())
def test_any_placement_is_issued_in_the_machines_order(data: st.DataObject, pool: str, barrier: bool):
    trace, node = data.draw(traces()), data.draw(nodes())
    graph = TaskGraph.of(trace)
    program = lower(graph, data.draw(placements(graph, layer_barrier=barrier)))
    most = sum(aligned(block.bytes, node.gpu.alignment) for block in trace.blocks)
    check(program, graph, node, data.draw(st.integers(0, most)), pool)


@many
@given(st.data(), st.integers(1, 4))
def test_sub_batches_repeat(data: st.DataObject, sub_batch: int):
    full = data.draw(networks())
    full = replace(full, info=replace(full.info, batch=data.draw(st.integers(sub_batch, 9))))
    graph = Split(sub_batch).apply(TaskGraph.of(full))
    program = lower(graph, data.draw(moved(graph, layer_barrier=data.draw(st.booleans()))))
    check(program, graph, data.draw(nodes()), None, "counting")


@many
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 900)), min_size=1, max_size=8),
    st.sampled_from(["vdnn", "none", "superneurons"]),
    st.integers(0, 1000),
)
def test_policies_on_chains_within_a_budget(layers: list[tuple[int, int, int]], policy: str, spare: int):
    forward, backward, sizes = zip(*layers, strict=True)
    trace, node = chain(forward, backward, sizes), example_node()
    node = replace(node, gpu=replace(node.gpu, memory=2 * max(sizes) + spare))
    try:
        result = simulate(trace, node, make_policy(policy))
    except OutOfMemoryError:
        assume(False)
    program = replace(result.program, transforms=())
    check(program, result.graph, node, result.budget, result.pool)


def test_who_waits_in_line_is_issued_behind_the_release_that_it_needs():
    """x3 fits when x1 has been copied out, long after the kernel that makes it could have begun."""
    graph = TaskGraph.of(chain([10, 10, 10], [10, 10, 10], [400, 400, 400]))
    x1 = graph.block("x1")
    program = lower(graph, Placement((Swap(x1, after=0, before=5, fetch_with=5),)))
    steps, timeline = ordered(program, graph, example_node(), 800, "counting")
    assert any(span.label == "stall_device_memory" for span in timeline)
    first = [step.instruction for step in steps if step.iteration == 0]
    released = first.index(Release((x1,)))
    x3 = graph.block("x3")
    requested = next(place for place, each in enumerate(first) if isinstance(each, Acquire) and x3 in each.blocks)
    assert released < requested
    assert not any(isinstance(each, Acquire) for each in first[released:requested])


def test_zero_time_work_ends_after_other_work_of_its_instant_starts():
    """Two kernels of 0 ns stand before one request, one before the other, which is therefore the first of the two."""
    graph = TaskGraph.of(chain([0, 0], [0, 0], [10, 20]))
    x1, x2 = graph.block("x1"), graph.block("x2")
    program = Program(
        (
            Segment(
                {
                    StreamId(0, "compute"): (Launch(0), Launch(1), Acquire((x1,)), Release((x1,))),
                    StreamId(0, "compute", 1): (Launch(2), Acquire((x2,)), Launch(3), Release((x2,))),
                }
            ),
        )
    )
    steps, timeline = ordered(program, graph, example_node(), 1000, "counting")
    uses_memory_as_the_machine_did(steps, program, graph, timeline, 1)
    requested = [step.instruction.blocks for step in steps if isinstance(step.instruction, Acquire)]
    assert requested[:2] == [(x2,), (x1,)]


def test_a_timeline_of_aninside_budget_raises_a_program_error():
    graph = TaskGraph.of(chain([5, 5], [7, 7], [100, 100]))
    program, node = lower(graph, Placement()), example_node()
    timeline = run_program(program, graph, node, budget=1000).timeline
    with pytest.raises(ProgramError, match=r"deadlock: no instruction can be issued.*compute at Acquire"):
        list(issue_order(program, graph, timeline, POOLS["counting"](150)))


def test_all_work_is_issued():
    graph = TaskGraph.of(chain([5], [7], [100]))
    steps, timeline = ordered(lower(graph, Placement()), graph, example_node(), 1000, "counting")
    assert sum(isinstance(step.instruction, WORK) for step in steps) == 2 * len(timeline.iteration_ends_ns)
