"""Contents of compressed memory during an iteration, compared with counts by hand."""

from __future__ import annotations

from dataclasses import replace

from simgpu.compression.buddy.drift import OccupancySample, moments_of
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import RELEASED_AT_END
from tests.compression.buddy.compressible import buddy_node, with_histograms
from tests.semantics.hand_made import block, graph, kernel


def two_kernels() -> TaskGraph:
    """The first kernel writes x, a tenth of whose entries overflow, the second writes y, uncompressed; both stay."""
    blocks = [block(name, 1280, release=RELEASED_AT_END) for name in ("x", "y")]
    plain = graph([kernel("k1", 100, writes="x"), kernel("k2", 100, writes="y")], blocks)
    return task_graph(with_histograms(plain.trace, {"x": (0, 0, 0, 9, 0, 0, 0, 1)}), buddy_node())


def test_drift_samples_are_at_equal_intervals_of_time():
    tasks = two_kernels()
    early, late = moments_of(replace(tasks, durations=(100, 100)), parts=2)
    assert early == OccupancySample(bytes=1280, device=320, entries=10, overflowing=1)
    assert late == OccupancySample(bytes=2560, device=1600, entries=20, overflowing=1)
    assert moments_of(replace(tasks, durations=(300, 100)), parts=4) == (early, early, early, late)


def test_repeated_kernels_count_with_all_their_repetitions():
    tasks = replace(two_kernels(), durations=(100, 100))
    early, late = moments_of(tasks, parts=2)
    repeated = replace(tasks, rounds=(Round(0, 1, 3), Round(1, 2, 1)))
    assert moments_of(repeated, parts=4) == (early, early, early, late)
