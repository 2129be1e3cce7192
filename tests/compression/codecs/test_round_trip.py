"""Encoding and decoding round-trip bit for bit, and the size is known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simgpu.compression.codecs.base import Codec
from simgpu.compression.codecs.frame import HEADER_BYTES
from simgpu.compression.codecs.registry import codec_names, make_codec
from tests.compression.codecs import arrays
from tests.compression.codecs.arrays import DTYPES, SPECIAL

WINDOWS = [2**power for power in range(12, 17)]

by_codec = pytest.mark.parametrize("name", codec_names())
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def check(codec: Codec, array: NDArray[Any]) -> None:
    stream = codec.encode(array)
    assert stream.size == HEADER_BYTES + codec.compressed_size(array)
    decoded = codec.decode(stream, array.dtype, array.shape)
    assert decoded.dtype == array.dtype and decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()
    assert codec.decode(stream.tobytes(), array.dtype, array.shape).tobytes() == array.tobytes()


@pytest.mark.slow
@by_codec
@by_dtype
@settings(deadline=None, max_examples=25)
@given(data=st.data(), window=st.sampled_from(WINDOWS))
def test_any_array_round_trips_bit_for_bit(name: str, dtype: np.dtype[Any], data: st.DataObject, window: int) -> None:
    check(make_codec(name, window), data.draw(arrays.arrays(dtype)))


@by_codec
@by_dtype
def test_zeros_dense_and_alternating_arrays_of_any_length_round_trip(name: str, dtype: np.dtype[Any]) -> None:
    for elements in (0, 1, 31, 32, 33, 1023, 1024, 1025, 4097, 65537):
        dense = np.arange(1, elements + 1).astype(np.uint32).astype(f"u{dtype.itemsize}")
        dense[dense == 0] = 1
        alternating = np.where(np.arange(elements) % 2, dense, 0).astype(dense.dtype)
        for array in (dense, alternating, np.zeros_like(dense)):
            check(make_codec(name), array.view(dtype))


@by_codec
@by_dtype
def test_special_floating_point_values_are_preserved(name: str, dtype: np.dtype[Any]) -> None:
    """-0.0, denormals, infinities and the payloads of NaNs, alone and in runs."""
    patterns = np.array(SPECIAL[dtype.name], f"u{dtype.itemsize}")
    check(make_codec(name), patterns.view(dtype))
    check(make_codec(name), patterns.repeat(40).view(dtype))


@by_codec
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4, 5), (1, 1)])
def test_decoding_preserves_shapes(name: str, shape: tuple[int, ...]) -> None:
    check(make_codec(name), np.full(shape, 2.5, np.float32))


@by_codec
def test_elements_are_read_in_c_order(name: str) -> None:
    codec, array = make_codec(name), np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    across = array.transpose(2, 0, 1)
    assert codec.encode(across).tobytes() == codec.encode(np.ascontiguousarray(across)).tobytes()
    assert codec.compressed_size(across) == codec.compressed_size(np.ascontiguousarray(across))
    check(codec, across)
    check(codec, np.asfortranarray(array))


@by_codec
def test_an_unaligned_stream_is_decoded(name: str) -> None:
    codec, array = make_codec(name), np.repeat(np.arange(100, dtype=np.float32), 3)
    shifted = memoryview(b"?" + codec.encode(array).tobytes())[1:]
    assert codec.decode(shifted, np.float32, (300,)).tobytes() == array.tobytes()  # type: ignore[arg-type]


@by_codec
def test_decoding_uses_the_window_of_the_stream(name: str) -> None:
    array = np.repeat(np.arange(3000, dtype=np.int8), 7)
    stream = make_codec(name, 65536).encode(array)
    assert make_codec(name, 4096).decode(stream, np.int8, array.shape).tobytes() == array.tobytes()


@by_codec
def test_the_same_array_gives_the_same_bytes(name: str) -> None:
    array = arrays.activation(5000, 0.5)
    assert make_codec(name).encode(array).tobytes() == make_codec(name).encode(array.copy()).tobytes()


@by_codec
def test_bfloat16_is_encoded_as_its_bit_patterns(name: str) -> None:
    import ml_dtypes

    array = arrays.activation(3000, 0.4, ml_dtypes.bfloat16)
    codec = make_codec(name)
    stream = codec.encode(array)
    assert stream.tobytes() == codec.encode(array.view(np.uint16)).tobytes()
    assert codec.decode(stream, np.uint16, array.shape).tobytes() == array.tobytes()
