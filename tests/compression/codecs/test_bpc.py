"""Bit-plane compression: hand-written codes, and agreement of all implementations that write, read and count."""

from __future__ import annotations

import struct
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simgpu.compression import codecs
from simgpu.compression.codecs import bpc_code, frame
from simgpu.compression.codecs.bpc import Bpc
from simgpu.compression.codecs.entries import ENTRY_SIZES, ZERO_BITS, entry_bits, size_classes
from simgpu.compression.codecs.frame import HEADER_BYTES, CorruptStreamError, Header
from tests.compression.codecs import bpc_numpy, bpc_reference

#: The codes of a change that is all ones, and of one that makes a plane zero.
ALL_ONES, NONE = "00000", "00001"


@pytest.fixture(params=[bpc_numpy, bpc_code], ids=["numpy", "compiled"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The compiled functions or their NumPy oracle, used for writing, reading and counting."""
    monkeypatch.setattr(codecs, "bpc_code", request.param)
    return request.param


def words(first: int, deltas: dict[int, int]) -> list[int]:
    """Words with these differences at these positions and zero differences elsewhere."""
    result = [first]
    for place in range(31):
        result.append(result[-1] + deltas.get(place, 0))
    return result


#: What an entry is, its words, and its code, part by part: the first word, then planes from the highest down.
BY_HAND = [
    ("zeros", [0] * 32, "000 01.11111"),
    ("first word of four bits, the largest", [7] * 32, "001.0111 01.11111"),
    ("first word of four bits, the smallest", [-8] * 32, "001.1000 01.11111"),
    ("first word of eight bits", [8] * 32, "010.00001000 01.11111"),
    ("first word of eight bits, negative", [-9] * 32, "010.11110111 01.11111"),
    ("first word of eight bits, the smallest", [-128] * 32, "010.10000000 01.11111"),
    ("first word of 16 bits", [128] * 32, "011.0000000010000000 01.11111"),
    ("first word of 16 bits, the smallest", [-32768] * 32, "011.1000000000000000 01.11111"),
    ("first word of 32 bits", [32768] * 32, "1." + "0" * 16 + "1" + "0" * 15 + " 01.11111"),
    ("first word of 32 bits, the smallest", [-(2**31)] * 32, "1." + "1" + "0" * 31 + " 01.11111"),
    # All differences are 1: only the lowest plane changes, and all of it.
    ("a ramp", list(range(32)), f"000 01.11110 {ALL_ONES}"),
    # All are -1: the highest plane is all ones and nothing changes below it.
    ("a ramp down", list(range(0, -32, -1)), f"000 {ALL_ONES} 01.11110"),
    # All are 2: plane 1 is all ones; plane 0 changes back to zero.
    ("a ramp of twos", list(range(0, 64, 2)), f"000 01.11101 {ALL_ONES} {ALL_ONES}"),
    # One is 2: plane 1 has a single one, plane 0 is zero again, which is shorter than a single one.
    ("a step of two", words(0, {5: 2}), f"000 01.11101 00011.00101 {NONE}"),
    ("a step of one at the first place", words(0, {0: 1}), "000 01.11110 00011.00000"),
    ("a step of one at the last place", words(0, {30: 1}), "000 01.11110 00011.11110"),
    ("two neighbouring steps", words(0, {3: 1, 4: 1}), "000 01.11110 00010.00011"),
    ("two neighbouring steps at the last places", words(0, {29: 1, 30: 1}), "000 01.11110 00010.11101"),
    ("two steps apart", words(0, {3: 1, 5: 1}), "000 01.11110 1." + format(0b101000, "031b")),
    ("three neighbouring steps", words(0, {3: 1, 4: 1, 5: 1}), "000 01.11110 1." + format(0b111000, "031b")),
    # 4 at one place, 1 at another: plane 2 has a one, plane 1 is zero, plane 0 has another one.
    ("steps of four and one", words(0, {0: 4, 9: 1}), f"000 01.11100 00011.00000 {NONE} 00011.01001"),
    # 5 and 4 at the same places as 7 would be: plane 2 single, plane 1 zero again, plane 0 the one that is left.
    ("a step of five", words(0, {0: 5}), f"000 01.11100 00011.00000 {NONE} 00011.00000"),
    # 3: plane 1 has a one, and plane 0 the same one, which is no change: one plane alone that is zero.
    ("a step of three", words(0, {7: 3}), "000 01.11101 00011.00111 001"),
    # 15 then: three planes without a change.
    ("a step of fifteen", words(0, {7: 15}), "000 01.11011 00011.00111 01.00001"),
    # The largest difference needs the 33rd bit: 2^32 - 1 from the smallest word to the largest.
    (
        "from the smallest word to the largest",
        words(-(2**31), {0: 2**32 - 1}),
        "1.1" + "0" * 31 + " 001 00011.00000 01.11101",
    ),
    # And back: -(2^32 - 1), of 33 bits 1 0...0 1.
    (
        "from the largest word to the smallest",
        words(2**31 - 1, {0: -(2**32 - 1)}),
        "1.0" + "1" * 31 + f" 00011.00000 {NONE} 01.11100 00011.00000",
    ),
]


@pytest.mark.parametrize(("entry", "code"), [row[1:] for row in BY_HAND], ids=[row[0] for row in BY_HAND])
class TestByHand:
    def test_the_reference_gives_the_hand_written_code(self, entry: list[int], code: str) -> None:
        raw = struct.pack("<32i", *entry)
        bits = code.replace(".", "").replace(" ", "")
        assert bpc_reference.code(raw) == bits
        assert bpc_reference.entry(bits) == raw

    def test_every_implementation_writes_reads_and_counts_the_code(
        self, form: ModuleType, entry: list[int], code: str
    ) -> None:
        array = np.array(entry, "<i4")
        bits = code.replace(".", "").replace(" ", "")
        result = np.empty(1, np.uint16)
        form.count_bits(array.reshape(1, 32), result)
        assert result.tolist() == [len(bits)]
        size = np.array([-(-len(bits) // 64) * 8], np.uint8)
        out = np.full(size[0], 0xFF, np.uint8)
        form.write(array.reshape(1, 32), size, out)
        assert "".join(format(byte, "08b") for byte in out) == bits.ljust(8 * int(size[0]), "0")
        back = np.empty((1, 32), "<i4")
        assert form.read(out, size, back) == -1
        assert back[0].tolist() == entry


def test_the_hand_written_codes_cover_every_kind_of_code() -> None:
    parts = [code.split() for _, _, code in BY_HAND]
    assert {part[0].partition(".")[0] for part in parts} == {"000", "001", "010", "011", "1"}
    changes = {each.partition(".")[0] for part in parts for each in part[1:]}
    assert changes == {"01", "001", ALL_ONES, NONE, "00010", "00011", "1"}


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Ramps, words with a few steps or one bit width, floats that share an exponent, or anything."""
    kind = draw(st.sampled_from(["steps", "narrow", "floats", "sums", "bytes"]))
    if kind == "bytes":
        return draw(st.binary(min_size=128, max_size=128))
    first = draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-40000, 40000))
    if kind == "steps":
        power = st.integers(0, 31).map(lambda bit: 1 << bit)
        steps = draw(st.dictionaries(st.integers(0, 30), power | st.integers(-(2**31), 2**31), max_size=4))
        return _bytes(words(first, steps))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "floats":
        values = random.standard_normal(32, np.float32).astype(draw(st.sampled_from([np.float16, np.float32])))
        values[random.random(32) < draw(st.floats(0, 1))] = 0
        return values.astype(np.float32).tobytes()
    width = draw(st.integers(0, 32))
    values = random.integers(0, 2**width, 32) * (random.random(32) < draw(st.floats(0, 1)))
    return _bytes((first + (np.cumsum(values) if kind == "sums" else values)).tolist())


