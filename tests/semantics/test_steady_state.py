"""Successive iterations: where one ends, when they are steady, and the state passed to the next."""

from __future__ import annotations

import pytest

from simgpu.machine.instants import InstantOrder
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Initialize,
    Launch,
    Release,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.model import RELEASED_AT_END
from tests.semantics.hand_made import block, graph, held, kernel, node, program, run, times

CHAIN = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])


def test_an_iteration_lasts_from_compute_end_to_compute_end():
    """The copy that continues after the last kernel is not part of the iteration but delays the next one."""
    tasks = graph([kernel("k0", 10, "x")], [held("x", 30)])
    code = {
        COMPUTE: [Await(1, lag=1), Launch(0), Signal(0)],
        D2H: [Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1)],
    }
    assert run(program(code, [0]), tasks, iterations=3).timeline.iteration_ends_ns == (10, 50, 90)


def test_two_equal_iterations_are_steady():
    assert simulate(CHAIN, node(), "vdnn", iterations=2).steady


def test_one_iteration_is_not_known_to_be_steady():
    assert not simulate(CHAIN, node(), "vdnn", iterations=1).steady


def test_iterations_of_unequal_time_are_unsteady():
    """Copies lag two iterations behind: 10, 10, then 30 ns each."""
    tasks = graph([kernel("k0", 10, "x")], [held("x", 30)])
    code = {
        COMPUTE: [Await(1, lag=2), Launch(0), Signal(0)],
        D2H: [Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1)],
    }
    assert run(program(code, [0]), tasks, iterations=5).timeline.iteration_ends_ns == (10, 20, 50, 80, 110)
    assert [run(program(code, [0]), tasks, iterations=count).steady for count in (3, 4)] == [False, True]


def test_iterations_of_equal_time_with_different_final_pools_are_unsteady():
    """x moves to another address in each iteration, so only every other iteration finds it at the same one."""
    blocks = [held("x", 4), held("z", 4, release="k0"), held("w", 4, release="k0")]
    moving = graph([kernel("k0", 10, "x")], blocks)
    code = [
        *(Acquire((1,)), Release((0,)), Acquire((2,)), Release((1,)), Acquire((0,)), Initialize((0,))),
        Release((2,)),
    ]
    result = run(program({COMPUTE: [*code, Launch(0)]}, [0]), moving, node(8), iterations=3, pool="addressed")
    assert result.timeline.iteration_ends_ns == (10, 20, 30)
    assert not result.steady
    assert run(program({COMPUTE: [*code, Launch(0)]}, [0]), moving, node(8), iterations=3).steady


def test_released_constants_are_initialized_again_without_cost():
    tasks = graph([kernel("k0", 10, "c"), kernel("k1", 10)], [held("c", 4, release="k0")])
    code = lower(tasks, Placement(), recorded_lifetimes=True)
    assert code.resident == ()
    assert code.segments[0].streams[COMPUTE][:2] == (Acquire((0,)), Initialize((0,)))
    result = run(code, tasks, iterations=3)
    assert result.timeline.iteration_ends_ns == (20, 40, 60)
    assert result.timeline.memory("device").live.tolist()[-1] == 0


def test_other_surviving_blocks_are_released_at_the_end_of_the_iteration():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 10)], [block("a", 4, release=RELEASED_AT_END)])
    curve = run(lower(tasks, Placement(), recorded_lifetimes=True), tasks, iterations=2).timeline.memory("device")
    changes = list(zip(curve.time_ns.tolist(), curve.live.tolist(), strict=True))
    assert changes[1:] == [(0, 4), (20, 0), (20, 4), (40, 0)]


def test_weights_keep_their_memory_from_one_iteration_to_the_next():
    tasks = graph([kernel("k0", 10, "w", "w")], [held("w", 4)])
    assert set(run(lower(tasks, Placement()), tasks, iterations=3).timeline.memory("device").live.tolist()) == {4}


def test_a_kernel_waits_for_a_block_that_is_still_being_offloaded():
    """a is offloaded from 10 to 110; k2, which needs it, could start at 15."""
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5), kernel("k2", 1, "a")], [block("a", 100)])
    result = times(run(lower(tasks, Placement((Swap(0, 0, 2, 1),))), tasks))
    assert (result["out:a"], result["in:a"], result["k2"]) == ((10, 110), (110, 210), (210, 211))


def test_instructions_are_counted_as_retired_over_all_iterations():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5, "a")], [block("a", 100)])
    code = lower(tasks, Placement())
    assert len(code) == 4
    assert run(code, tasks, iterations=3).retired == 12


def test_repetitions_of_a_segment_count_as_retired():
    tasks = graph([kernel("k0", 10, "", "a")], [block("a", 100)])
    code = program({COMPUTE: [Acquire((0,)), Launch(0), Release((0,))]}, repeat=5)
    result = run(code, tasks, iterations=2)
    assert result.retired == 30
    assert result.timeline.iteration_ends_ns == (50, 100)


def test_waiting_takes_no_simpy_events(monkeypatch: pytest.MonkeyPatch):
    """Three kernels and two copies: a hundred times as many bytes make the stream wait longer, at no more events."""
    stepped: list[int] = []
    step = InstantOrder.step

    def counted(self: InstantOrder) -> None:
        stepped[-1] += 1
        step(self)

    monkeypatch.setattr(InstantOrder, "step", counted)
    for size, end in ((100, 633), (10_000, 60_033)):
        tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5), kernel("k2", 1, "a")], [block("a", size)])
        stepped.append(0)
        result = run(lower(tasks, Placement((Swap(0, 0, 2, 1),))), tasks, iterations=3)
        assert sum(span.kind not in (SpanKind.STALL_EVENT,) for span in result.timeline) == 15
        assert times(result, 2)["k2"][1] == end
    assert stepped[0] == stepped[1] > 15
