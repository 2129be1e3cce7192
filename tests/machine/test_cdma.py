"""A compressing DMA engine: copies are limited by link, engine and memory, and kernels are not slowed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.dram import dram_demands
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.semantics.hand_made import GB, node, run, times

ENGINE = CdmaSpec("zvc", 200 * GB, buffer=70_000, latency_ns=350, kernel_bandwidth=100 * GB)


def titan_x(engine: CdmaSpec = ENGINE, link: int = 16 * GB, dram: int = 336 * GB) -> NodeSpec:
    plain = node(10**12, out=link, back=link)
    return replace(plain, gpu=replace(plain.gpu, cdma=engine, dram_bandwidth=dram))


def swapped(trace: Trace, small: int, on: NodeSpec) -> tuple[int, int]:
    """Offload and prefetch times of the first layer's input if it has `small` bytes on the link."""
    graph = TaskGraph.of(trace)
    x = graph.block("x1")
    graph = replace(graph, copy_sizes=tuple(small if b == x else size for b, size in enumerate(graph.copy_sizes)))
    last = len(graph.kernels) - 1
    result = times(run(lower(graph, Placement((Swap(x, 0, last, last),))), graph, on))
    (out, out_end), (into, back) = result["out:x1"], result["in:x1"]
    return out_end - out, back - into


def idle(size: int) -> Trace:
    return chain([5, 5], [5, 5], [size, 1])


@pytest.mark.parametrize(
    ("ratio", "slower"),
    [(1, 1), (Fraction(13, 5), 1), (Fraction(25, 2), 1), (20, Fraction(320, 200)), (32, Fraction(512, 200))],
)
def test_a_copy_slows_by_its_read_demand_over_the_read_bandwidth(ratio: Fraction, slower: Fraction):
    """cDMA section VI: by COMP_BW / DRAM_BW, the latter 200 GB/s at most and 336 - 100 GB/s on a Titan X."""
    raw = 3_200_000_000
    small = int(raw / ratio)
    assert swapped(idle(raw), small, titan_x()) == (ceil(Fraction(small, 16) * slower),) * 2


def test_memory_bandwidth_left_by_kernels_limits_the_engine():
    raw, small = 2_000_000_000, 100_000_000
    assert swapped(idle(raw), small, titan_x(dram=250 * GB))[0] == -(-raw // 150)
    assert swapped(idle(raw), small, titan_x(dram=548 * GB))[0] == raw // 200


def test_a_small_buffer_throttles_the_engine():
    """Bandwidth times latency: half the buffer reads half as fast."""
    raw, small = 2_000_000_000, 100_000_000
    assert swapped(idle(raw), small, titan_x(replace(ENGINE, buffer=35_000)))[0] == raw // 100


def test_the_bandwidth_aware_policy_reads_no_faster_than_its_threshold():
    """At 48 GB/s and a 16 GB/s link the speedup is at most three."""
    aware = titan_x(replace(ENGINE, throttle=48 * GB))
    raw = 480_000_000
    assert swapped(idle(raw), raw // 2, aware)[0] == raw // 2 // 16
    assert swapped(idle(raw), raw // 10, aware)[0] == raw // 48


def test_a_copy_is_never_slower_than_without_the_engine():
    raw = 160_000_000
    starved = titan_x(replace(ENGINE, kernel_bandwidth=336 * GB))
    assert swapped(idle(raw), raw // 4, starved)[0] == raw // 16
    assert swapped(idle(raw), raw + raw // 32, titan_x())[0] == (raw + raw // 32) // 16


def test_kernels_keep_their_speed_and_copies_use_the_remaining_bandwidth():
    """20 us during a kernel that leaves 36 GB/s to read, then at the engine's full rate."""
    raw, small = 6_720_000, 336_000
    trace = idle(raw)
    busy = replace(trace.kernels[1], duration_ns=20_000, dram_bytes=300 * 20_000)
    rest = [replace(k, dram_bytes=0) for k in (trace.kernels[0], *trace.kernels[2:])]
    trace = replace(trace, kernels=(rest[0], busy, *rest[1:]))
    graph = TaskGraph.of(trace)
    x = graph.block("x1")
    graph = replace(graph, copy_sizes=tuple(small if b == x else size for b, size in enumerate(graph.copy_sizes)))
    result = times(run(lower(graph, Placement((Swap(x, 0, 3, 2),))), graph, titan_x()))
    assert result["F2"] == (5, 20_005)
    assert result["out:x1"] == (5, 20_005 + (raw - 36 * 20_000) // 200)


def test_a_kernel_without_recorded_traffic_uses_the_constant_of_the_engine():
    """F2 takes 214 of 250 GB/s by its record, so it leaves 36 to read; F3 has no record, so it leaves 250 - 100.

    After the 20 us of F2 720,000 of 6,720,000 bytes have been read. The rest takes 40 us of the 50 us of F3.
    """
    raw, small = 6_720_000, 336_000
    trace = chain([5, 20_000, 50_000], [5, 5, 5], [raw, 1, 1])
    recorded = replace(trace.kernels[1], dram_bytes=214 * 20_000)
    trace = replace(trace, kernels=(trace.kernels[0], recorded, *trace.kernels[2:]))
    assert swapped(trace, small, titan_x(dram=250 * GB))[0] == 20_000 + 40_000


def test_without_recorded_traffic_no_kernel_has_its_own_demand():
    assert dram_demands(TaskGraph.of(idle(1)), ENGINE) is None


loads = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 400)), min_size=2, max_size=6)


@settings(deadline=None)
@given(loads, st.integers(1, 400_000), st.integers(1, 40), st.integers(1, 40))
def test_progress_of_copies_during_kernels_follows_their_rates(
    kernels: list[tuple[int, int]], raw: int, smaller: int, link: int
):
    """Each nanosecond sends at the bandwidth left by its kernel, summed exactly in fractions."""
    small = max(raw // smaller, 1)
    forward = [(5, 0), *kernels]
    trace = chain([ns for ns, _ in forward], [5] * len(forward), [raw] + [1] * len(kernels))
    message = tuple(
        replace(k, dram_bytes=load * ns) for k, (ns, load) in zip(trace.kernels, forward, strict=False)
    ) + tuple(replace(k, dram_bytes=0) for k in trace.kernels[len(forward) :])
    on = titan_x(link=link * GB)
    left, now = Fraction(small), 5
    for ns, load in kernels:
        rate = max(min(link * GB, max(min(200 * GB, (336 - load) * GB), link * GB) * small // raw), 1)
        if left <= Fraction(rate * ns, GB):
            left, now = Fraction(0), now + ceil(left * GB / rate)
            break
        left, now = left - Fraction(rate * ns, GB), now + ns
    if left:
        now += ceil(left * GB / max(min(link * GB, max(200 * GB, link * GB) * small // raw), 1))
    assert swapped(replace(trace, kernels=message), small, on)[0] == now - 5
