"""Kernels that access host memory: they end when compute and link traffic have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.analysis.breakdown import breakdown
from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.machine.remote import traffic_of
from simgpu.machine.run import MachineRun, run_program
from simgpu.memory.transfer import copy_ns
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.program.residency import in_host_memory
from simgpu.program.verify import verify
from simgpu.trace.model import Access, AccessOrder, Trace
from tests.semantics.hand_made import GB, block, graph, held, kernel, node, times
from tests.semantics.random_traces import traces


def run(tasks: TaskGraph, on: NodeSpec | None = None, *, iterations: int = 2) -> MachineRun:
    program = in_host_memory(lower(tasks, Placement(), recorded_lifetimes=True))
    verify(program, tasks, capacity=0)
    return run_program(program, tasks, on or node(), budget=0, iterations=iterations)


def one(ns: int, **more: object) -> TaskGraph:
    """A kernel that reads 100 bytes and writes 40."""
    tasks = graph([kernel("k", ns, "x", "y")], [held("x", 100), block("y", 40)])
    (only,) = tasks.trace.kernels
    return TaskGraph.of(replace(tasks.trace, kernels=(replace(only, **more),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("ns", "ends"), [(30, 100), (100, 100), (150, 150)])
def test_a_remote_kernel_ends_when_compute_and_traffic_have_ended(ns: int, ends: int):
    """At 1 GB/s, 100 bytes are read in 100 ns while 40 are written in 40 ns."""
    result = run(one(ns), iterations=1)
    assert result.timeline.iteration_ends_ns == (ends,)
    assert times(result) == {"k": (ends - ns, ends), "in:x": (0, 100), "out:y": (0, 40)}
    parts = breakdown(result.timeline)
    assert (parts.compute, parts.stalled_copies["h2d"], parts.total) == (ns, ends - ns, ends)


def test_a_remote_kernel_waits_for_the_slower_direction():
    result = run(one(10), node(out=GB // 4), iterations=1)
    assert result.timeline.iteration_ends_ns == (160,)
    assert breakdown(result.timeline).stalled_copies["d2h"] == 150


def test_both_directions_share_a_half_duplex_link():
    """Both at 0.5 GB/s until 40 bytes are written after 80 ns; then 60 bytes are left to read."""
    assert run(one(10), node(duplex=Duplex.HALF), iterations=1).timeline.iteration_ends_ns == (140,)


def test_recorded_traffic_replaces_sizes_exactly():
    assert traffic_of(one(10, dram_bytes=1401), 0) == ([(0, 1000)], [(1, 401)])
    assert run(one(10, dram_bytes=1401), iterations=1).timeline.iteration_ends_ns == (1000,)


def test_the_traffic_of_a_walk_is_its_sectors():
    trace = one(10).trace
    walks = (
        Access("k", "x", False, AccessOrder.RANDOM, 2, entries=9),
        Access("k", "y", True, AccessOrder.RANDOM, 1, 3),
    )
    assert traffic_of(TaskGraph.of(replace(trace, accesses=walks)), 0) == ([(0, 9 * 64)], [(1, 3 * 32)])


def test_all_blocks_are_in_pinned_host_memory_and_none_on_the_device():
    result = run(one(10))
    assert result.timeline.memory("host").live.max() == 140
    assert result.timeline.memory("device").live.max() == result.high_water == 0
    with pytest.raises(OutOfMemoryError, match="out of host memory"):
        run(one(10), node(host=139))


def test_kernels_of_several_streams_share_the_link():
    tasks = graph([kernel("k1", 1, "x"), kernel("k2", 1, "y", stream=1)], [held("x", 100), held("y", 100)])
    result = run(tasks, iterations=1)
    assert times(result) == {"k1": (199, 200), "k2": (199, 200), "in:x": (0, 200), "in:y": (0, 200)}
    assert {s.stream for s in result.timeline if s.label == "copy_h2d"} == {"h2d", "h2d1"}


@settings(deadline=None, max_examples=40)
@given(traces(), st.integers(1, 3 * GB), st.integers(1, 3 * GB), st.integers(0, 20))
def test_an_iteration_sums_the_longest_of_compute_reads_and_writes_per_kernel(
    trace: Trace, out: int, back: int, latency: int
):
    tasks = TaskGraph.of(trace)
    result = run(tasks, node(out=out, back=back, latency=latency))
    expected = 0
    for k, duration in enumerate(tasks.durations):
        read, written = (sum(tasks.sizes[b] for b in blocks) for blocks in (tasks.reads[k], tasks.writes[k]))
        ways = [copy_ns(size, rate, latency) for size, rate in ((read, back), (written, out)) if size]
        expected += max([duration, *ways])
    assert result.timeline.iteration_ends_ns == (expected, 2 * expected)
    assert result.steady is True


@settings(deadline=None, max_examples=40)
@given(traces(streams=3), st.integers(1, 2 * GB), st.integers(0, 2 * GB), st.sampled_from(Duplex))
def test_the_breakdown_of_a_remote_run_adds_up(trace: Trace, out: int, back: int, duplex: Duplex):
    tasks = TaskGraph.of(trace)
    result = run(tasks, node(out=out, back=back + 1, duplex=duplex))
    start, end = result.timeline.window(-1)
    parts = breakdown(result.timeline)
    assert parts.total == end - start >= max(tasks.durations)
    moved = sum(s.bytes for s in result.timeline if s.label == "copy_h2d" and s.iteration == 1)
    assert moved == sum(tasks.sizes[b] for reads in tasks.reads for b in reads)
