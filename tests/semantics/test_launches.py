"""The host's thread launches the work of a GPU one after another: calculations by hand, and closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.explain.losses import losses, overhead_parts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.machine.run import run_program
from simgpu.policies.save_on_cpu import SaveOnCpu
from simgpu.program.instructions import COMPUTE, D2H, Acquire, Await, Copy, Launch, Release, Signal
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute
from simgpu.simulation.run import simulate
from simgpu.timeline.streams import StreamId
from simgpu.trace.chain import chain
from simgpu.workloads.timemodel.host import step_ns
from tests.semantics.hand_made import block, graph, held, kernel, node, program, run, stalls, times


def launching(launch_ns: int, *, waits: bool = False, gpus: int = 1) -> NodeSpec:
    return replace(node(), host=HostSpec(launch_ns=launch_ns, waits_for_copies=waits), gpus=gpus)


def in_a_row(durations: Sequence[int]) -> TaskGraph:
    """Kernels without data in common."""
    names = [f"k{number}" for number in range(len(durations))]
    kernels = [kernel(name, ns, writes=f"b{name}") for name, ns in zip(names, durations, strict=True)]
    return graph(kernels, [block(f"b{name}", 8) for name in names])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 50))
def test_a_step_without_policy_takes_what_launches_and_kernels_take(durations: list[int], launch_ns: int) -> None:
    tasks = in_a_row(durations)
    result = run(lower(tasks, Placement()), tasks, launching(launch_ns), iterations=3)
    step = step_ns(durations, operator_ns=launch_ns)
    assert result.timeline.iteration_ends_ns == (step, 2 * step, 3 * step)
    assert result.steady
    assert tasks.ideal_ns(launch_ns) == step


@pytest.mark.parametrize(("each", "launch_ns", "step"), [(10, 16, 8 * 16 + 10), (16, 10, 10 + 8 * 16), (9, 9, 81)])
def test_equal_kernels_take_the_longer_of_launch_and_kernel(each: int, launch_ns: int, step: int) -> None:
    tasks = in_a_row([each] * 8)
    assert run(lower(tasks, Placement()), tasks, launching(launch_ns)).timeline.iteration_ends_ns == (step,)


def test_the_thread_runs_ahead_while_a_kernel_runs() -> None:
    tasks = in_a_row([50, 5, 5, 5])
    result = run(lower(tasks, Placement()), tasks, launching(10))
    assert times(result) == {"k0": (10, 60), "k1": (60, 65), "k2": (65, 70), "k3": (70, 75)}
    assert stalls(result) == [("compute", "stall_launch", 0, 10)]


def test_kernels_that_run_again_are_launched_again() -> None:
    tasks, again = TaskGraph.of(chain([5] * 4, [5] * 4, [100] * 4)), []
    steps = []
    for name in ("x2", "x3"):
        b = tasks.block(name)
        gap = max(tasks.gaps(b), key=lambda gap: gap.before - gap.after)
        again.append(Recompute(b, gap.after, gap.before))
        code = lower(tasks, Placement(recomputes=tuple(again)))
        steps += run(code, tasks, launching(20)).timeline.iteration_ends_ns
    assert steps == [9 * 20 + 5, 10 * 20 + 5]


def copied(waits: bool) -> dict[str, tuple[int, int]]:
    """A kernel, a copy of 30 bytes for which compute waits, and two kernels; each launch takes 20 ns."""
    tasks = graph([kernel("k0", 10, writes="x"), kernel("k1", 10, "w"), kernel("k2", 10, "w")],
                  [block("x", 30), held("w", 4)])  # fmt: skip
    first = [Acquire((0,)), Launch(0), Signal(0), Await(1), Release((0,))]
    code = {
        COMPUTE: [*first, Launch(1), Launch(2)],
        D2H: [Acquire((0,), "host"), Await(0), Copy(0, "device", "host"), Release((0,), "host"), Signal(1)],
    }
    return times(run(program(code, (1,)), tasks, launching(20, waits=waits)))


def test_a_stream_that_waits_does_not_stop_the_thread() -> None:
    assert copied(waits=False) == {"k0": (20, 30), "out:x": (30, 60), "k1": (60, 70), "k2": (70, 80)}


def test_a_copy_of_pageable_memory_stops_the_thread() -> None:
    assert copied(waits=True) == {"k0": (20, 30), "out:x": (30, 60), "k1": (80, 90), "k2": (100, 110)}
    where = replace(launching(20), host=HostSpec(launch_ns=20, pageable_bandwidth=10**9))
    assert SaveOnCpu(pin_memory=False).machine(where).host.waits_for_copies
    assert not SaveOnCpu().machine(where).host.waits_for_copies


def test_memory_is_acquired_before_a_launch_ends() -> None:
    tasks = in_a_row([5, 5])
    curve = run(lower(tasks, Placement()), tasks, launching(20)).timeline.memory("device")
    levels = zip(curve.time_ns.tolist(), curve.live.tolist(), strict=True)
    assert list(levels) == [(0, 0), (0, 8), (25, 0), (25, 8), (45, 0)]


def test_each_gpu_has_a_thread() -> None:
    tasks = in_a_row([5, 5])
    code = {StreamId(gpu, "compute"): [Acquire((gpu,)), Launch(gpu), Release((gpu,))] for gpu in range(2)}
    result = run_program(program(code), tasks, launching(20, gpus=2), budget=None, iterations=1)
    assert times(result) == {"k0": (20, 25), "k1": (20, 25)}


def test_streams_of_a_gpu_share_its_thread_in_the_order_of_the_kernels() -> None:
    kernels = [kernel(f"k{n}", 50, writes=f"b{n}", stream=n % 2) for n in range(4)]
    tasks = graph(kernels, [block(f"b{n}", 8) for n in range(4)])
    code = lower(tasks, Placement())
    result = run_program(code, tasks, launching(20), budget=None, iterations=2, engine="compiled")
    assert times(result) == {"k0": (20, 70), "k1": (40, 90), "k2": (70, 120), "k3": (90, 140)}
    assert [start - 140 for start, _ in times(result, 1).values()] == [20, 40, 70, 90]
    assert result.timeline.iteration_ends_ns == (140, 280)
    assert result.notes == (
        "ran on SimPy, because the compiled engine does not have this: one thread launches the kernels of several "
        "streams",
    )


def test_waits_for_launches_are_accounted_for() -> None:
    result = simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), launching(12), "none")
    parts = result.metrics.breakdown
    assert (parts.compute, parts.stalled_launch, parts.stalled, parts.total) == (63, 27, 27, 90)
    assert result.metrics.by_key["stalled_launch_ns"] == parts.parts["launches"] == 27
    [loss] = losses(result)
    assert (loss.ns, loss.waits, *loss.cause) == (
        *(27, 4, "", "compute"),
        *("launches by the host", "its thread launches one operator after another"),
    )
    assert dict(overhead_parts(result, (loss,)))["waiting for launches"] == 0
    assert "stalled_launch_ns" not in simulate(chain([5], [7], [9]), node(), "none").metrics.by_key
