"""Copy engines and links: order of service, copy times, and sharing of a link."""

from __future__ import annotations

import pytest

from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.memory.transfer import copy_ns
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    H2D,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.timeline.streams import StreamId
from tests.semantics.hand_made import GB, block, graph, held, kernel, node, program, run, stalls, times

HOST = HOST


def there_and_back(out: int, back: int, *, begin_back: int) -> tuple[Program, object]:
    """An offload of `out` bytes from 0 on; `begin_back` ns later a prefetch of `back` bytes begins.

    The prefetched block was offloaded long before.
    """
    tasks = graph(
        [kernel("k0", 10**12), kernel("wait", begin_back), kernel("last", 1, "x y")],
        [held("x", out), held("y", back)],
    )
    code: dict[StreamId, list[Instruction]] = {
        COMPUTE: [Signal(9), Launch(0), Signal(1), Launch(1), Signal(2), Await(3), Await(4), Launch(2)],
        D2H: [
            Await(9),
            Acquire((0, 1), HOST),
            Copy(1, DEVICE, HOST),
            Signal(0),
            Await(1),
            Copy(0, DEVICE, HOST),
            Release((0,), HOST),
            Signal(3),
        ],
        H2D: [Await(0), Await(2), Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(4)],
    }
    return program(code, [0, 1]), tasks


def lengths(on: NodeSpec, out: int, back: int, begin_back: int) -> tuple[int, int]:
    """Nanoseconds from the issue of each copy to its end."""
    code, tasks = there_and_back(out, back, begin_back=begin_back)
    result = run(code, tasks, on)  # type: ignore[arg-type]
    ends = {s.label: s.end_ns for s in result.timeline if not s.kind.is_stall}
    zero = times(result)["wait"][0]
    return ends["copy_d2h"] - zero, ends["copy_h2d"] - zero - begin_back


@pytest.mark.parametrize(
    ("size", "bandwidth", "latency", "expected"),
    [(0, GB, 0, 0), (0, GB, 7, 7), (1, 3 * GB, 0, 1), (4, 3 * GB, 0, 2), (3, 3 * GB, 5, 6), (1000, GB, 350, 1350)],
)
def test_a_lone_copy_takes_the_latency_and_its_bytes_rounded_up(size: int, bandwidth: int, latency: int, expected: int):
    assert copy_ns(size, bandwidth, latency) == expected
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 0), kernel("k2", 9, "a")], [block("a", size)])
    code = lower(tasks, Placement((Swap(0, 0, 2, 2),)))
    for duplex in Duplex:
        for engines in (1, 2):
            on = node(out=bandwidth, back=bandwidth, latency=latency, duplex=duplex, engines=engines)
            result = times(run(code, tasks, on))
            assert result["out:a"] == (10, 10 + expected)
            assert result["in:a"] == (10 + expected, 10 + 2 * expected)


def test_directions_have_their_own_bandwidth():
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 0), kernel("k2", 9, "a")], [block("a", 100)])
    result = times(run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, node(out=2 * GB, back=GB)))
    assert (result["out:a"], result["in:a"]) == ((10, 60), (60, 160))


def test_two_engines_copy_both_ways_at_once():
    assert lengths(node(), 100, 100, 10) == (100, 100)


def test_one_engine_serves_one_direction_after_the_other():
    assert lengths(node(engines=1), 100, 100, 10) == (100, 190)


