"""Kernels that share a link with copies and other kernels: by hand, and compared with closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy.traffic import link_ns
from simgpu.graph.compressed import NO_DEMAND, CompressedMemory, Demand
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import BuddyMode, Duplex, LinkSpec, NodeSpec
from simgpu.machine import run as machine
from simgpu.machine.buddy import SharedBuddyLink, shared_link
from simgpu.machine.run import run_program
from simgpu.program.instructions import DEVICE, HOST, Acquire, Copy, InitialContents, Launch, Program, Release, Segment
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.simulation.tasks import task_graph
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import Kernel
from tests.compression.buddy.compressible import buddy_node, buddy_nodes, compressible, with_buddy
from tests.semantics.hand_made import GB, graph, held, kernel, run, times
from tests.semantics.networks import several
from tests.semantics.random_traces import traces

HALF = LinkSpec("bus", GB, GB, 0, Duplex.HALF)
FAST_HALF = LinkSpec("bus", 3 * GB, 3 * GB, 0, Duplex.HALF)
FULL = LinkSpec("wire", GB, GB)
HOST = HOST

many = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))


def linked(
    tasks: TaskGraph,
    on: NodeSpec,
    moves: Mapping[str, tuple[int, int]],
    *,
    overflow: Mapping[str, int] | None = None,
    hidden: float = 0,
) -> TaskGraph:
    """The tasks, with these bytes read and written in buddy memory by kernels, and with these overflowing blocks."""
    assert on.gpu.buddy is not None
    link = on.gpu.buddy.link or on.link
    demands = []
    for each in tasks.kernels:
        read, written = moves.get(each.id, (0, 0))
        demands.append(Demand(0, 0, read, written, link_ns(read, written, link)) if read + written else NO_DEMAND)
    beyond = tuple((overflow or {}).get(block.id, 0) for block in tasks.blocks)
    count = len(tasks.blocks)
    memory = CompressedMemory(
        tuple(demands),
        tasks.durations,
        (128,) * count,
        (0,) * count,
        beyond,
        (0,) * count,
        int(hidden * 10**6),
    )
    alone = tuple(map(memory.alone_ns, range(len(tasks.kernels))))
    return replace(tasks, durations=alone, compressed=memory)


def in_turn(*kernels: Kernel) -> TaskGraph:
    """Kernels that access one block."""
    return graph(kernels, [held("x", 100)])


def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces the code path of shared links even if nothing shares the link."""

    def always(program: Program, tasks: TaskGraph, on: NodeSpec) -> SharedBuddyLink | None:
        return None if tasks.compressed is None or on.gpu.buddy is None else SharedBuddyLink(tasks.compressed)

    monkeypatch.setattr(machine, "shared_link", always)


# --- a kernel alone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    ("hidden", "moves", "end"),
    [
        (0, (300, 0), 400),
        (0, (0, 300), 400),
        (0, (300, 200), 400),
        (0.5, (300, 0), 350),
        (1, (300, 0), 300),
        (1, (30, 0), 100),
        (0.25, (30, 5), 105),
        (0.25, (25, 5), 100),
    ],
)
def test_a_kernel_ends_when_compute_and_traffic_have_ended(
    monkeypatch: pytest.MonkeyPatch, hidden: float, moves: tuple[int, int], end: int, forced: bool
):
    """100 ns on the device; a byte takes a nanosecond, in each direction."""
    on = buddy_node()
    tasks = linked(in_turn(kernel("k", 100, "x"), kernel("l", 7, "x")), on, {"k": moves}, hidden=hidden)
    if forced:
        shared(monkeypatch)
    assert times(run(lower(tasks, Placement()), tasks, on)) == {"k": (0, end), "l": (end, end + 7)}


@pytest.mark.parametrize("own", [None, HALF, LinkSpec("odd", GB, GB + 1, 0, Duplex.HALF)])
def test_on_a_half_duplex_link_both_directions_share_the_capacity(
    monkeypatch: pytest.MonkeyPatch, own: LinkSpec | None
):
    on = buddy_node(link=own)
    on = on if own else replace(on, link=HALF)
    tasks = linked(in_turn(kernel("k", 100, "x")), on, {"k": (300, 200)})
    assert times(run(lower(tasks, Placement()), tasks, on)) == {"k": (0, 600)}
    shared(monkeypatch)
    assert times(run(lower(tasks, Placement()), tasks, on))["k"][1] in (600, 601)


