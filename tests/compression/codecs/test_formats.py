"""ZVC, RLE and CSR equal the output of plain encoders, and their sizes match the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.codecs import zvc
from simgpu.compression.codecs.frame import HEADER_BYTES
from simgpu.compression.codecs.registry import codec_names, make_codec
from tests.compression.codecs import arrays, reference, zvc_numpy
from tests.compression.codecs.arrays import DTYPES, activation, bits
from tests.papers.published import published

WINDOWS = [4096, 65536]

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_window = pytest.mark.parametrize("window", WINDOWS)


def payload(name: str, array: np.ndarray, window: int = 4096) -> bytes:
    return make_codec(name, window).encode(array)[HEADER_BYTES:].tobytes()


@by_dtype
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_zvc_equals_the_output_of_a_plain_encoder(dtype: np.dtype[Any], data: st.DataObject) -> None:
    array = data.draw(arrays.arrays(dtype))
    assert payload("zvc", array) == reference.zvc(bits(array), dtype.itemsize)


@by_dtype
@by_window
@pytest.mark.parametrize("name", ["rle", "csr"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_rle_and_csr_equal_the_output_of_plain_encoders(
    name: str, window: int, dtype: np.dtype[Any], data: st.DataObject
) -> None:
    array = data.draw(arrays.arrays(dtype))
    assert payload(name, array, window) == getattr(reference, name)(bits(array), dtype.itemsize, window)


@pytest.mark.parametrize("elements", [65535, 65536, 131072 + 5, 300_000])
@pytest.mark.parametrize("name", ["rle", "csr"])
def test_windows_longer_than_a_token_or_index_equal_the_output_of_plain_encoders(name: str, elements: int) -> None:
    array = np.repeat(activation(elements // 1000 + 1, 0.5, np.int8), 1000)[:elements]
    assert payload(name, array, 65536) == getattr(reference, name)(bits(array), 1, 65536)


def test_a_small_array_is_encoded_as_documented() -> None:
    """A0000000 of CSWAP section IV-E, in elements of a byte."""
    array = np.array([65, 0, 0, 0, 0, 0, 0, 0], np.uint8)
    assert payload("zvc", array) == bytes([1, 0, 0, 0, 65])
    assert payload("rle", array) == bytes([0, 0, 65, 6, 128, 0])
    assert payload("csr", array) == bytes([1, 0, 0, 0, 0, 65])


class TestImplementations:
    """ZVC in NumPy is the oracle of the compiled functions."""

    @by_dtype
    @settings(deadline=None, max_examples=25)
    @given(data=st.data())
    def test_both_implementations_write_and_read_the_same(self, dtype: np.dtype[Any], data: st.DataObject) -> None:
        array = np.frombuffer(data.draw(arrays.arrays(dtype)).tobytes(), f"u{dtype.itemsize}")
        units = make_codec("zvc").compressed_size(array.view(dtype)) // dtype.itemsize
        ways = []
        for write, read_back in ((zvc_numpy.write, zvc_numpy.read), zvc._compiled()):
            written, read = np.zeros(units, array.dtype), np.ones_like(array)
            write(array, written)
            assert read_back(written, read) == -1
            assert read.tobytes() == array.tobytes()
            ways.append(written.tobytes())
        assert ways[0] == ways[1]

    @settings(deadline=None, max_examples=60)
    @given(data=st.data(), unsigned=st.sampled_from([np.uint8, np.uint16, np.uint32]))
    def test_both_implementations_report_the_same_fault(self, data: st.DataObject, unsigned: Any) -> None:
        largest = int(np.iinfo(unsigned).max)
        value = st.sampled_from([0, 1, largest]) | st.integers(0, largest)
        units = np.array(data.draw(st.lists(value, max_size=120)), unsigned)
        elements = data.draw(st.integers(0, 100))
        one, other = np.zeros(elements, unsigned), np.zeros(elements, unsigned)
        fault = zvc_numpy.read(units, one)
        assert zvc._compiled()[1](units, other) == fault
        if fault == -1:
            assert one.tobytes() == other.tobytes()


class TestSizes:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
    @pytest.mark.parametrize("elements", [1, 32, 33, 1024, 100_000])
    @pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.9, 1.0])
    def test_zvc_is_a_mask_per_32_elements_and_the_nonzero_elements(
        self, dtype: Any, elements: int, sparsity: float
    ) -> None:
        array = activation(elements, sparsity, dtype)
        nonzeros = elements - round(elements * sparsity)
        size = 4 * -(-elements // 32) + np.dtype(dtype).itemsize * nonzeros
        assert make_codec("zvc").compressed_size(array) == size

    def test_zvc_of_zeros_is_32_times_smaller(self) -> None:
        zeros = np.zeros(32 * 1000, np.float32)
        assert zeros.nbytes == 32 * make_codec("zvc").compressed_size(zeros)

    def test_zvc_without_a_zero_is_one_thirty_second_larger(self) -> None:
        dense = np.ones(32 * 1000, np.float32)
        assert (make_codec("zvc").compressed_size(dense) - dense.nbytes) / dense.nbytes == 0.03125

    @by_window
    def test_zvc_is_the_same_in_all_windows(self, window: int) -> None:
        array = activation(100_001, 0.6)
        assert payload("zvc", array, window) == payload("zvc", array)

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
    def test_csr_indices_at_half_zeros_take_half_of_the_array(self, dtype: Any) -> None:
        array = activation(2**16, 0.5, dtype)
        rows = 2**16 // min(4096 // array.itemsize, 256**array.itemsize)
        values = array.nbytes // 2
        assert make_codec("csr").compressed_size(array) - values - 4 * rows == 0.50 * array.nbytes

    def test_index_overheads_match_the_paper(self) -> None:
        array = activation(2**16, 0.5)
        values, rows_of_4_kib = array.nbytes // 2, array.nbytes // 4096
        masks = make_codec("zvc").compressed_size(array) - values
        indices = make_codec("csr").compressed_size(array) - values - 4 * rows_of_4_kib
        assert [masks / array.nbytes, indices / array.nbytes] == published()["cswap.codec.overhead"]

    def test_rle_of_a_window_of_zeros_is_one_token(self) -> None:
        assert make_codec("rle").compressed_size(np.zeros(1024, np.float32)) == 2 + 4
        assert make_codec("rle", 65536).compressed_size(np.zeros(65536, np.int8)) == 2 * (2 + 1)

    def test_rle_does_not_shrink_isolated_zeros(self) -> None:
        array = np.arange(1, 1025, dtype=np.float32)
        array[::2] = 0
        assert make_codec("rle").compressed_size(array) == array.nbytes + 2

    @by_window
    def test_incompressible_data_has_the_documented_overhead(self, window: int) -> None:
        random = np.random.default_rng(3).integers(1, 2**32, 2**16, np.uint32).view(np.float32)
        windows = random.nbytes // window
        sizes = {name: make_codec(name, window).compressed_size(random) for name in codec_names()}
        for name in ("rle", "lz4", "zlib"):
            assert sizes[name] == random.nbytes + 2 * windows, name
        assert sizes["csr"] == 2 * random.nbytes + 4 * windows
        assert sizes["zvc"] == random.nbytes + random.nbytes // 32

    @by_window
    @pytest.mark.parametrize("name", ["lz4", "zlib"])
    def test_each_window_is_compressed_separately(self, name: str, window: int) -> None:
        array, codec = activation(3 * 65536 // 4, 0.6), make_codec(name, window)
        per_window = [codec.compressed_size(part) for part in array.reshape(-1, window // 4)]
        assert codec.compressed_size(array) == sum(per_window)


def test_negative_zero_is_not_zero() -> None:
    assert make_codec("zvc").compressed_size(np.array([0.0], np.float32)) == 4
    assert make_codec("zvc").compressed_size(np.array([-0.0], np.float32)) == 8
