"""A damaged stream is an error and never wrong data: its checksum or its structure reveals the damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.codecs import frame, zvc
from simgpu.compression.codecs.frame import HEADER_BYTES, CorruptStreamError, Header
from simgpu.compression.codecs.registry import codec_class, codec_names, make_codec
from simgpu.errors import InputError
from tests.compression.codecs import zvc_numpy

by_codec = pytest.mark.parametrize("name", codec_names())

#: Zeros in a run and alone, a value that repeats, values that do not: 70 elements, so that the last mask is not full.
SAMPLE = np.array([0] * 20 + [1, 0, 2, 3, -0.0] + [7] * 9 + [0, 1e-45, np.nan] + [0] * 33, np.float32)


def sealed(name: str, payload: bytes, elements: int, format: str = "float32", window: int = 4096) -> bytes:
    """A stream with this payload and a matching header and checksum."""
    stream = np.frombuffer(bytes(HEADER_BYTES) + payload, np.uint8).copy()
    frame.seal(stream, Header(codec_class(name).number, format, elements, window))
    return stream.tobytes()


@by_codec
def test_every_changed_byte_is_detected(name: str) -> None:
    codec = make_codec(name)
    stream = codec.encode(SAMPLE).tobytes()
    for place in range(len(stream)):
        for change in (*(1 << bit for bit in range(8)), 255):
            damaged = bytearray(stream)
            damaged[place] ^= change
            with pytest.raises(CorruptStreamError):
                codec.decode(bytes(damaged), np.float32, SAMPLE.shape)


@by_codec
def test_every_truncation_is_detected(name: str) -> None:
    codec = make_codec(name)
    stream = codec.encode(SAMPLE).tobytes()
    for length in range(len(stream)):
        with pytest.raises(CorruptStreamError):
            codec.decode(stream[:length], np.float32, SAMPLE.shape)


@by_codec
@pytest.mark.parametrize("more", [b"\0", b"\0" * 4, b"more"])
def test_bytes_after_the_end_are_detected(name: str, more: bytes) -> None:
    stream = make_codec(name).encode(SAMPLE).tobytes()
    with pytest.raises(CorruptStreamError, match="header states"):
        make_codec(name).decode(stream + more, np.float32, SAMPLE.shape)


@by_codec
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_random_payloads_with_valid_checksums_decode_or_raise_an_error(name: str, data: st.DataObject) -> None:
    stream = make_codec(name).encode(SAMPLE).tobytes()
    payload = bytearray(stream[HEADER_BYTES:])
    for place in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=3)):
        payload[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    changed = bytes(payload[:cut] if data.draw(st.booleans()) else payload)
    try:
        decoded = make_codec(name).decode(sealed(name, changed, SAMPLE.size), np.float32, SAMPLE.shape)
    except CorruptStreamError:
        return
    assert decoded.shape == SAMPLE.shape


@by_codec
@pytest.mark.parametrize("elements", [0, 1, 40])
def test_noise_with_a_valid_checksum_is_refused(name: str, elements: int) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 4 * 57, np.uint8).tobytes()
    with pytest.raises(CorruptStreamError, match=f"^{name} stream"):
        make_codec(name).decode(sealed(name, noise, elements), np.float32, (elements,))


@pytest.fixture(params=["numpy", "compiled"])
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(zvc, "_compiled", lambda: (zvc_numpy.write, zvc_numpy.read))


@pytest.mark.usefixtures("_implementation")
class TestZvc:
    def refused(self, payload: bytes, elements: int, place: str, format: str = "float32") -> None:
        dtype = np.dtype(format)
        with pytest.raises(CorruptStreamError, match=place):
            make_codec("zvc").decode(sealed("zvc", payload, elements, format), dtype, (elements,))

    def test_mask_bits_beyond_the_last_element_are_refused(self) -> None:
        self.refused((1 << 3).to_bytes(4, "little") + bytes(4), 3, "mask 0")
        self.refused(bytes(4) + (1 << 1).to_bytes(4, "little") + bytes(4), 33, "mask 1")

    def test_too_few_values_for_the_masks_are_refused(self) -> None:
        self.refused(b"\x03\0\0\0" + bytes(4), 32, "mask 0")
        self.refused(b"\xff\xff\0\0" + bytes(4 * 16), 64, "mask 1")

    def test_too_many_values_for_the_masks_are_refused(self) -> None:
        self.refused(b"\x01\0\0\0" + bytes(8), 32, "mask 0")

    def test_missing_masks_are_refused(self) -> None:
        self.refused(b"", 32, "mask 0")
        self.refused(b"\0\0", 32, "mask 0", "int8")

    def test_a_partial_value_is_refused(self) -> None:
        self.refused(b"\x01\0\0\0" + bytes(3), 32, "not a multiple of 4-byte values")

    def test_values_without_elements_are_refused(self) -> None:
        self.refused(bytes(4), 0, "zvc stream")


class TestRle:
    def refused(self, payload: bytes, elements: int, why: str, format: str = "int8") -> None:
        with pytest.raises(CorruptStreamError, match=why):
            make_codec("rle").decode(sealed("rle", payload, elements, format), np.dtype(format), (elements,))

    def test_run_lengths_with_a_wrong_sum_are_refused(self) -> None:
        self.refused(bytes([6, 128, 0]), 8, "do not add up")
        self.refused(bytes([8, 128, 0]), 8, "do not add up")
        self.refused(b"", 8, "do not add up")

    def test_a_stream_that_ends_within_a_token_is_refused(self) -> None:
        self.refused(bytes([6, 128]), 7, "ends within a token")
        self.refused(bytes([6, 0, 1, 2, 3]), 7, "ends within a token")
        self.refused(bytes([6, 128, 0, 1]), 7, "ends within a token")

    def test_a_run_beyond_its_window_is_refused(self) -> None:
        over = (32768 + 4096).to_bytes(2, "little") + b"\0" + (32768 + 4094).to_bytes(2, "little") + b"\0"
        self.refused(over, 2 * 4096, "token 0: crosses the end of its window")


class TestCsr:
    def refused(self, counts: list[int], columns: list[int], values: list[int], elements: int, why: str) -> None:
        payload = np.array(counts, "<u4").tobytes() + bytes(columns) + bytes(values)
        with pytest.raises(CorruptStreamError, match=why):
            make_codec("csr").decode(sealed("csr", payload, elements, "uint8"), np.uint8, (elements,))

    def test_counts_that_contradict_the_payload_are_refused(self) -> None:
        self.refused([3], [0, 1], [5, 6], 10, "3 values, which do not fit its 8 bytes")
        self.refused([], [], [], 10, "are too few for the counts of 1 rows")

    def test_columns_beyond_the_elements_are_refused(self) -> None:
        self.refused([1], [10], [5], 10, "row 0")
        self.refused([0, 1], [44], [5], 300, "row 1")

    def test_repeated_or_unordered_columns_are_refused(self) -> None:
        self.refused([2], [3, 3], [5, 6], 10, "row 0")
        self.refused([2], [4, 3], [5, 6], 10, "row 0")

    def test_zeros_among_the_values_are_refused(self) -> None:
        self.refused([2], [3, 4], [5, 0], 10, "row 0")


@pytest.mark.parametrize("name", ["lz4", "zlib"])
class TestLibraries:
    ZEROS = np.zeros(2048, np.float32)

    def refused(self, name: str, payload: bytes, why: str) -> None:
        with pytest.raises(CorruptStreamError, match=why):
            make_codec(name).decode(sealed(name, payload, self.ZEROS.size), np.float32, self.ZEROS.shape)

    def payload(self, name: str, array: Any) -> bytes:
        return make_codec(name).encode(array)[HEADER_BYTES:].tobytes()

    def test_a_missing_window_is_refused(self, name: str) -> None:
        half = self.payload(name, self.ZEROS[:1024])
        self.refused(name, half, "window 1")
        self.refused(name, b"", "window 0")

    def test_an_extra_window_is_refused(self, name: str) -> None:
        self.refused(name, self.payload(name, np.zeros(3072, np.float32)), "follow the last window")

    def test_a_window_of_wrong_length_is_refused(self, name: str) -> None:
        for elements in (1023, 1025):
            array = np.zeros(elements, np.float32)
            window = make_codec(name, 65536).encode(array)[HEADER_BYTES:].tobytes()
            self.refused(name, window + window, "window 0")

    def test_bytes_refused_by_the_library_are_reported(self, name: str) -> None:
        self.refused(name, bytes([8, 0]) + b"\xff" * 9, "window 0.* cannot decompress it")


class TestZlibStreams:
    @pytest.mark.parametrize("cut", [1, 4, 6])
    def test_a_stream_without_its_end_is_refused(self, cut: int) -> None:
        payload = make_codec("zlib").encode(np.zeros(1024, np.float32))[HEADER_BYTES:].tobytes()[2:-cut]
        stream = sealed("zlib", (len(payload) - 1).to_bytes(2, "little") + payload, 1024)
        with pytest.raises(CorruptStreamError, match="not exactly one complete zlib stream"):
            make_codec("zlib").decode(stream, np.float32, (1024,))

    def test_bytes_after_the_end_of_a_window_are_refused(self) -> None:
        payload = make_codec("zlib").encode(np.zeros(1024, np.float32))[HEADER_BYTES:].tobytes()[2:] + b"?"
        stream = sealed("zlib", (len(payload) - 1).to_bytes(2, "little") + payload, 1024)
        with pytest.raises(CorruptStreamError, match="not exactly one complete zlib stream"):
            make_codec("zlib").decode(stream, np.float32, (1024,))


class TestHeader:
    STREAM = make_codec("zvc").encode(SAMPLE)

    def test_a_stream_of_another_codec_is_refused(self) -> None:
        with pytest.raises(CorruptStreamError, match="written by codec 1, not rle"):
            make_codec("rle").decode(self.STREAM, np.float32, SAMPLE.shape)

    def test_other_data_is_not_a_stream(self) -> None:
        with pytest.raises(CorruptStreamError, match="begins with b'hell'"):
            make_codec("zvc").decode(b"hello, this is not a stream at all", np.float32, SAMPLE.shape)

    def test_the_error_names_the_remedy(self) -> None:
        with pytest.raises(CorruptStreamError, match=r"^zvc stream: the checksum .*; it is damaged.*encode the array"):
            make_codec("zvc").decode(bytes(self.STREAM[:-1]) + b"?", np.float32, SAMPLE.shape)

    @pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint16])
    def test_a_request_for_another_dtype_is_refused(self, dtype: Any) -> None:
        with pytest.raises(InputError, match="contains float32, not"):
            make_codec("zvc").decode(self.STREAM, dtype, SAMPLE.shape)

    @pytest.mark.parametrize("shape", [(69,), (71,), (7, 11), ()])
    def test_a_request_for_another_element_count_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(InputError, match="contains 70 elements"):
            make_codec("zvc").decode(self.STREAM, np.float32, shape)

    @pytest.mark.parametrize("window", [0, 5000, 2**20])
    def test_an_impossible_window_is_refused(self, window: int) -> None:
        stream = sealed("zvc", self.STREAM[HEADER_BYTES:].tobytes(), SAMPLE.size, window=window)
        with pytest.raises(CorruptStreamError, match="compression window"):
            make_codec("zvc").decode(stream, np.float32, SAMPLE.shape)