@many
@given(st.data(), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_kernel_alone_on_the_link_matches_the_closed_form(data: st.DataObject, overlap: float):
    built = data.draw(compressible(traces()))
    on = data.draw(buddy_nodes(overlap=overlap, mode=BuddyMode.CAPACITY))
    tasks = task_graph(built, on)
    assert tasks.compressed is not None
    program = lower(tasks, Placement(), recorded_lifetimes=True)
    assert shared_link(program, tasks, on) is None
    quick = times(run_program(program, tasks, on, budget=None, iterations=1))
    with pytest.MonkeyPatch.context() as patch:
        shared(patch)
        slow = times(run_program(program, tasks, on, budget=None, iterations=1))
    assert slow == quick


# --- kernels and copies ---------------------------------------------------------------------------------------


def copying(tasks: TaskGraph, on: NodeSpec, size: int, **more: object) -> dict[str, tuple[int, int]]:
    """Kernels in turn on the compute stream, and an offload of block x from the beginning."""
    x = tasks.block("x")
    streams = {
        StreamId(0, "compute"): tuple(Launch(k) for k in range(len(tasks.kernels))),
        StreamId(0, "d2h"): (Acquire((x,), HOST), Copy(x, DEVICE, HOST), Release((x,), HOST)),
    }
    tasks = replace(tasks, copy_sizes=tuple(size if b == x else 0 for b in range(len(tasks.blocks))))
    return times(run(Program((Segment(streams),), tuple(range(len(tasks.blocks)))), tasks, on))


def test_a_writing_kernel_shares_the_d2h_direction_with_an_offload():
    """The copy is alone for 50 ns; then each has half; the copy ends, and the kernel transfers the rest alone."""
    on = buddy_node()
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (0, 100)})
    assert copying(tasks, on, 100) == {"out:x": (0, 150), "k": (0, 200)}


def test_a_reading_kernel_is_not_slowed_by_an_offload_on_a_full_duplex_link():
    on = buddy_node()
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (100, 0)})
    assert copying(tasks, on, 100) == {"out:x": (0, 100), "k": (0, 150)}


def test_a_reading_kernel_shares_a_half_duplex_link_with_an_offload():
    on = replace(buddy_node(), link=HALF)
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (100, 0)})
    assert copying(tasks, on, 100) == {"out:x": (0, 150), "k": (0, 200)}


def test_three_flows_on_a_half_duplex_link_get_a_third_each():
    """At 3 B/ns: read, write and copy transfer 30 B each until 30; then read and copy transfer 60 more at half each."""
    on = replace(buddy_node(overlap=1.0), link=FAST_HALF)
    tasks = linked(in_turn(kernel("k", 10, "x")), on, {"k": (90, 30)}, hidden=1)
    assert copying(tasks, on, 90) == {"out:x": (0, 70), "k": (0, 70)}


def test_a_separate_buddy_link_is_not_shared_with_copies():
    on = buddy_node(link=FULL)
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (0, 100)})
    assert copying(tasks, on, 100) == {"out:x": (0, 100), "k": (0, 150)}


def test_a_copy_of_sectors_in_buddy_memory_also_uses_the_buddy_link():
    """100 B to the host in 100 ns, expanded from 250 B of buddy memory over a separate link in 250 ns."""
    on = buddy_node(link=FULL)
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (10, 0)}, overflow={"x": 250})
    # The kernel's 10 bytes share the link from 50 to 70.
    assert copying(tasks, on, 100) == {"k": (0, 70), "out:x": (0, 260)}


def test_a_buddy_copy_over_the_node_link_uses_both_directions():
    on = buddy_node()
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (10, 0)}, overflow={"x": 40})
    assert copying(tasks, on, 100) == {"k": (0, 60), "out:x": (0, 100)}


