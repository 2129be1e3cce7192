"""Bytes of a block in a codec, from a trace's facts alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.compression.codecs.registry import make_codec
from simgpu.compression.codecs.sizes import compressed_bytes
from simgpu.errors import InputError
from simgpu.trace.model import CompressedSize
from tests.compression.codecs.arrays import activation


def row(bytes: int, entry_bytes: int = 4096, entries: int = 1, **other: Any) -> CompressedSize:
    words = {"block": "y", "epoch": 0, "codec": "zlib", "layout": "nchw"} | other
    return CompressedSize(entry_bytes=entry_bytes, bytes=bytes, entries=entries, **words)


@pytest.mark.parametrize("codec", ["zvc", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("window", [4096, 65536])
@pytest.mark.parametrize(("elements", "zeros"), [(0, 0), (1, 1), (33, 7), (1000, 0), (4096, 4096), (100_003, 61_234)])
def test_the_closed_form_equals_the_codecs_size_to_the_byte(
    codec: str, dtype: Any, window: int, elements: int, zeros: int
) -> None:
    share = zeros / elements if elements else 0.0
    array = activation(elements, share, dtype)
    assert np.count_nonzero(array == 0) == zeros
    description = compressed_bytes(array.nbytes, array.itemsize, codec, share, window=window)
    assert description == make_codec(codec, window).compressed_size(array)


@given(elements=st.integers(1, 10**11), data=st.data())
def test_a_share_of_zeros_is_converted_back_to_the_exact_count(elements: int, data: st.DataObject) -> None:
    zeros = data.draw(st.integers(0, elements))
    size = compressed_bytes(4 * elements, 4, "zvc", zeros / elements)
    assert size == 4 * math.ceil(Fraction(elements, 32)) + 4 * (elements - zeros)


@pytest.mark.parametrize(("elements", "zeros"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_half_zeros_round_to_even(elements: int, zeros: int) -> None:
    assert compressed_bytes(4 * elements, 4, "zvc", 0.5) == 4 + 4 * (elements - zeros)


def test_a_partial_element_counts_as_one() -> None:
    assert compressed_bytes(4097, 4, "zvc", 0.0) == compressed_bytes(4100, 4, "zvc", 0.0)


@pytest.mark.parametrize("codec", ["zvc", "csr"])
@given(block=st.integers(0, 10**12), sparsity=st.floats(0, 1), less=st.floats(0, 1))
def test_more_zeros_never_take_more_bytes(codec: str, block: int, sparsity: float, less: float) -> None:
    some, fewer = max(sparsity, less), min(sparsity, less)
    assert compressed_bytes(block, 4, codec, some) <= compressed_bytes(block, 4, codec, fewer)


@pytest.mark.parametrize("sparsity", [-0.01, 1.01, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("codec", ["zvc", "zlib"])
def test_a_sparsity_outside_0_to_1_is_refused(codec: str, sparsity: float) -> None:
    with pytest.raises(InputError, match=r"sparsity: .* is not a share of zeros; give a number from 0 to 1"):
        compressed_bytes(4096, 4, codec, sparsity, [row(100)])


@pytest.mark.parametrize("codec", ["rle", "lz4", "zlib", "bpc"])
def test_sizes_that_sparsity_does_not_determine_need_measurements(codec: str) -> None:
    with pytest.raises(InputError, match=f"size in {codec} does not follow .*compressibility.csv.*zvc, csr"):
        compressed_bytes(4096, 4, codec, 0.5)


def test_a_size_without_sparsity_or_measurements_is_refused() -> None:
    with pytest.raises(InputError, match="neither sparsity nor a measured size in zvc is known"):
        compressed_bytes(4096, 4, "zvc")


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="did you mean 'zlib'"):
        compressed_bytes(4096, 4, "zlip", 0.5)


@pytest.mark.parametrize("itemsize", [0, 3, 8])
def test_unsupported_element_sizes_are_refused(itemsize: int) -> None:
    with pytest.raises(InputError, match=f"not applicable to elements of {itemsize} bytes"):
        compressed_bytes(4096, itemsize, "zvc", 0.5)


class TestMeasured:
    def test_a_row_for_a_complete_block_is_its_size(self) -> None:
        assert compressed_bytes(4096, 4, "zlib", None, [row(1234)]) == 1234

    def test_a_histogram_is_summed(self) -> None:
        rows = [row(0, 128, 10), row(32, 128, 20), row(128, 128, 2)]
        assert compressed_bytes(4096, 4, "zlib", None, rows) == 20 * 32 + 2 * 128

    def test_measurements_have_priority_over_the_closed_form(self) -> None:
        assert compressed_bytes(4096, 4, "zvc", 0.5, [row(77, codec="zvc")]) == 77

    def test_rows_of_other_codecs_are_ignored(self) -> None:
        assert compressed_bytes(4096, 4, "zvc", 1.0, [row(77)]) == 128
        assert compressed_bytes(4096, 4, "zlib", None, [row(77), row(78, codec="lz4")]) == 77

    def test_the_last_entry_may_be_padded(self) -> None:
        assert compressed_bytes(4000, 4, "zlib", None, [row(64, 128, 32)]) == 64 * 32

    @pytest.mark.parametrize("block_bytes", [4097, 3968, 100])
    def test_entries_that_do_not_cover_the_block_exactly_are_refused(self, block_bytes: int) -> None:
        with pytest.raises(InputError, match=f"entries of block 'y' cover 4096 bytes, but the block has {block_bytes}"):
            compressed_bytes(block_bytes, 4, "zlib", None, [row(64, 128, 32)])

    @pytest.mark.parametrize("other", [{"block": "z"}, {"epoch": 1}, {"layout": "nhwc"}])
    def test_rows_of_different_blocks_epochs_or_layouts_are_refused(self, other: dict[str, Any]) -> None:
        with pytest.raises(
            InputError,
            match="measured sizes of different blocks, epochs or layouts: block 'y', epoch 0, nchw, and block",
        ):
            compressed_bytes(8192, 4, "zlib", None, [row(64), row(64, **other)])