def _bytes(numbers: list[int]) -> bytes:
    return b"".join((number % 2**32).to_bytes(4, "little") for number in numbers)


@settings(deadline=None, max_examples=100)
@given(entries())
def test_an_entry_is_decoded_from_its_code(entry: bytes) -> None:
    code = bpc_reference.code(entry)
    assert bpc_reference.entry(code) == entry
    assert entry_bits(np.frombuffer(entry, np.uint8)).tolist() == [min(len(code), 1024)]


@settings(deadline=None, max_examples=100)
@given(entries())
def test_only_an_all_zero_entry_has_a_code_of_ten_bits(entry: bytes) -> None:
    assert (len(bpc_reference.code(entry)) == ZERO_BITS) == (entry == bytes(128))
    assert len(bpc_reference.code(entry)) >= ZERO_BITS


@settings(deadline=None, max_examples=100)
@given(entries())
def test_an_entry_takes_the_smallest_size_that_holds_its_code(entry: bytes) -> None:
    result = int(size_classes(np.frombuffer(entry, np.uint8))[0])
    bits = len(bpc_reference.code(entry))
    assert ENTRY_SIZES[result] == 128 or bits <= 8 * ENTRY_SIZES[result] or entry == bytes(128)
    assert result == 0 or bits > 8 * ENTRY_SIZES[result - 1]