def test_a_buddy_copy_over_a_half_duplex_link_shares_one_capacity():
    """At 3 B/ns: 75 B each way until 50; a third each for the kernel's 30 B; 15 B in by 90; then 180 B out."""
    on = replace(buddy_node(), link=FAST_HALF)
    tasks = linked(in_turn(kernel("k", 50, "x")), on, {"k": (30, 0)}, overflow={"x": 120})
    assert copying(tasks, on, 300) == {"k": (0, 80), "out:x": (0, 150)}


def test_a_buddy_copy_uses_the_buddy_link_even_if_no_kernel_does():
    on = buddy_node(link=FULL)
    assert copying(linked(in_turn(kernel("k", 50, "x")), on, {}, overflow={"x": 250}), on, 100)["out:x"] == (0, 250)


def test_a_copy_waits_for_its_latency_and_the_kernel_does_not():
    on = buddy_node()
    on = replace(on, link=replace(on.link, latency_ns=30))
    tasks = linked(in_turn(kernel("k", 10, "x")), on, {"k": (0, 100)})
    # Alone from 10 to 30 (20 bytes); shared until the kernel's other 80 have ended at 190; the copy's rest alone.
    assert copying(tasks, on, 100) == {"k": (0, 190), "out:x": (0, 210)}


def test_a_prefetch_writes_overflowing_sectors_to_buddy_memory():
    on = buddy_node(link=FULL)
    tasks = linked(
        graph([kernel("k", 10, "x"), kernel("m", 5), kernel("l", 10, "x")], [held("x", 100)]),
        on,
        {"m": (1, 1)},
        overflow={"x": 400},
    )
    result = times(run(lower(tasks, Placement((Swap(0, 0, 2, 2),))), tasks, on))
    assert result["out:x"] == (10, 410 + 1), "a byte of m comes in next to it"
    assert result["in:x"] == (411, 811)
    assert result["l"] == (811, 821)


# --- kernels and kernels --------------------------------------------------------------------------------------


def test_kernels_on_two_streams_share_the_link():
    tasks = graph(
        [kernel("a", 10, "x"), kernel("b", 40, "y", stream=1), kernel("c", 5, "x")], [held("x", 8), held("y", 8)]
    )
    on = buddy_node()
    tasks = linked(tasks, on, {"a": (100, 0), "b": (100, 0), "c": (0, 50)})
    # a alone from 10 to 40 (30 B); then both at half: a's 70 B until 180; b has 30 B left, alone until 210.
    assert times(run(lower(tasks, Placement()), tasks, on)) == {"a": (0, 180), "b": (0, 210), "c": (180, 235)}


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("own", [None, FULL])
def test_gpus_share_their_switch_unless_buddy_memory_has_separate_links(gpus: int, own: LinkSpec | None):
    names = [f"x{gpu}" for gpu in range(gpus)]
    on = with_buddy(several(gpus), link=own)
    tasks = graph([kernel(f"k{name}", 20, name) for name in names], [held(name, 8) for name in names])
    tasks = linked(tasks, on, {each.id: (100, 0) for each in tasks.kernels})
    segment = Segment({StreamId(gpu, "compute"): (Launch(gpu),) for gpu in range(gpus)})
    program = Program(
        (segment,), (0,), other_contents=tuple(InitialContents(DEVICE, (gpu,), gpu) for gpu in range(1, gpus))
    )
    ends = {end for _, end in times(run_program(program, tasks, on, budget=1000, iterations=1)).values()}
    assert ends == {20 + 100 * (gpus if own is None else 1)}


