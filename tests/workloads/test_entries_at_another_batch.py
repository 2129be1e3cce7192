"""Histograms of memory-entries: as rows, scaled, and at another batch of their trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.compression.codecs.costs import NodeCosts
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.entries import apportioned, entries_of, histograms, rows_of
from simgpu.trace.epochs import epochs_of, sizes_at
from simgpu.trace.model import Access, AccessOrder, CompressedSize, Trace
from simgpu.workloads.rescale import at_batch


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 10**12), st.floats(0, 1)), min_size=1, max_size=8).filter(lambda w: sum(w) > 0),
    st.integers(0, 10**12),
)
def test_apportioned_parts_are_integers_with_the_right_sum(weights: list[float], total: int) -> None:
    parts = apportioned(weights, total)
    full = sum(map(Fraction, weights))
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * Fraction(weight) / full) < 1
        assert part == 0 or weight > 0


def _measured() -> Trace:
    """A recording with synthetic histograms of all blocks at two epochs, and the size of a feature map in ZVC."""
    trace = simgpu.load_trace("vgg11-cifar-cpu")
    rows: list[CompressedSize] = []
    for place, block in enumerate(trace.blocks):
        for epoch in (0, 3):
            sizes = [ENTRY_SIZES[(place + step + epoch) % 8] for step in range(3)]
            counts = apportioned([5, 2, 1], entries_of(block))
            rows += rows_of(block.id, epoch, dict(zip(sizes, counts, strict=True)))
    other = CompressedSize("conv1_1:convolution", 0, "zvc", "nchw", 8388608, 4000000, 1)
    return replace(trace, compressibility=(*rows, other))


def test_another_batch_has_the_same_shares_of_its_own_entries() -> None:
    trace = _measured()
    for batch in (8, 64, 4096):
        other = at_batch(trace, batch)
        assert check_trace(other) == []
        counted: defaultdict[tuple[str, int], int] = defaultdict(int)
        for (block, epoch), histogram in histograms(other.compressibility).items():
            counted[block, epoch] = sum(histogram.values())
        assert counted == {(block.id, epoch): entries_of(block) for block in other.blocks for epoch in (0, 3)}
        assert "Histograms of compressed memory-entries are scaled in proportion to their blocks" in other.info.notes
        assert {row.codec for row in other.compressibility} == {"bpc"}, "sizes of whole blocks are of their batch alone"
    assert "memory-entries" not in at_batch(simgpu.load_trace("vgg11-cifar-cpu"), 8).info.notes


def test_histograms_scale_with_the_batch_in_every_size() -> None:
    trace = _measured()
    small, large = (histograms(each.compressibility) for each in (trace, at_batch(trace, 64)))
    for name in ("conv1_1:convolution", "fc6.weight"):
        factor = 1 if "weight" in name else 2
        assert large[name, 0] == {size: factor * count for size, count in sorted(small[name, 0].items())}


def test_rows_with_entries_only_give_epochs_without_block_sizes() -> None:
    trace = replace(_measured(), sparsity=())
    trace = replace(trace, compressibility=trace.compressibility[:-1])
    assert epochs_of(trace) == (0, 3)
    costs = NodeCosts(trace, simgpu.load_node("v100"), epoch=2)
    assert not any(costs.is_known(block, codec) for block in trace.blocks for codec in ("zvc", "csr", "rle", "zlib"))
    at = histograms(row for rows in sizes_at(trace, 2).values() for row in rows)
    assert at == {key: result for key, result in histograms(trace.compressibility).items() if key[1] == 0}
    assert simgpu.simulate(trace, simgpu.load_node("v100"), "vdnn").iteration_ns > 0
    with pytest.raises(InputError, match="the trace has neither sparsity nor compressed sizes, which static needs"):
        simgpu.simulate(trace, simgpu.load_node("v100"), "static")


def test_accesses_keep_their_relative_start_at_another_batch() -> None:
    trace = simgpu.load_trace("vgg11-cifar-cpu")
    kernel = next(each for each in trace.kernels if each.reads and "conv1_1:convolution" in each.reads)
    had = entries_of(trace.block_by_id["conv1_1:convolution"])
    for first, expected in ((0, 0), (had // 4, had // 2), (had - 1, 2 * (had - 1))):
        walk = Access(kernel.id, "conv1_1:convolution", False, AccessOrder.STRIDED, 4, had // 2, 8, first)
        description = replace(trace, accesses=(walk,))
        assert at_batch(description, 2 * trace.info.batch).accesses == (replace(walk, entries=had, first=expected),)
        for batch in (1, 3, 7):
            assert check_trace(at_batch(description, batch)) == []
