"""Encoded bytes of a trace's blocks: measured, from the share of zeros, or modelled; with their source."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simgpu
from simgpu.compression.codecs.costs import NodeCosts
from simgpu.compression.codecs.patterns import modelled_bytes
from simgpu.compression.codecs.sizes import compressed_bytes
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.model import CompressedSize, Origin, SparsitySample, Trace

SHAPE = (1, 4, 16, 16)


def with_zeros(origin: Origin = Origin.MODELLED, modelled: str = "", dtype: str = "float32") -> Trace:
    """Two feature maps, x1 with sparsity at two epochs and x2 without."""
    trace = chain([5, 5], [7, 7], [4096, 4096])
    blocks = tuple(replace(block, shape=SHAPE, dtype=dtype) for block in trace.blocks)
    zeros = (SparsitySample("x1", 0, 0.5), SparsitySample("x1", 3, 0.7))
    return replace(trace, blocks=blocks, sparsity=zeros, info=replace(trace.info, origin=origin, modelled=modelled))


def costs(trace: Trace, epoch: int = 0, layout: str = "nchw") -> NodeCosts:
    return NodeCosts(trace, simgpu.load_node("v100"), epoch, layout)


def x1(trace: Trace, codec: str, epoch: int = 0, layout: str = "nchw") -> int:
    return costs(trace, epoch, layout).encoded_bytes(trace.block_by_id["x1"], codec)


@pytest.mark.parametrize("codec", ["rle", "lz4", "zlib"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "chwn"])
@pytest.mark.parametrize(("origin", "modelled"), [(Origin.MODELLED, ""), (Origin.RECORDED, "sparsity")])
def test_sizes_are_modelled_for_blocks_with_sparsity(codec: str, layout: str, origin: Origin, modelled: str) -> None:
    trace = with_zeros(origin, modelled)
    assert x1(trace, codec, 0, layout) == modelled_bytes(4096, 4, SHAPE, codec, 0.5, layout)
    assert x1(trace, codec, 3, layout) == modelled_bytes(4096, 4, SHAPE, codec, 0.7, layout)
    result = costs(trace, 0, layout)
    assert result.is_known(trace.block_by_id["x1"], codec)
    assert result.is_modelled(trace.block_by_id["x1"], codec)
    assert result.modelled_codecs == ("rle", "lz4", "zlib")


@pytest.mark.parametrize("codec", ["rle", "lz4", "zlib"])
@pytest.mark.parametrize("origin", [Origin.RECORDED, Origin.IMPORTED])
def test_measured_sparsity_replaces_modelled_sizes(codec: str, origin: Origin) -> None:
    trace = with_zeros(origin)
    assert not costs(trace).is_known(trace.block_by_id["x1"], codec)
    assert costs(trace).modelled_codecs == ()
    with pytest.raises(InputError, match=f"the size of 'x1' in {codec} is unknown.*compressibility.csv"):
        x1(trace, codec)


def test_without_sparsity_no_size_is_known() -> None:
    trace = with_zeros()
    for codec in ("zvc", "csr", "rle", "lz4", "zlib"):
        assert not costs(trace).is_known(trace.block_by_id["x2"], codec)
        with pytest.raises(InputError, match="the size of 'x2' in"):
            costs(trace).encoded_bytes(trace.block_by_id["x2"], codec)


def test_zvc_and_csr_sizes_follow_from_sparsity_and_are_not_modelled() -> None:
    trace = with_zeros()
    for codec in ("zvc", "csr"):
        assert x1(trace, codec) == compressed_bytes(4096, 4, codec, 0.5)
        assert not costs(trace).is_modelled(trace.block_by_id["x1"], codec)


def test_measured_sizes_have_priority_and_are_not_marked_modelled() -> None:
    measured = CompressedSize("x1", 0, "zlib", "nchw", 4096, 1712, 1)
    trace = replace(with_zeros(), compressibility=(measured,))
    assert x1(trace, "zlib") == 1712
    assert costs(trace).modelled_codecs == ("rle", "lz4")


def test_elements_of_2_bytes_are_modelled_and_of_8_or_1_are_not() -> None:
    assert x1(with_zeros(dtype="float16"), "rle") == modelled_bytes(4096, 2, SHAPE, "rle", 0.5)
    for dtype in ("float64", "int8"):
        trace = with_zeros(dtype=dtype)
        assert not costs(trace).is_known(trace.block_by_id["x1"], "rle")
        with pytest.raises(InputError, match="the size of 'x1' in rle is unknown"):
            x1(trace, "rle")


class TestEntriesOfMemory:
    """Rows of BPC describe entries of 128 bytes, perhaps in more epochs; they do not apply to other codecs."""

    ENTRIES = tuple(
        CompressedSize("x1", epoch, "bpc", "plain", 128, size, entries)
        for epoch, counts in ((0, (20, 12)), (5, (10, 22)))
        for size, entries in zip((32, 128), counts, strict=True)
    )

    def recorded(self, *rows: CompressedSize) -> Trace:
        return replace(with_zeros(Origin.RECORDED), sparsity=(), compressibility=(*self.ENTRIES, *rows))

    def test_the_size_of_a_block_is_the_sum_of_its_entries(self) -> None:
        assert x1(self.recorded(), "bpc") == 20 * 32 + 12 * 128
        assert x1(self.recorded(), "bpc", epoch=9) == 10 * 32 + 22 * 128

    @pytest.mark.parametrize("codec", ["zvc", "csr", "rle", "lz4", "zlib"])
    def test_bpc_rows_do_not_give_sizes_of_other_codecs(self, codec: str) -> None:
        trace = self.recorded()
        assert costs(trace).is_known(trace.block_by_id["x1"], "bpc")
        assert not costs(trace).is_known(trace.block_by_id["x1"], codec)
        assert costs(trace).sparsity(trace.block_by_id["x1"]) is None

    def test_rows_of_other_codecs_do_not_give_bpc_sizes(self) -> None:
        rows = (CompressedSize("x1", 0, "zvc", "plain", 4096, 2176, 1),)
        trace = replace(with_zeros(Origin.RECORDED), compressibility=rows)
        assert not costs(trace).is_known(trace.block_by_id["x1"], "bpc")
        with pytest.raises(InputError, match="the size of 'x1' in bpc is unknown"):
            x1(trace, "bpc")

    def test_later_bpc_rows_do_not_hide_earlier_measured_sizes(self) -> None:
        trace = self.recorded(CompressedSize("x1", 0, "zvc", "plain", 4096, 2176, 1))
        assert x1(trace, "zvc", epoch=9) == 2176
        assert costs(trace, 9).sparsity(trace.block_by_id["x1"]) == 0.5
        assert x1(trace, "bpc", epoch=9) == 10 * 32 + 22 * 128

    def test_bpc_sizes_are_never_modelled(self) -> None:
        trace = with_zeros()
        assert not costs(trace).is_known(trace.block_by_id["x1"], "bpc")