@pytest.mark.parametrize("forced", [False, True])
def test_a_compressing_engine_uses_the_bandwidth_left_by_kernels(monkeypatch: pytest.MonkeyPatch, forced: bool):
    """The copy uses the memory bandwidth left by the running kernel, including its time on the link."""
    engine = CdmaSpec("zvc", 10 * GB, buffer=10**6, latency_ns=1, kernel_bandwidth=0)
    on = buddy_node(dram=10 * GB, link=FULL)
    on = replace(on, gpu=replace(on.gpu, cdma=engine), link=LinkSpec("fast", 2 * GB, 2 * GB))
    busy = replace(kernel("k", 100, "x"), dram_bytes=600 * 8)
    tasks = linked(graph([busy], [held("x", 1000)]), on, {"k": (500, 0)})
    assert tasks.durations == (600,)
    if forced:
        shared(monkeypatch)
    # The kernel uses 8 bytes per ns for 600 ns; the copy reads its 1000 B at 2 and sends 200 at 0.4: 500 ns.
    assert copying(tasks, on, 200) == {"k": (0, 600), "out:x": (0, 500)}


# --- when a link is shared --------------------------------------------------------------------------------------


def test_the_link_is_shared_only_if_kernels_and_copies_both_use_it():
    own, nodes_link = buddy_node(link=FULL), buddy_node()
    quiet = linked(in_turn(kernel("k", 1, "x"), kernel("m", 1), kernel("l", 1, "x")), own, {})
    busy = linked(in_turn(kernel("k", 1, "x"), kernel("m", 1), kernel("l", 1, "x")), own, {"m": (1, 0)})
    over = linked(
        in_turn(kernel("k", 1, "x"), kernel("m", 1), kernel("l", 1, "x")), own, {"m": (1, 0)}, overflow={"x": 1}
    )
    stay, move = lower(busy, Placement()), lower(busy, Placement((Swap(0, 0, 2, 2),)))
    assert shared_link(stay, busy, own) is shared_link(move, busy, own) is shared_link(stay, over, own) is None
    assert shared_link(move, quiet, nodes_link) is None
    assert shared_link(move, busy, nodes_link) is not None
    assert shared_link(move, over, own) is not None


def faster(on: NodeSpec, times: Fraction) -> NodeSpec:
    def link(of: LinkSpec) -> LinkSpec:
        return replace(of, d2h_bandwidth=int(of.d2h_bandwidth * times), h2d_bandwidth=int(of.h2d_bandwidth * times))

    assert on.gpu.buddy is not None
    own = on.gpu.buddy.link
    buddy = replace(on.gpu.buddy, link=None if own is None else link(own))
    return replace(on, link=link(on.link), gpu=replace(on.gpu, buddy=buddy))


@many
@given(st.data(), st.fractions(1, 5))
def test_a_faster_link_never_slows_a_run_of_one_stream_without_copies(data: st.DataObject, times: Fraction):
    on = data.draw(buddy_nodes())
    built = data.draw(compressible(traces()))
    result = []
    for where in (on, faster(on, times)):
        tasks = task_graph(built, where)
        program = lower(tasks, Placement(), recorded_lifetimes=True)
        result.append(run_program(program, tasks, where, budget=None, iterations=2).timeline.iteration_ends_ns)
    assert all(fast <= slow for slow, fast in zip(*result, strict=True))


def test_a_faster_link_may_slow_kernels_that_then_share_it():
    """An anomaly of fair sharing, no error: at 1 B/ns c has the link alone; at 1.25 B/ns b2 starts before c has ended.

    b1 transfers 4000 B, then a kernel computes for 1000 ns; c computes for 4000 ns, then transfers 1000 B.
    """
    built = graph(
        [
            kernel("c", 4000, "x"),
            kernel("b1", 0, "y", stream=1),
            kernel("m", 1000, "y", stream=1),
            kernel("b2", 0, "y", stream=1),
        ],
        [held("x", 8), held("y", 8)],
    )
    result = []
    for speed in (Fraction(1), Fraction(5, 4)):
        on = faster(buddy_node(), speed)
        tasks = linked(built, on, {"c": (1000, 0), "b1": (4000, 0), "b2": (4000, 0)})
        result.append(times(run(lower(tasks, Placement()), tasks, on)))
    assert (result[0]["b2"][0], result[0]["c"]) == (5000, (0, 5000))
    # 250 B in 200 ns; the other 750 B at half of 1.25 B/ns in 1200 ns.
    assert (result[1]["b2"][0], result[1]["c"]) == (4200, (0, 5400))
