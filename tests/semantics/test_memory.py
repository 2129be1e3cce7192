"""Memory: acquire, release, alignment, the two pools, and the out-of-memory error."""

from __future__ import annotations

import pytest

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.program.instructions import COMPUTE, D2H, HOST, Acquire, Await, Launch, Release, Signal
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.run import simulate
from simgpu.timeline.streams import StreamId
from tests.semantics.hand_made import block, graph, held, kernel, node, program, run, stalls, times, trace

OTHER = StreamId(0, "compute", 1)
HOST = HOST


def test_blocks_are_acquired_before_their_first_kernel_and_released_after_the_last():
    tasks = graph(
        [kernel("k0", 10, "", "a"), kernel("k1", 20, "a", "b"), kernel("k2", 30, "b")], [block("a", 3), block("b", 5)]
    )
    curve = run(lower(tasks, Placement()), tasks).timeline.memory("device")
    assert list(zip(curve.time_ns.tolist(), curve.live.tolist(), strict=True))[1:] == [
        (0, 3),
        (10, 8),
        (30, 5),
        (60, 0),
    ]


def test_recorded_lifetimes_end_at_the_recorded_releases():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 20), kernel("k2", 30)], [block("a", 3, release="k1")])
    for recorded, freed in ((True, 30), (False, 10)):
        curve = run(lower(tasks, Placement(), recorded_lifetimes=recorded), tasks).timeline.memory("device")
        assert curve.time_ns.tolist()[-1] == freed


def test_a_request_for_memory_is_granted_completely_or_not_at_all():
    """While compute waits for 6 and 6 of 12 bytes, 6 of them free, it acquires nothing, so another's 6 would fit."""
    tasks = graph(
        [kernel("k0", 10, "", "a"), kernel("k1", 5, "", "b c")], [block("a", 6), block("b", 6), block("c", 6)]
    )
    code = {
        COMPUTE: [Acquire((1, 2)), Launch(1), Release((1, 2))],
        OTHER: [Acquire((0,)), Launch(0), Release((0,))],
    }
    result = run(
        program({**code, COMPUTE: [Await(0), *code[COMPUTE]], OTHER: [code[OTHER][0], Signal(0), *code[OTHER][1:]]}),
        tasks,
        node(12),
    )
    assert times(result)["k1"] == (10, 15)
    assert 12 not in result.timeline.memory("device").live.tolist()[:2]


def test_blocks_of_a_request_are_placed_in_listed_order():
    tasks = graph([kernel("k0", 1, "", "a b"), kernel("k1", 1, "", "c")], [block("a", 2), block("b", 3), block("c", 4)])
    code = [Acquire((1, 0)), Launch(0), Release((0,)), Acquire((2,)), Launch(1), Release((1, 2))]
    result = run(program({COMPUTE: code}), tasks, node(100), pool="addressed")
    assert result.high_water == 7
    result = run(program({COMPUTE: [Acquire((0, 1)), *code[1:]]}), tasks, node(100), pool="addressed")
    assert result.high_water == 9


def test_waiting_is_first_in_first_out_even_if_a_later_request_would_fit():
    tasks = graph(
        [
            kernel("k0", 10, "", "a"),
            kernel("k1", 1),
            kernel("k2", 1, "", "b"),
            kernel("k3", 2),
            kernel("k4", 1, "", "c"),
        ],
        [block("a", 8), block("b", 8), block("c", 2)],
    )
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Release((0,))],
        OTHER: [Launch(1), Acquire((1,)), Launch(2), Release((1,))],
        StreamId(0, "compute", 2): [Launch(3), Acquire((2,)), Launch(4), Release((2,))],
    }
    result = times(run(program(code), tasks, node(10)))
    assert result["k2"] == (10, 11)
    assert result["k4"] == (10, 11)
    assert stalls(run(program(code), tasks, node(10)))[1] == ("compute2", "stall_device_memory", 2, 10)


