"""Modelled memory-entries of sparse feature maps: the shipped table and its use on traces."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import simgpu
from simgpu.compression.codecs.entry_patterns import (
    SIDES,
    SPARSITY,
    entry_shares,
    load_entry_patterns,
    shares_of_side,
    with_sparse_entries,
)
from simgpu.trace.check import check_trace
from simgpu.trace.entries import entries_of, histograms
from simgpu.trace.model import BlockKind, SparsitySample, Trace
from simgpu.workloads.compressibility.generator import with_compressibility
from simgpu.workloads.compressibility.roles import roles_of
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import with_sparsity


@pytest.fixture(scope="module")
def alexnet() -> Trace:
    trace = build_trace("alexnet", batch=16, gpu=simgpu.load_node("buddy-gpu").gpu)
    return with_sparse_entries(with_sparsity(with_compressibility(trace), epochs=3))


@pytest.mark.slow
def test_the_shipped_table_matches_synthetic_activations() -> None:
    known = load_entry_patterns()
    assert list(known.sparsity) == list(SPARSITY)
    assert known.sides == SIDES
    for side in (7, 28):
        assert known.shares[SIDES.index(side)] == shares_of_side(side)


def test_shares_at_table_points_equal_the_table() -> None:
    known = load_entry_patterns()
    for place, side in enumerate(known.sides):
        shares = entry_shares(known.sparsity[7], (2, 3, side, side))
        assert shares == pytest.approx(known.shares[place][7])


def test_shares_are_interpolated_between_table_points() -> None:
    low, high = entry_shares(0.6, (1, 1, 14, 14)), entry_shares(0.7, (1, 1, 14, 14))
    between = entry_shares(0.65, (1, 1, 14, 14))
    assert between == pytest.approx([(a + b) / 2 for a, b in zip(low, high, strict=True)])
    assert sum(between) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("shape", [(8, 64, 28, 28), (8, 64, 7, 7), (64, 4096), None])
def test_more_zeros_leave_fewer_incompressible_entries(shape: tuple[int, ...] | None) -> None:
    raw = [entry_shares(zeros / 20, shape)[-1] for zeros in range(8, 21)]
    assert raw[-1] == 0
    assert all(later <= earlier for earlier, later in pairwise(raw))


def test_a_trace_gets_valid_histograms_for_sparse_blocks(alexnet: Trace) -> None:
    assert check_trace(alexnet) == []
    blocks = alexnet.block_by_id
    result = histograms(alexnet.compressibility)
    for sample in alexnet.sparsity:
        histogram = result[sample.block, sample.epoch]
        assert sum(histogram.values()) == entries_of(blocks[sample.block])
        zeros = entry_shares(sample.sparsity, blocks[sample.block].shape)[0]
        assert histogram.get(0, 0) == pytest.approx(zeros * entries_of(blocks[sample.block]), rel=1e-3, abs=1)


def test_gradients_through_a_relu_have_the_zeros_of_its_result(alexnet: Trace) -> None:
    roles, result = roles_of(alexnet), histograms(alexnet.compressibility)
    masked = [
        block
        for block in alexnet.blocks
        if block.kind is BlockKind.GRADIENT and roles.get(block.id, "").startswith("gradient.relu")
    ]
    assert masked
    for block in masked:
        writer = next(kernel for kernel in reversed(alexnet.kernels) if block.id in kernel.writes)
        (saved,) = [
            name for name in writer.reads if (name, 0) in result and name != block.id and name in sparse(alexnet)
        ]
        zeros, full = result[block.id, 2].get(0, 0), entries_of(block)
        assert zeros / full == pytest.approx(
            result[saved, 2].get(0, 0) / entries_of(alexnet.block_by_id[saved]), abs=1e-2
        )


def sparse(trace: Trace) -> set[str]:
    return {sample.block for sample in trace.sparsity}


def test_other_blocks_keep_their_histograms(alexnet: Trace) -> None:
    before = with_compressibility(replace(alexnet, compressibility=()))
    retained = [row for row in before.compressibility if alexnet.block_by_id[row.block].kind is BlockKind.WEIGHT]
    assert set(retained) <= set(alexnet.compressibility)


def test_a_trace_without_sparsity_is_unchanged() -> None:
    trace = with_compressibility(build_trace("alexnet", batch=2, gpu=simgpu.load_node("buddy-gpu").gpu))
    assert with_sparse_entries(trace).compressibility == trace.compressibility
    description = replace(trace, sparsity=(SparsitySample(trace.kernels[0].writes[0], 4, 1.0),))
    rows = [
        row for row in with_sparse_entries(description).compressibility if row.block == description.sparsity[0].block
    ]
    assert [(row.epoch, row.bytes) for row in rows] == [(4, 0)]
