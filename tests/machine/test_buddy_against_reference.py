"""Kernels that share a link, compared with the reference machine on random programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.run import run_program
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.simulation.tasks import task_graph
from tests.compression.buddy.compressible import buddy_nodes, compressible
from tests.machine.buddy_machine import BuddyMachine
from tests.machine.test_against_reference import KIND
from tests.machine.test_buddy import shared
from tests.semantics.networks import exchanges, moved, networks, on_all, switched_nodes
from tests.semantics.random_traces import placements, traces

many = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))


def compare(program: Program, tasks: TaskGraph, on: NodeSpec, budget: int | None, *, forced: bool = False) -> None:
    ran = transformed(tasks, program.transforms)
    reference = BuddyMachine(program, ran, on, budget=budget, iterations=3)
    done = reference.run()
    assert not reference.wrong
    with pytest.MonkeyPatch.context() as patch:
        if forced:
            shared(patch)
        try:
            result = run_program(program, tasks, on, budget=budget, iterations=3)
        except OutOfMemoryError as error:
            assert not done
            assert error.at_ns == reference.now
            return
    assert done
    names = [block.id for block in ran.blocks], [each.id for each in ran.kernels]
    expected = sorted((s, k, names[k == "Launch"][n], a, b, i) for s, k, n, a, b, i in reference.works)
    outcome = sorted(
        (span.stream, KIND[span.kind], span.name, span.start_ns, span.end_ns, span.iteration)
        for span in result.timeline
        if span.kind in KIND
    )
    assert outcome == expected
    assert max(curve.used.max(initial=0) for curve in result.timeline.device_memories) == reference.peak


def is_half(on: NodeSpec) -> bool:
    """Whether a kernel's bytes in both directions share one capacity: the closed form rounds up once, flows twice."""
    own = None if on.gpu.buddy is None else on.gpu.buddy.link
    return (own or on.link).duplex is Duplex.HALF


@many
@given(st.data(), st.booleans(), st.booleans())
def test_every_event_happens_when_the_reference_model_predicts(data: st.DataObject, barrier: bool, tight: bool):
    on = data.draw(buddy_nodes())
    tasks = task_graph(data.draw(compressible(traces())), on)
    program = lower(tasks, data.draw(placements(tasks, layer_barrier=barrier)))
    verify(program, tasks)
    budget = None
    if tight:
        unit = on.gpu.alignment
        resident = sum(-(-tasks.sizes[b] // unit) * unit for b in program.resident)
        budget = resident + data.draw(st.integers(0, sum(tasks.sizes)))
    compare(program, tasks, on, budget, forced=is_half(on))


@many
@given(st.data(), st.integers(2, 3))
def test_several_compute_streams_match_the_reference_model(data: st.DataObject, streams: int):
    on = data.draw(buddy_nodes())
    tasks = task_graph(data.draw(compressible(traces(streams=streams))), on)
    compare(lower(tasks, Placement()), tasks, on, None, forced=is_half(on))


@pytest.mark.slow
@many
@given(st.data(), st.integers(2, 3), st.booleans())
def test_several_gpus_match_the_reference_model(data: st.DataObject, gpus: int, barrier: bool):
    buddy = data.draw(buddy_nodes()).gpu
    on = data.draw(switched_nodes(gpus))
    on = replace(on, gpu=replace(on.gpu, dram_bandwidth=buddy.dram_bandwidth, buddy=buddy.buddy))
    tasks = exchanging(task_graph(data.draw(compressible(networks())), on))
    one = lower(tasks, data.draw(moved(tasks, layer_barrier=barrier)))
    program = on_all(one, tasks, on, data.draw(exchanges(gpus)))
    verify(program, tasks)
    compare(program, tasks, on, None, forced=is_half(on))
