"""The checks of cDMA's claims against cases by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simgpu.compression.codecs.measure import LAYOUTS
from simgpu.compression.codecs.patterns import modelled_bytes
from simgpu.papers.checks.cdma_maps import Pool, ZeroPattern, max_pooled, overlapping_pools, with_sizes
from simgpu.papers.checks.cdma_ratios import behind, compressed, offloaded, rle_prefers, rle_worst, trained
from simgpu.papers.checks.cdma_speed import reading_at
from simgpu.papers.checks.cdma_traces import study
from simgpu.papers.reproduce import reproduce
from simgpu.papers.verdicts import Verdict


@pytest.mark.slow
def test_quick_claims_are_simulated() -> None:
    result = reproduce("cdma", quick=True)
    assert {outcome.verdict for outcome in result.claims} <= set(Verdict) - {Verdict.FAILED, Verdict.CANNOT}


def ratios(**changed: float) -> dict[tuple[str, str], float]:
    """Those of a network as the paper has them, but for what is changed, such as ``zlib_nhwc``."""
    zlib, rle = {"nchw": 2.8, "nhwc": 2.4, "chwn": 2.5}, {"nchw": 2.3, "nhwc": 1.5, "chwn": 1.7}
    result = {("zvc", layout): 2.6 for layout in LAYOUTS}
    result |= {("zlib", layout): ratio for layout, ratio in zlib.items()}
    result |= {("rle", layout): ratio for layout, ratio in rle.items()}
    for key, ratio in changed.items():
        codec, layout = key.split("_")
        result[codec, layout] = ratio
    return result


class TestRatios:
    def test_zlib_falls_behind_but_for_googlenet(self) -> None:
        google = ratios(zlib_nhwc=2.7, zlib_chwn=2.7)
        assert behind({"NiN": ratios(), "GoogLeNet": google})["holds"]
        assert not behind({"NiN": google, "GoogLeNet": google})["holds"]
        assert not behind({"NiN": ratios(), "GoogLeNet": ratios()})["holds"], "GoogLeNet is the exception"

    def test_rle_prefers_nchw_and_is_the_worst(self) -> None:
        assert rle_prefers({"NiN": ratios()})["holds"]
        assert not rle_prefers({"NiN": ratios(), "VGG": ratios(rle_chwn=2.4)})["holds"]
        assert rle_worst(ratios())["holds"]
        assert not rle_worst(ratios(rle_nchw=2.7))["holds"]
        assert not rle_worst(ratios(zlib_nhwc=1.4))["holds"]

    def test_a_network_by_hand(self) -> None:
        """NiN's image is not counted; what has zeros is, at all epochs; a mask is a bit a value."""
        trace = trained("NiN")
        leaving = offloaded(trace)
        assert "image" not in leaving
        rows = [(trace.block_by_id[row.block].bytes, row.sparsity) for row in trace.sparsity if row.block in leaving]
        before, values = sum(size for size, _ in rows), sum(size * (1 - share) for size, share in rows)
        with_masks, without = (
            compressed(trace, ZeroPattern(), masks).overall["zvc", "nchw"] for masks in (True, False)
        )
        assert with_masks == pytest.approx(before / (values + before / 32), rel=1e-4)
        assert without == pytest.approx(before / values, rel=1e-4)


class TestMaps:
    @pytest.mark.parametrize("pool", [Pool(3, 2), Pool(3, 1), Pool(2, 2)])
    def test_max_pooling_by_its_windows(self, pool: Pool) -> None:
        maps = np.random.default_rng(0).random((2, 3, 9, 9))
        result = max_pooled(maps, pool)
        for y, x in product(range(result.shape[2]), range(result.shape[3])):
            top, left = y * pool.stride, x * pool.stride
            window = maps[:, :, top : top + pool.window, left : left + pool.window]
            assert (result[:, :, y, x] == window.max(axis=(2, 3))).all()

    def test_which_pools_overlap(self) -> None:
        traces = study("maxwell").traces
        assert set(overlapping_pools(traces["AlexNet"]).values()) == {Pool(3, 2)}
        assert set(overlapping_pools(traces["GoogLeNet"]).values()) == {Pool(3, 2), Pool(3, 1)}
        assert overlapping_pools(traces["VGG"]) == {}

    def test_sizes_are_those_that_ship_unless_something_is_assumed(self) -> None:
        trace = study("maxwell").traces["AlexNet"]
        pool = trace.block_by_id["pool2"]
        shipped = modelled_bytes(pool.bytes, 4, pool.shape, "zlib", 0.6)
        assert ZeroPattern().size(pool, 0.6, "zlib", "nchw", Pool(3, 2)) == shipped
        assert ZeroPattern(overlapping=True).size(pool, 0.6, "zlib", "nchw", Pool(3, 2)) < 0.95 * shipped
        assert ZeroPattern(overlapping=True).size(pool, 0.6, "zlib", "nchw") == shipped
        assert with_sizes(trace, ZeroPattern()) is trace

    @pytest.mark.slow
    def test_synthetic_maps_come_near_the_table_of_the_same_pattern(self) -> None:
        block = study("maxwell").traces["VGG"].block_by_id["conv3_1"]
        fitted = ZeroPattern().pattern
        again = ZeroPattern(channels=fitted.channels, length=fitted.length)
        for codec, layout in product(("rle", "zlib"), LAYOUTS):
            for share in (0.5, 0.7):
                shipped = modelled_bytes(block.bytes, 4, block.shape, codec, share, layout)
                assert again.size(block, share, codec, layout) == pytest.approx(shipped, rel=0.05)


class TestTraces:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["SqueezeNet", "GoogLeNet"])
    def test_only_with_copies_are_concatenations_kernels(self, name: str) -> None:
        joined, copied = (study("maxwell", copies=copies).traces[name] for copies in (False, True))
        assert "cat" in {kernel.op for kernel in copied.kernels} - {kernel.op for kernel in joined.kernels}

    @pytest.mark.slow
    def test_a_slower_gpu_has_slower_kernels(self) -> None:
        trace, slower = (study("maxwell", speed).traces["NiN"] for speed in (1.0, 0.5))
        ratio = sum(k.duration_ns for k in slower.kernels) / sum(k.duration_ns for k in trace.kernels)
        assert 1.8 < ratio <= 2.01

    def test_the_engine_reads_what_it_is_given(self) -> None:
        run = next(run for run in study("maxwell").runs if run.label == "ZV")
        for rate in (16 * 10**9, 10**13):
            engine = reading_at(run, rate).node.gpu.cdma
            assert engine is not None
            assert engine.peak == rate
