"""Memory-entries: bit-plane compressed sizes, counted without encoding, and their histogram."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simgpu.compression.codecs.entries import (
    ENTRY_BYTES,
    ENTRY_SIZES,
    SECTOR_BYTES,
    SECTORS,
    entry_bits,
    histogram,
    size_classes,
)
from simgpu.errors import InputError
from tests.compression.codecs import bpc_reference


def sizes(array: NDArray[Any]) -> list[int]:
    return [ENTRY_SIZES[result] for result in size_classes(array)]


class TestSizes:
    def test_the_constants_are_those_of_the_paper(self) -> None:
        assert (ENTRY_BYTES, SECTOR_BYTES) == (128, 32)
        assert ENTRY_SIZES == (0, 8, 16, 32, 64, 80, 96, 128)

    def test_a_size_is_rounded_up_to_sectors(self) -> None:
        assert [-(-size // SECTOR_BYTES) for size in ENTRY_SIZES] == list(SECTORS)

    def test_an_entry_takes_the_smallest_size_that_holds_its_code(self) -> None:
        random = np.random.default_rng(0)
        for width in range(1, 32):
            entry = random.integers(0, 2**width, 32).astype(np.uint32)
            bits = len(bpc_reference.code(entry.tobytes()))
            assert sizes(entry) == [min((size for size in ENTRY_SIZES if 8 * size >= bits), default=128)]

    def test_only_all_zero_entries_have_size_0(self) -> None:
        assert sizes(np.zeros(32, np.float32)) == [0]
        assert sizes(np.full(32, -0.0, np.float32)) == [8]
        for word in range(32):
            entry = np.zeros(32, np.uint32)
            entry[word] = 1
            assert sizes(entry) == [8]

    def test_noise_does_not_compress(self) -> None:
        noise = np.random.default_rng(0).integers(0, 256, 128 * 50, np.uint8)
        assert sizes(noise) == [128] * 50


class TestArrays:
    @pytest.mark.parametrize("bytes", [0, 1, 127, 128, 129, 1000, 4096 * 128 + 5])
    def test_the_last_entry_is_padded_with_zeros(self, bytes: int) -> None:
        array = np.random.default_rng(bytes).integers(0, 3, bytes, np.uint8)
        entries = -(-bytes // 128)
        padded = np.zeros(entries * 128, np.uint8)
        padded[:bytes] = array
        assert len(entry_bits(array)) == entries
        assert entry_bits(array).tolist() == entry_bits(padded).tolist()

    @pytest.mark.parametrize("dtype", ["i1", "u2", ">f4", "f4", "f8", "c16", "?", "S3", "i4,f8", ml_dtypes.bfloat16])
    def test_sizes_depend_on_bytes_and_not_on_the_dtype(self, dtype: Any) -> None:
        array = np.random.default_rng(1).integers(0, 2, 1001).astype(dtype)
        assert entry_bits(array).tolist() == entry_bits(np.frombuffer(array.tobytes(), np.uint8)).tolist()

    def test_elements_are_read_in_c_order(self) -> None:
        array = np.arange(3000).reshape(30, 100)
        assert entry_bits(array.T).tolist() == entry_bits(array.T.copy()).tolist()
        assert entry_bits(array[:, ::2]).tolist() == entry_bits(array[:, ::2].copy()).tolist()

    @pytest.mark.parametrize("array", [np.float64(3), np.zeros((0, 5)), np.zeros(3, "V0")])
    def test_scalars_and_empty_arrays_are_supported(self, array: Any) -> None:
        assert len(entry_bits(np.asarray(array))) == (1 if array.nbytes else 0)

    def test_python_objects_are_refused(self) -> None:
        with pytest.raises(
            InputError, match="contains Python objects, which have no memory-entries; give an array of num"
        ):
            size_classes(np.array([1, "a", None], object))


class TestHistogram:
    def test_histogram_counts_each_size(self) -> None:
        assert histogram(np.array([0, 7, 7, 3], np.uint8)) == (1, 0, 0, 1, 0, 0, 0, 2)
        assert histogram(np.array([], np.uint8)) == (0,) * 8

    @settings(deadline=None)
    @given(st.binary(max_size=1000))
    def test_histogram_counts_every_entry_once(self, raw: bytes) -> None:
        counts = histogram(size_classes(np.frombuffer(raw, np.uint8)))
        assert sum(counts) == -(-len(raw) // 128)
        assert all(type(count) is int for count in counts)