class TestForms:
    @settings(deadline=None, max_examples=40)
    @given(st.lists(entries(), max_size=6), st.binary(max_size=127))
    def test_the_payload_equals_that_of_the_reference(self, rows: list[bytes], rest: bytes) -> None:
        raw = b"".join(rows) + rest
        array = np.frombuffer(raw, np.uint8)
        plain = bpc_reference.payload(raw)
        assert Bpc().encode(array)[HEADER_BYTES:].tobytes() == plain
        assert Bpc().compressed_size(array) == len(plain)

    @pytest.mark.parametrize(
        ("bytes", "dtype"),
        [
            *((132, dtype) for dtype in ("f2", "i1", "u1", "u2", ml_dtypes.bfloat16)),
            *((bytes, "f4") for bytes in (0, 4, 128, 132)),
            pytest.param(2100 * 128 + 36, "f4", marks=pytest.mark.slow),
        ],
    )
    def test_both_implementations_equal_the_reference(self, form: ModuleType, bytes: int, dtype: str) -> None:
        array = _varied(bytes).view(dtype)
        assert entry_bits(array).tolist() == _numpy_bits(array)
        stream = Bpc().encode(array)
        assert stream[HEADER_BYTES:].tobytes() == bpc_reference.payload(array.tobytes())
        assert Bpc().decode(stream, array.dtype, array.shape).tobytes() == array.tobytes()

    @pytest.mark.parametrize("dtype", ["f8", "i4", "i8", "c8", "c16", ">f4"])
    def test_both_implementations_count_equal_bits_for_all_dtypes(self, form: ModuleType, dtype: str) -> None:
        array = _varied(300 * 128 + 64).view(dtype)
        assert entry_bits(array).tolist() == _numpy_bits(array)

    def test_a_read_only_array_is_accepted(self, form: ModuleType) -> None:
        array = np.frombuffer(bytes(range(256)) * 2, np.uint8)
        assert not array.flags.writeable
        assert entry_bits(array).tolist() == _numpy_bits(array)
        assert Bpc().decode(Bpc().encode(array), np.uint8, array.shape).tobytes() == array.tobytes()

    def test_an_unaligned_array_is_accepted(self, form: ModuleType) -> None:
        array = np.frombuffer(b"?" + bytes(range(256)) * 2, np.uint8)[1:]
        assert entry_bits(array).tolist() == _numpy_bits(array)
        assert Bpc().decode(Bpc().encode(array), np.uint8, array.shape).tobytes() == array.tobytes()


