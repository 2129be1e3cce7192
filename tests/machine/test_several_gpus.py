"""Several GPUs: copies that share a switch, and complete iterations compared with the reference machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, HostSpec, NodeSpec, SwitchSpec
from simgpu.machine.run import run_program
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Copy,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.verify import verify
from simgpu.timeline.streams import StreamId
from tests.machine.test_against_reference import compare
from tests.semantics.hand_made import GB, graph, held, kernel, node
from tests.semantics.networks import exchanges, moved, networks, on_all, several, sharing, switched_nodes

HOST = HOST


def copying(gpus: int, size: int = 100) -> tuple[Program, TaskGraph]:
    """Every GPU offloads its own block from the beginning."""
    names = [f"x{gpu}" for gpu in range(gpus)]
    tasks = graph([kernel(f"k{name}", 1, name) for name in names], [held(name, size) for name in names])
    streams: dict[StreamId, tuple[Instruction, ...]] = {}
    for gpu in range(gpus):
        streams[StreamId(gpu, "compute")] = (Launch(gpu),)
        streams[StreamId(gpu, "d2h")] = (Acquire((gpu,), HOST), Copy(gpu, DEVICE, HOST), Release((gpu,), HOST))
    others = tuple(InitialContents(DEVICE, (gpu,), gpu) for gpu in range(1, gpus))
    return Program((Segment(streams),), resident=(0,), other_contents=others), tasks


def copy_ends(gpus: int, where: NodeSpec, size: int = 100) -> list[int]:
    program, tasks = copying(gpus, size)
    verify(program, tasks)
    spans = run_program(program, tasks, where, budget=10 * size, iterations=1).timeline
    return [span.end_ns for span in spans if span.label == "copy_d2h"]


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_n_copies_behind_one_switch_take_n_times_as_long(gpus: int):
    assert copy_ends(gpus, several(gpus)) == [100 * gpus] * gpus


def test_a_switch_with_enough_bandwidth_slows_no_gpu():
    assert copy_ends(4, several(4, switch=4 * GB)) == [100] * 4
    assert copy_ends(4, several(4, switch=None)) == [100] * 4


def test_a_switch_is_shared_only_by_its_own_gpus():
    """As on the node of cDMA with four GPUs; here the fourth GPU is behind no switch."""
    pair = SwitchSpec((0, 1), GB, GB), SwitchSpec((2,), GB, GB)
    assert copy_ends(4, replace(several(4, switch=None), switches=pair)) == [200, 200, 100, 100]


def test_a_gpu_with_a_slow_link_leaves_switch_bandwidth_to_the_others():
    """Links of half a gigabyte per second: two of them fill the switch exactly."""
    slow = node(out=GB // 2, back=GB // 2)
    assert copy_ends(2, several(2, base=slow)) == [200, 200]


def test_a_single_gpu_does_not_share_its_link_behind_any_switch():
    assert copy_ends(1, several(4, switch=10)) == [100]


def test_every_gpu_has_its_own_memory():
    program, tasks = copying(2)
    timeline = run_program(program, tasks, several(2), budget=100, iterations=1).timeline
    assert [curve.live.tolist()[0] for curve in timeline.device_memories] == [100, 100]
    with pytest.raises(OutOfMemoryError, match="GPU 1's device memory") as caught:
        short = replace(program, resident=(), other_contents=(InitialContents(DEVICE, (1, 0), 1),))
        run_program(short, tasks, several(2), budget=100, iterations=1)
    assert caught.value.holders == (("x0", 100), ("x1", 100))


def test_a_program_for_more_gpus_than_there_are_is_refused():
    program, tasks = copying(3)
    with pytest.raises(ProgramError, match="uses 3 GPUs"):
        run_program(program, tasks, several(2), budget=1000)


def test_a_kernel_on_a_host_stream_uses_host_memory():
    tasks = graph([kernel("device", 1, "w"), kernel("host", 9, "v", "v")], [held("w", 4), held("v", 8)])
    streams = {StreamId(0, "compute"): (Launch(0),), StreamId(0, "host", 1): (Launch(1),)}
    program = Program((Segment(streams),), resident=(0,), other_contents=(InitialContents(HOST, (1,)),))
    verify(program, tasks, capacity=4)
    timeline = run_program(program, tasks, node(4), budget=4, iterations=1).timeline
    assert timeline.memory("host").live.tolist() == [8]
    assert timeline.iteration_ends_ns == (1,)
    with pytest.raises(ProgramError, match="block v holds no host memory"):
        verify(replace(program, other_contents=(), resident=(0, 1)), tasks)


slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)


@pytest.mark.slow
@slow
@given(st.data(), st.integers(2, 4), st.booleans(), st.booleans())
def test_complete_iterations_match_the_reference_model(data: st.DataObject, gpus: int, barrier: bool, tight: bool):
    tasks = sharing(data.draw(networks()))
    one = lower(tasks, data.draw(moved(tasks, layer_barrier=barrier)))
    where = data.draw(switched_nodes(gpus))
    program = on_all(one, tasks, where, data.draw(exchanges(gpus)))
    verify(program, tasks)
    budget = None
    if tight:
        budget = sum(tasks.sizes) + data.draw(st.integers(0, sum(tasks.sizes)))
        stored = sum(
            tasks.sizes[b] for holding in program.other_contents if holding.memory == "host" for b in holding.blocks
        )
        where = replace(where, host=HostSpec(data.draw(st.none() | st.integers(stored, stored + 3 * sum(tasks.sizes)))))
        where = replace(where, gpu=replace(where.gpu, alignment=1))
    compare(program, tasks, where, budget)


@pytest.mark.slow
@slow
@given(st.data(), st.integers(2, 3))
def test_half_duplex_switches_match_the_reference_model(data: st.DataObject, gpus: int):
    tasks = sharing(data.draw(networks()))
    where = data.draw(switched_nodes(gpus))
    where = replace(where, switches=(SwitchSpec(tuple(range(gpus)), GB, 2 * GB, Duplex.HALF),))
    one = lower(tasks, data.draw(moved(tasks, layer_barrier=False)))
    compare(on_all(one, tasks, where, data.draw(exchanges(gpus))), tasks, where, None)


@slow
@given(st.data(), st.integers(2, 3), st.integers(2, 3))
def test_gpus_with_several_compute_streams_match_the_reference_model(data: st.DataObject, gpus: int, streams: int):
    trace = data.draw(networks())
    kernels = tuple(replace(each, stream=data.draw(st.integers(0, streams - 1))) for each in trace.kernels)
    tasks = sharing(replace(trace, kernels=kernels))
    where = data.draw(switched_nodes(gpus))
    program = on_all(lower(tasks, Placement()), tasks, where, data.draw(exchanges(gpus)))
    verify(program, tasks)
    compare(program, tasks, where, None)