def test_device_and_host_memory_have_separate_queues():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 1, "", "b")], [block("a", 8), block("b", 8)])
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Release((0,))],
        OTHER: [Acquire((1,)), Launch(1), Release((1,))],
        D2H: [Acquire((1,), HOST), Release((1,), HOST)],
    }
    result = run(program(code), tasks, node(8, host=8))
    assert [stall[0] for stall in stalls(result)] == ["compute1"]


def test_an_offloaded_block_is_released_at_the_end_of_its_copy():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 50), kernel("k2", 9, "a")], [block("a", 30)])
    curve = run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks).timeline.memory("device")
    assert (40, 0) in zip(curve.time_ns.tolist(), curve.live.tolist(), strict=True)


def test_host_memory_is_held_from_the_copy_out_to_the_end_of_the_copy_in():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 50), kernel("k2", 9, "a")], [block("a", 30)])
    curve = run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks).timeline.memory("host")
    assert list(zip(curve.time_ns.tolist(), curve.live.tolist(), strict=True)) == [(10, 30), (90, 0)]


def test_padding_is_counted_separately_from_live_bytes():
    tasks = graph([kernel("k0", 10, "", "a b")], [block("a", 1), block("b", 513)])
    curve = run(lower(tasks, Placement()), tasks, node(alignment=512)).timeline.memory("device")
    assert (max(curve.live), max(curve.used)) == (514, 512 + 1024)


def test_padding_counts_against_the_budget():
    tasks = graph([kernel("k0", 10, "", "a b")], [block("a", 1), block("b", 1)])
    run(lower(tasks, Placement()), tasks, node(1024, alignment=512))
    with pytest.raises(OutOfMemoryError):
        run(lower(tasks, Placement()), tasks, node(1023, alignment=512))


def test_host_memory_is_not_aligned():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5), kernel("k2", 9, "a")], [block("a", 1)])
    result = run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, node(alignment=512, host=1))
    assert max(result.timeline.memory("host").used) == 1


FRAGMENTED = trace(
    [kernel("k0", 1, "", "a b c"), kernel("k1", 1, "b"), kernel("k2", 1, "b", "d")],
    [block("a", 4, release="k0"), block("b", 2), block("c", 4, release="k0"), block("d", 8)],
)


def test_the_counting_pool_is_the_default_and_has_no_fragmentation():
    result = simulate(FRAGMENTED, node(10), "none")
    assert (result.pool, result.iteration_ns) == ("counting", 3)


def test_the_addressed_pool_runs_out_if_no_hole_is_large_enough():
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(FRAGMENTED, node(10), "none", pool="addressed")
    error = caught.value
    assert (error.requested, error.free, error.largest_hole, error.capacity) == (8, 8, 4, 10)


def test_offsets_need_the_addressed_pool():
    tasks = graph([kernel("k0", 1, "", "a")], [block("a", 4)])
    code = program({COMPUTE: [Acquire((0,), offsets=(6,)), Launch(0), Release((0,))]})
    assert run(code, tasks, node(10), pool="addressed").high_water == 10
    with pytest.raises(ProgramError, match="addressed"):
        run(code, tasks, node(10))


# --- out of memory ------------------------------------------------------------------------------------------


def starving() -> tuple[object, ...]:
    """Compute holds a and b forever and requests c."""
    tasks = graph(
        [kernel("k0", 7, "", "a"), kernel("k1", 5, "", "b"), kernel("grow", 1, "a b", "c", op="concat")],
        [block("a", 30), block("b", 50), block("c", 15)],
    )
    return lower(tasks, Placement()), tasks