def _numpy_bits(array: NDArray[np.generic]) -> list[int]:
    raw = array.tobytes()
    result = np.empty(-(-len(raw) // 128), np.uint16)
    bpc_numpy.count_bits(np.frombuffer(raw.ljust(128 * result.size, b"\0"), "<i4").reshape(-1, 32), result)
    return result.tolist()


def _varied(bytes: int) -> NDArray[np.uint8]:
    """A mix of zeros, ramps, floats with some zeros, words of few bits, and noise in every 32 entries."""
    random = np.random.default_rng(bytes)
    rows = random.integers(0, 2**32, (-(-bytes // 128), 32), np.uint32)
    rows >>= random.integers(0, 32, (len(rows), 1), np.uint32)
    rows[1::4] *= random.random(rows[1::4].shape) < 0.2
    rows[2::4] = np.cumsum(rows[2::4] & 7, axis=1)
    rows[3::8] = random.standard_normal(rows[3::8].shape).astype(np.float16).astype(np.float32).view(np.uint32)
    rows[::32] = 0
    return rows.reshape(-1).view(np.uint8)[:bytes].copy()


class TestSizes:
    """Encoded sizes: 4 bits of metadata per entry, and the entry sizes of Buddy Compression."""

    def test_zeros_take_only_their_metadata(self) -> None:
        assert Bpc().compressed_size(np.zeros(32 * 100, np.float32)) == 50
        assert Bpc().compressed_size(np.zeros(32 * 101, np.float32)) == 51

    def test_noise_takes_its_size_and_metadata(self) -> None:
        noise = np.random.default_rng(0).integers(0, 256, 12800, np.uint8)
        assert Bpc().compressed_size(noise) == 12800 + 50

    def test_an_entry_with_a_code_over_96_bytes_is_stored_uncompressed(self) -> None:
        """It would take all 128 bytes anyway, so the entry is kept as it is."""
        entry = next(row for row in _entries_by_width() if 768 < len(bpc_reference.code(row)) < 1024)
        payload = Bpc().encode(np.frombuffer(entry, np.uint8))[HEADER_BYTES:]
        assert payload.tobytes() == b"\x07" + entry

    def test_the_window_has_no_effect(self) -> None:
        array = _varied(100_000)
        assert Bpc(4096).compressed_size(array) == Bpc(65536).compressed_size(array)

    def test_the_test_data_has_entries_of_all_sizes(self) -> None:
        assert set(size_classes(_varied(5000 * 128)).tolist()) == set(range(8))


def _entries_by_width() -> list[bytes]:
    random = np.random.default_rng(0)
    return [random.integers(0, 2**width, 32).astype("<u4").tobytes() for width in range(20, 33)]


class TestDamage:
    """Damaged payloads with a valid checksum."""

    def refused(self, payload: bytes, elements: int, match: str) -> None:
        stream = np.frombuffer(bytes(HEADER_BYTES) + payload, np.uint8).copy()
        frame.seal(stream, Header(Bpc.number, "uint8", elements, 4096))
        with pytest.raises(CorruptStreamError, match=f"bpc stream: {match}"):
            Bpc().decode(stream, np.uint8, (elements,))

    def coded(self, code: str, size: int = 8) -> bytes:
        """The payload of one entry with that code."""
        bits = code.replace(".", "").replace(" ", "").ljust(8 * size, "0")
        return bytes([ENTRY_SIZES.index(size), *(int(bits[at : at + 8], 2) for at in range(0, 8 * size, 8))])

    def test_a_hand_written_code_is_decoded(self, form: ModuleType) -> None:
        stream = np.frombuffer(bytes(HEADER_BYTES) + self.coded(f"001.0111 01.11110 {ALL_ONES}"), np.uint8).copy()
        frame.seal(stream, Header(Bpc.number, "uint8", 128, 4096))
        assert Bpc().decode(stream, np.uint8, (128,)).view("<i4").tolist() == list(range(7, 39))

    @pytest.mark.parametrize(
        ("code", "size"),
        [
            ("000 01.11111 1", 8),  # something follows
            ("000 01.11111" + "0" * 53 + "1", 8),  # at the very end
            ("000 01.11110 01.00000", 8),  # 34 planes
            ("000 01.11110 00011.11111", 8),  # a single one at place 31 of 31
            ("000 01.11110 00010.11110", 8),  # the upper of two ones there
            ("000 01.11101 1." + "1" * 31 + " 1." + "0" * 20, 8),  # the code goes on behind its bytes
            ("000 01.00000", 8),  # and so do planes of all ones, which are zeros when written
            ("1." + "0" * 32 + " 1." + "1" * 31, 8),
        ],
    )
    def test_an_impossible_code_is_refused(self, form: ModuleType, code: str, size: int) -> None:
        what = f"entry 0: its {size} bytes do not begin with a code of 33 planes and end with zeros"
        self.refused(self.coded(code, size), 128, what)

    def test_an_inconsistent_33rd_bit_is_refused(self, form: ModuleType) -> None:
        """A single one in the highest plane: a difference of -2^32, which is impossible between two words."""
        self.refused(self.coded(f"000 00011.00000 {NONE} 01.11110"), 128, "entry 0: its 8 bytes do not begin")

    def test_the_damaged_entry_is_named(self, form: ModuleType) -> None:
        good, bad = self.coded("000 01.11110 00011.00000")[1:], self.coded("000 01.11110 00011.11111")[1:]
        self.refused(bytes([0x01, 0x17, 0x01]) + good + bytes(128) + good + bad, 640, "entry 4: its 8 bytes do not")

    def test_the_damaged_entry_is_named_after_many_others(self, form: ModuleType) -> None:
        metadata = bytes(550) + b"\x01"
        bad = self.coded("000 01.11110 00011.11111")[1:]
        self.refused(metadata + bad, 128 * 1101, "entry 1100: its 8 bytes do not")

    def test_nonzero_padding_after_the_elements_is_refused(self, form: ModuleType) -> None:
        self.refused(self.coded("001.0111 01.11111"), 100, "entry 0: it continues after the last element")

    def test_metadata_with_an_impossible_size_are_refused(self) -> None:
        self.refused(b"\x08" + bytes(128), 128, "metadata: they are not the sizes, 0 to 7, of 1 entries")

    def test_metadata_of_a_missing_entry_are_refused(self) -> None:
        self.refused(b"\x10" + bytes(8), 128, "metadata: they are not the sizes, 0 to 7, of 1 entries")

    def test_truncated_metadata_are_refused(self) -> None:
        self.refused(b"\x00", 128 * 3, "metadata: they are not the sizes, 0 to 7, of 3 entries")

    def test_fewer_bytes_than_in_the_metadata_are_refused(self) -> None:
        self.refused(b"\x01" + bytes(7), 128, "metadata: 7 bytes are there for entries of 8")

    @settings(deadline=None, max_examples=100)
    @example(size=8, code=bytes(8))
    @given(size=st.sampled_from(ENTRY_SIZES[1:7]), code=st.binary(min_size=1, max_size=96))
    def test_numpy_and_numba_implementations_agree_on_noise(self, size: int, code: bytes) -> None:
        self.read_by_both(code[:size].ljust(size, b"\0"))

    @settings(deadline=None, max_examples=100)
    @given(entry=entries(), data=st.data())
    def test_numpy_and_numba_implementations_agree_on_a_flipped_bit(self, entry: bytes, data: st.DataObject) -> None:
        code = bpc_reference.code(entry)
        size = min((size for size in ENTRY_SIZES[1:7] if 8 * size >= len(code)), default=96)
        changed = int(code.ljust(8 * size, "0")[: 8 * size], 2) ^ 1 << data.draw(st.integers(0, 8 * size - 1))
        self.read_by_both(changed.to_bytes(size, "big"))

    def read_by_both(self, code: bytes) -> None:
        codes, sizes = np.frombuffer(code, np.uint8), np.array([len(code)], np.uint8)
        plain, compiled = np.zeros((2, 1, 32), "<i4")
        fault = bpc_numpy.read(codes, sizes, plain)
        assert bpc_code.read(codes, sizes, compiled) == fault
        assert fault == 0 or plain.tolist() == compiled.tolist()
