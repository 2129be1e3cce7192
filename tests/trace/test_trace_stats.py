"""Statistics of a small trace, compared with counts by hand."""

from __future__ import annotations

from dataclasses import replace

from simgpu.trace.model import BlockKind, Phase, SparsitySample
from simgpu.trace.stats import KindStats, Peak, PhaseStats, SparsityStats, trace_stats
from tests.trace.small import SMALL

#: Alive while each kernel of the small trace runs, over needed lifetimes: x 16 until k4, w 8 always, y 64 from k1 to
#: k4, s 8 in k3, z 4 in k3 and k4, g 8 from k4 to k5, t 32 in k4.
NEEDED = [16 + 8 + 64, 16 + 8 + 64, 16 + 8 + 64 + 8 + 4, 16 + 8 + 64 + 4 + 8 + 32, 8 + 8]


def test_blocks_and_bytes_are_counted_by_kind():
    stats = trace_stats(SMALL)
    assert (stats.kernels, stats.compute_ns, stats.streams, stats.layers) == (5, 360, 1, 1)
    assert stats.phases == (
        PhaseStats(Phase.FORWARD, 3, 150),
        PhaseStats(Phase.BACKWARD, 1, 200),
        PhaseStats(Phase.OPTIMIZER, 1, 10),
    )
    assert KindStats(BlockKind.ACTIVATION, 2, 68) in stats.kinds
    assert (stats.blocks, stats.block_bytes) == (7, 140)
    assert (stats.constants, stats.constant_bytes) == (3, 32)
    assert [block.id for block in stats.biggest[:2]] == ["y", "t"]
    assert (stats.activations, stats.sparsity_blocks) == (2, 1)
    assert (stats.pure, stats.impure) == (2, 1)


def test_peaks_are_given_for_needed_and_recorded_lifetimes():
    stats = trace_stats(SMALL)
    assert stats.peak_needed == Peak(max(NEEDED), "k4")
    assert stats.peak_recorded == Peak(max(NEEDED), "k4")
    blocks = [replace(block, release="end") if block.id == "y" else block for block in SMALL.blocks]
    longer = trace_stats(replace(SMALL, blocks=tuple(blocks)))
    assert longer.peak_recorded == longer.peak_needed == stats.peak_needed
    stored = [replace(block, bytes=1000) if block.id == "z" else block for block in blocks]
    assert trace_stats(replace(SMALL, blocks=tuple(stored))).peak_recorded == Peak(996 + max(NEEDED), "k4")


def test_recorded_lifetimes_can_exceed_needed_ones():
    blocks = [replace(block, release="k4") if block.id == "s" else block for block in SMALL.blocks]
    stats = trace_stats(replace(SMALL, blocks=tuple(blocks)))
    assert stats.peak_recorded == Peak(8 + max(NEEDED), "k4")
    assert stats.peak_needed == Peak(max(NEEDED), "k4")


def test_unknown_lifetimes_have_no_recorded_peak():
    blocks = [replace(block, release=None) if block.id == "z" else block for block in SMALL.blocks]
    stats = trace_stats(replace(SMALL, blocks=tuple(blocks)))
    assert (stats.lifetimes_known, stats.lifetimes_expected) == (3, 4)
    assert stats.peak_recorded is None
    assert dict(stats.summary_rows())["peak, recorded lifetimes"] == "lifetimes not recorded"


def test_summary_rows_are_formatted_text():
    stats = trace_stats(SMALL)
    assert dict(stats.summary_rows())["peak, released at last use"] == "132 B (132 bytes) at kernel k4"
    assert stats.phase_rows()[0] == ("forward", "3", "150 ns")
    assert stats.biggest_rows()[0] == ("y", "activation", "64 B")
    assert sum(int(row[1]) for row in stats.kind_rows()) == stats.blocks


def test_the_total_spread_is_given_if_every_kernel_has_one():
    assert dict(trace_stats(SMALL).summary_rows())["spread over repetitions"] == "not recorded"
    spreads = [10, 0, 5, 20, 1]
    kernels = [replace(kernel, iqr_ns=spread) for kernel, spread in zip(SMALL.kernels, spreads, strict=True)]
    stats = trace_stats(replace(SMALL, kernels=tuple(kernels)))
    assert stats.iqr_ns == 36
    reported = "36 ns summed over kernels, 10.0% of compute; widest k4, 20 ns of 200 ns"
    assert dict(stats.summary_rows())["spread over repetitions"] == reported
    some = (replace(kernels[0], iqr_ns=None), *kernels[1:])
    assert trace_stats(replace(SMALL, kernels=some)).iqr_ns is None


def test_framework_peak_is_shown_with_the_recorded_peak():
    assert dict(trace_stats(SMALL).summary_rows())["peak, framework's allocator"] == "not recorded"
    info = replace(SMALL.info, framework_peak_bytes=2 * max(NEEDED))
    reported = dict(trace_stats(replace(SMALL, info=info)).summary_rows())["peak, framework's allocator"]
    assert reported == "264 B (264 bytes), 2.000 of that over recorded lifetimes"


def test_epochs_with_measured_sparsity_are_counted():
    stats = trace_stats(SMALL)
    assert dict(stats.summary_rows())["feature maps with sparsity"] == "1 of 2, at 2 epochs"
    assert stats.sparsity_rows() == [("y", "50.0%", "50.0%", "62.0%", "62.0%")]
    rows = [SparsitySample("y", epoch, share) for epoch, share in ((4, 0.3), (0, 0.1), (2, 0.0))]
    dense = [SparsitySample("z", epoch, 0.0) for epoch in (0, 2)]
    moved = trace_stats(replace(SMALL, sparsity=(*rows, *dense)))
    assert moved.sparsity == (SparsityStats("y", first=0.1, lowest=0.0, highest=0.3, last=0.3),)
    assert trace_stats(replace(SMALL, sparsity=SMALL.sparsity[:1])).sparsity_rows() == []