def test_out_of_memory_names_the_request_the_free_bytes_and_the_holders():
    code, tasks = starving()
    fits = run(code, tasks, node(95))
    assert fits.high_water == 95
    other = graph([*tasks.kernels[:2], kernel("grow", 1, "a", "c", op="concat"), kernel("k3", 1, "b c")], tasks.blocks)
    with pytest.raises(OutOfMemoryError) as caught:
        run(lower(other, Placement()), other, node(90))
    error = caught.value
    assert error.waiting == "kernel grow (concat)"
    assert (error.kernel, error.space, error.at_ns) == ("grow", "device", 12)
    assert (error.requested, error.free, error.largest_hole, error.capacity) == (15, 10, 10, 90)
    assert error.holders == (("b", 50), ("a", 30))


def test_out_of_memory_is_raised_only_if_no_event_is_pending():
    """Compute waits from 12 on; the offload of b ends at 62 and frees the memory."""
    tasks = graph(
        [kernel("k0", 7, "", "a"), kernel("k1", 5, "", "b"), kernel("grow", 1, "a", "c"), kernel("k3", 1, "b")],
        [block("a", 30), block("b", 50), block("c", 15)],
    )
    code = lower(tasks, Placement((Swap(1, 1, 3, 3),)))
    assert times(run(code, tasks, node(90)))["grow"] == (62, 63)


def test_pinned_host_memory_can_run_out_too():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5), kernel("k2", 9, "a")], [block("a", 30)])
    with pytest.raises(OutOfMemoryError) as caught:
        run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, node(host=29))
    error = caught.value
    assert (error.space, error.waiting, error.requested, error.free) == ("host", "copy of block a on d2h", 30, 29)


def test_a_deadlock_on_memory_ends_in_out_of_memory():
    tasks = graph(
        [kernel("k0", 5, "", "a"), kernel("k1", 5, "", "b"), kernel("k2", 5, "a", "c"), kernel("k3", 5, "b", "d")],
        [block(name, 4) for name in "abcd"],
    )
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Acquire((2,)), Launch(2), Release((0, 2))],
        OTHER: [Acquire((1,)), Launch(1), Acquire((3,)), Launch(3), Release((1, 3))],
    }
    assert run(program(code), tasks, node(12)).high_water == 12
    with pytest.raises(OutOfMemoryError) as caught:
        run(program(code), tasks, node(11))
    assert caught.value.holders == (("a", 4), ("b", 4))


def test_persistent_blocks_that_do_not_fit_together_run_out_before_the_first_kernel():
    tasks = graph([kernel("k0", 5, "w"), kernel("k1", 5, "v")], [held("w", 6), held("v", 5)])
    with pytest.raises(OutOfMemoryError) as caught:
        run(lower(tasks, Placement()), tasks, node(10))
    assert (caught.value.at_ns, caught.value.holders) == (0, (("w", 6), ("v", 5)))


def test_out_of_memory_reports_the_padding_of_persistent_blocks():
    tasks = graph([kernel("k0", 5, "w"), kernel("k1", 5, "v")], [held("w", 6), held("v", 5)])
    with pytest.raises(OutOfMemoryError) as caught:
        run(lower(tasks, Placement()), tasks, node(20, alignment=16))
    assert (caught.value.requested, caught.value.capacity) == (32, 20)


def test_host_memory_is_released_before_the_next_iteration():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 5), kernel("k2", 9, "a")], [block("a", 30)])
    result = run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, node(host=30), iterations=3)
    assert result.timeline.iteration_ends_ns == (79, 158, 237)


def test_out_of_memory_names_the_kernel_whose_block_cannot_be_fetched():
    """a is offloaded, c uses its memory, and a cannot be fetched."""
    tasks = graph(
        [kernel("k0", 10, "", "a b"), kernel("k1", 5, "", "c"), kernel("k2", 9, "a b"), kernel("k3", 1, "c")],
        [block("a", 30), block("b", 1), block("c", 29)],
    )
    with pytest.raises(OutOfMemoryError) as caught:
        run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, node(59))
    assert (caught.value.waiting, caught.value.kernel) == ("kernel k2 (op)", "k2")