def test_an_engine_serves_first_in_first_out_by_issue():
    """A copy-in is requested at 10 during a copy-out; the next copy-out is requested at its end and served last."""
    tasks = graph([kernel("k0", 10, "z"), kernel("last", 1, "x y z")], [held("x", 50), held("y", 20), held("z", 5)])
    code: dict[StreamId, list[Instruction]] = {
        COMPUTE: [Signal(9), Await(0), Launch(0), Signal(1), Await(2), Await(3), Launch(1)],
        D2H: [
            *(Await(9), Acquire((0, 1, 2), HOST), Copy(1, DEVICE, HOST), Signal(0)),
            *(Copy(0, DEVICE, HOST), Copy(2, DEVICE, HOST), Release((0, 2), HOST), Signal(2)),
        ],
        H2D: [Await(0), Await(1), Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(3)],
    }
    result = run(program(code, [0, 1, 2]), tasks, node(engines=1))
    outcome = times(result)
    assert (outcome["out:x"], outcome["in:y"], outcome["out:z"]) == ((20, 70), (70, 90), (90, 95))
    assert ("h2d", "stall_engine", 30, 70) in stalls(result)


def test_a_copy_engine_serves_the_earlier_request_first():
    """A copy-in is requested at 22, a copy-out on a second compute stream at 21, both while another copy-out runs."""
    tasks = graph(
        [kernel("k1", 1), kernel("k2", 2), kernel("last", 1, "x y z")], [held("x", 50), held("y", 20), held("z", 5)]
    )
    code: dict[StreamId, list[Instruction]] = {
        COMPUTE: [Signal(9), Await(0), Launch(1), Signal(1), Await(2), Await(3), Await(4), Launch(2)],
        StreamId(0, "compute", 1): [
            Await(9),
            Await(0),
            Launch(0),
            Copy(2, DEVICE, HOST),
            Release((2,), HOST),
            Signal(4),
        ],
        D2H: [
            Await(9),
            Acquire((0, 1, 2), HOST),
            Copy(1, DEVICE, HOST),
            Signal(0),
            Copy(0, DEVICE, HOST),
            Release((0,), HOST),
            Signal(2),
        ],
        H2D: [Await(0), Await(1), Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(3)],
    }
    result = times(run(program(code, [0, 1, 2]), tasks, node(engines=1)))
    assert (result["out:x"], result["out:z"], result["in:y"]) == ((20, 70), (70, 75), (75, 95))


def test_during_latency_the_engine_is_busy():
    assert lengths(node(engines=1, latency=40), 100, 100, 10) == (140, 270)


def test_during_latency_the_link_is_idle():
    """During the latency of the copy-in, the copy-out transfers 40 bytes alone; then they share the link."""
    assert lengths(node(latency=40, duplex=Duplex.HALF), 100, 100, 40) == (200, 200)


def test_a_half_duplex_link_has_one_capacity_for_both_directions():
    assert lengths(node(duplex=Duplex.HALF), 100, 100, 0) == (200, 200)


def test_a_half_duplex_link_carries_the_larger_of_the_two_bandwidths():
    """D2H alone has 2 GB/s, H2D at most 1: they share 1 and 1, then D2H has 2."""
    assert lengths(node(out=2 * GB, back=GB, duplex=Duplex.HALF), 300, 100, 0) == (200, 100)


def test_bandwidth_unused_by_a_slow_flow_serves_the_other_flow():
    """H2D is limited to 1 byte in 4 ns, so D2H gets the other three quarters."""
    assert lengths(node(back=GB // 4, duplex=Duplex.HALF), 75, 25, 0) == (100, 100)


def test_a_flow_speeds_up_when_the_other_ends():
    assert lengths(node(duplex=Duplex.HALF), 100, 10, 0) == (110, 20)


def test_the_end_of_a_copy_is_rounded_up():
    """On a shared link of 3 GB/s, 10 bytes at 1.5 GB/s take 6.67 ns."""
    assert lengths(node(out=3 * GB, back=3 * GB, duplex=Duplex.HALF), 10, 10, 0) == (7, 7)


def test_rates_are_integers_and_the_remainder_is_lost():
    """With 3 bytes per second in all each copy gets one; without rounding 2 s would be enough."""
    assert lengths(node(out=3, back=3, duplex=Duplex.HALF), 3, 3, 0) == (3 * GB, 3 * GB)
