"""The order within one instant: completions, releases, signals, acquires, starts; ties by stream, never by SimPy."""

from __future__ import annotations

import pytest
import simpy

from simgpu.hardware.spec import Duplex
from simgpu.program.instructions import COMPUTE, D2H, DEVICE, H2D, HOST, Acquire, Await, Copy, Launch, Release, Signal
from simgpu.timeline.streams import StreamId
from tests.semantics.hand_made import block, graph, held, kernel, node, program, run, stalls, times

OTHER = StreamId(0, "compute", 1)
HOST = HOST


def test_memory_released_at_an_instant_serves_requests_of_that_instant():
    """The requesting stream is first by rank, but its request is handled after the other stream's release."""
    tasks = graph([kernel("long", 10, "", "a"), kernel("other", 10, "", "b", stream=1)], [block("a", 8), block("b", 8)])
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Release((0,)), Acquire((0,)), Release((0,))],
        OTHER: [Acquire((1,)), Launch(1), Release((1,))],
    }
    assert stalls(run(program(code), tasks, node(16))) == []
    code[COMPUTE] = [Acquire((0,)), Launch(0), Acquire((2,)), Release((0, 2))]
    wider = graph(
        [kernel("long", 10, "", "a"), kernel("other", 10, "", "b", stream=1)],
        [block("a", 8), block("b", 8), held("c", 8)],
    )
    assert stalls(run(program(code), wider, node(16))) == []


def test_a_waiting_stream_is_served_before_a_new_request():
    """At 10 one stream releases 8 bytes and requests 8 more; another has waited for 8 since 5."""
    tasks = graph(
        [kernel("k0", 10, "", "a"), kernel("k1", 5, "", ""), kernel("k2", 7, "", "b"), kernel("k3", 1, "", "c")],
        [block("a", 8), block("b", 8), block("c", 8)],
    )
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Release((0,)), Acquire((2,)), Launch(3), Release((2,))],
        OTHER: [Launch(1), Acquire((1,)), Launch(2), Release((1,))],
    }
    result = times(run(program(code), tasks, node(8)))
    assert result["k2"] == (10, 17)
    assert result["k3"] == (17, 18)


def test_an_earlier_waiter_is_served_first_despite_a_signal_between_release_and_request():
    """As above with an unused signal between release and continuation: starts come after all grants.

    At 4 the copy-in ends, releases its host memory, and requests the engine again; copy-out has waited for that host
    memory. Both start at 4, copy-out first by rank.
    """
    tasks = graph(
        [kernel("k0", 0, "", "a b c"), kernel("k1", 1, "a b c")],
        [block("a", 4), block("b", 4), block("c", 4)],
    )
    code = {
        COMPUTE: [Acquire((0, 1, 2)), Launch(0), Signal(0), Await(5), Await(6), Launch(1), Release((0, 1, 2))],
        D2H: [
            *(Await(0), Acquire((0, 1), HOST), Copy(0, DEVICE, HOST), Copy(1, DEVICE, HOST), Signal(1)),
            *(Acquire((2,), HOST), Copy(2, DEVICE, HOST), Release((2,), HOST), Signal(6)),
        ],
        H2D: [
            *(Await(1), Copy(0, HOST, DEVICE), Release((0,), HOST), Signal(3)),
            *(Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(5)),
        ],
    }
    result = times(run(program(code), tasks, node(engines=1, host=8)))
    assert result["in:a"] == (8, 12)
    assert result["out:c"] == (12, 16)
    assert result["in:b"] == (16, 20)


def test_of_copies_issued_at_one_instant_d2h_is_served_before_h2d():
    """One engine, both requests at 5: d2h is served before h2d, for any order of the streams in the program."""
    tasks = graph([kernel("k0", 0, "", "a b"), kernel("k1", 5), kernel("k2", 0, "a b")], [block("a", 3), block("b", 3)])
    code = {
        H2D: [Await(1), Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(2)],
        D2H: [
            *(
                Await(0),
                Acquire((1,), HOST),
                Copy(1, DEVICE, HOST),
                Await(1),
                Acquire((0,), HOST),
                Copy(0, DEVICE, HOST),
            ),
            *(Release((0,), HOST), Signal(3)),
        ],
        COMPUTE: [
            *(Acquire((0, 1)), Launch(0), Signal(0), Launch(1), Signal(1)),
            *(Await(2), Await(3), Launch(2), Release((0, 1))),
        ],
    }
    # The offload of b must have ended before its prefetch: event 1 is used for both.
    code[H2D].insert(0, Await(4))
    code[D2H].insert(3, Signal(4))
    result = times(run(program(code), tasks, node(engines=1)))
    assert result["out:a"] == (5, 8)
    assert result["in:b"] == (8, 11)


def test_signals_are_processed_before_memory_requests_of_the_same_instant():
    """At 10 compute requests the last bytes and the other stream signals d2h, which releases bytes only later."""
    tasks = graph(
        [kernel("k0", 10, "", "a"), kernel("k1", 10, "", "b"), kernel("k2", 5, "", "c")],
        [block("a", 4), block("b", 4), block("c", 4)],
    )
    code = {
        COMPUTE: [Acquire((0,)), Launch(0), Await(1), Acquire((2,)), Launch(2), Release((0, 2))],
        OTHER: [Acquire((1,)), Launch(1), Release((1,)), Signal(1)],
    }
    assert stalls(run(program(code), tasks, node(8))) == []


def test_simultaneous_requests_are_served_in_order_of_streams():
    """Two streams request the same bytes at one instant: compute is served before d2h."""
    tasks = graph([kernel("k0", 10, "", "a"), kernel("k1", 10, "", "b", stream=1)], [block("a", 8), block("b", 8)])
    code = {
        OTHER: [Acquire((1,)), Launch(1), Release((1,))],
        COMPUTE: [Acquire((0,)), Launch(0), Release((0,))],
    }
    result = times(run(program(code), tasks, node(8)))
    assert result == {"k0": (0, 10), "k1": (10, 20)}


def test_a_kernel_of_zero_duration_ends_at_its_start():
    tasks = graph([kernel("k0", 0, "", "a"), kernel("k1", 7, "a")], [block("a", 8)])
    result = times(run(program({COMPUTE: [Acquire((0,)), Launch(0), Launch(1), Release((0,))]}), tasks))
    assert result == {"k0": (0, 0), "k1": (0, 7)}


@pytest.mark.parametrize("duplex", Duplex)
def test_a_kernel_that_ends_as_a_copy_begins_does_not_wait_for_the_copy(duplex: Duplex):
    tasks = graph(
        [kernel("k0", 0, "", "a"), kernel("k1", 0), kernel("k2", 5), kernel("k3", 5, "a")],
        [block("a", 100)],
    )
    code = {
        COMPUTE: [*(Acquire((0,)), Launch(0), Signal(0), Launch(1), Launch(2)), *(Await(1), Launch(3), Release((0,)))],
        D2H: [Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1)],
    }
    result = times(run(program(code), tasks, node(duplex=duplex)))
    assert result == {"k0": (0, 0), "k1": (0, 0), "k2": (0, 5), "out:a": (0, 100), "k3": (100, 105)}


@pytest.mark.parametrize("duplex", Duplex)
def test_a_kernel_that_ends_as_a_copys_latency_ends_does_not_wait_for_the_copy(duplex: Duplex):
    tasks = graph([kernel("k0", 0, "", "a"), kernel("k1", 6), kernel("k2", 5), kernel("k3", 5, "a")], [block("a", 100)])
    code = {
        COMPUTE: [*(Acquire((0,)), Launch(0), Signal(0), Launch(1), Launch(2)), *(Await(1), Launch(3), Release((0,)))],
        D2H: [Await(0), Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST), Signal(1)],
    }
    result = times(run(program(code), tasks, node(duplex=duplex, latency=6)))
    assert result["k2"] == (6, 11)


def test_a_kernel_ending_when_a_lone_copy_would_end_continues_on_a_half_duplex_link():
    """Out and in share the link from 4 on, so the copy-out ends after 50, when k1 ends and k2 must begin."""
    tasks = graph(
        [
            kernel("k0", 0, "", "a b"),
            kernel("kb", 4, "", ""),
            kernel("k1", 46),
            kernel("k2", 1),
            kernel("k3", 1, "a b"),
        ],
        [block("a", 42), block("b", 4)],
    )
    code = {
        COMPUTE: [
            *(Acquire((0, 1)), Launch(0), Signal(0), Launch(1), Launch(2), Launch(3)),
            *(Await(2), Await(3), Launch(4), Release((0, 1))),
        ],
        D2H: [
            *(Await(0), Acquire((0, 1), HOST), Copy(1, DEVICE, HOST), Signal(1), Await(9, 1), Copy(0, DEVICE, HOST)),
            *(Release((0,), HOST), Signal(2), Signal(9)),
        ],
        H2D: [Await(1), Copy(1, HOST, DEVICE), Release((1,), HOST), Signal(3)],
    }
    result = times(run(program(code), tasks, node(duplex=Duplex.HALF)))
    assert result["k1"] == (4, 50)
    assert result["in:b"] == (4, 12)
    assert result["out:a"] == (4, 50)
    assert result["k2"] == (50, 51)


def test_the_order_of_simpy_timers_at_one_instant_does_not_matter(monkeypatch: pytest.MonkeyPatch):
    """SimPy with decreasing sequence numbers, so that of equal times the last scheduled event fires first."""
    tasks = graph(
        [kernel("k0", 0, "", "a b c"), kernel("k1", 4), kernel("k2", 4), kernel("k3", 1, "a b c")],
        [block("a", 4), block("b", 2), block("c", 2)],
    )
    code = {
        COMPUTE: [
            *(Acquire((0, 1, 2)), Launch(0), Signal(0), Launch(1), Signal(1), Await(2), Launch(2)),
            *(Await(3), Launch(3), Release((0, 1, 2))),
        ],
        D2H: [
            *(Await(0), Acquire((0, 1, 2), HOST), Copy(0, DEVICE, HOST), Copy(1, DEVICE, HOST), Signal(2)),
            *(Copy(2, DEVICE, HOST), Release((2,), HOST), Signal(4)),
        ],
        H2D: [
            *(Await(2), Copy(0, HOST, DEVICE), Release((0,), HOST), Copy(1, HOST, DEVICE), Release((1,), HOST)),
            *(Await(4), Signal(3)),
        ],
    }
    for duplex in Duplex:
        for engines in (1, 2):
            on = node(engines=engines, duplex=duplex)
            usual = list(run(program(code), tasks, on).timeline)
            with monkeypatch.context() as patch:
                begin = simpy.Environment.__init__

                def backwards(self, *given, begin=begin, **named):
                    begin(self, *given, **named)
                    self._eid = iter(range(10**9, 0, -1))

                patch.setattr(simpy.Environment, "__init__", backwards)
                assert list(run(program(code), tasks, on).timeline) == usual
