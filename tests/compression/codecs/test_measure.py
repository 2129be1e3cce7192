"""Measuring arrays, in Python and by ``simgpu codec``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from simgpu.compression.codecs.measure import AS_GIVEN, load_array, measure
from simgpu.compression.codecs.registry import codec_names, make_codec
from simgpu.errors import InputError
from tests.cli.cli_helpers import simgpu
from tests.compression.codecs.arrays import activation

IMAGES = activation(2 * 8 * 16 * 16, 0.5).reshape(2, 8, 16, 16)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "relu.npy", IMAGES)
    return tmp_path / "relu.npy"


def test_every_codec_is_measured_in_every_layout() -> None:
    result = measure(IMAGES)
    assert [(row.codec, row.layout) for row in result] == [
        (codec, layout) for codec in codec_names() for layout in ("nchw", "nhwc", "chwn")
    ]
    for row in result:
        order = {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1), "chwn": (1, 2, 3, 0)}[row.layout]
        lying = np.ascontiguousarray(IMAGES.transpose(order))
        assert row.compressed == make_codec(row.codec).compressed_size(lying)
        assert row.ratio == IMAGES.nbytes / row.compressed


def test_only_the_requested_layouts_are_measured_once_each() -> None:
    result = measure(IMAGES, ["rle", "zvc", "rle"], ["chwn", "chwn"], window=65536)
    assert [(row.codec, row.layout, row.window) for row in result] == [("rle", "chwn", 65536), ("zvc", "chwn", 65536)]
    assert result[0].compressed == make_codec("rle", 65536).compressed_size(IMAGES.transpose(1, 2, 3, 0))


@pytest.mark.parametrize("shape", [(), (7,), (4, 9), (2, 2, 2, 2, 2)])
def test_arrays_without_four_axes_are_measured_in_their_order(shape: tuple[int, ...]) -> None:
    result = measure(np.ones(shape, np.float16), ["zvc"])
    assert [row.layout for row in result] == [AS_GIVEN]
    with pytest.raises(InputError, match="but a layout needs four"):
        measure(np.ones(shape, np.float16), ["zvc"], ["nchw"])


def test_an_array_of_size_0_has_no_ratio() -> None:
    assert {row.ratio for row in measure(np.zeros((0, 3, 4, 5), np.float32))} == {None}


def test_progress_is_reported() -> None:
    description: list[str] = []
    measure(IMAGES, ["zvc", "csr"], ["nhwc"], progress=description.append)
    assert description == ["zvc, nhwc", "csr, nhwc"]


class TestFiles:
    def test_arrays_are_memory_mapped(self, file: Path) -> None:
        array = load_array(file)
        assert isinstance(array, np.memmap)
        assert array.tobytes() == IMAGES.tobytes()

    def test_bfloat16_is_given_as_bit_patterns(self, tmp_path: Path) -> None:
        array = IMAGES.astype(ml_dtypes.bfloat16)
        np.save(tmp_path / "bf16.npy", array)
        loaded = load_array(tmp_path / "bf16.npy")
        assert loaded.dtype == np.uint16 and loaded.tobytes() == array.tobytes()

    def refused(self, path: Path, why: str) -> None:
        with pytest.raises(InputError, match=why) as caught:
            load_array(path)
        assert caught.value.problems[0].file == str(path)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "none.npy", "no such file")
        self.refused(tmp_path, "is a folder")

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "several.npz", one=IMAGES)
        self.refused(tmp_path / "several.npz", "archive of arrays")
        for content, why in ((b"", "is empty"), (b"id,bytes\n", "not a .npy file"), (b"\x80\x04K\x01.", "not a .npy")):
            (tmp_path / "other.npy").write_bytes(content)
            self.refused(tmp_path / "other.npy", why)

    @pytest.mark.slow
    def test_every_truncation_is_reported(self, tmp_path: Path) -> None:
        np.save(tmp_path / "whole.npy", np.ones(5, np.float32))
        content = (tmp_path / "whole.npy").read_bytes()
        for length in range(len(content)):
            (tmp_path / "cut.npy").write_bytes(content[:length])
            self.refused(tmp_path / "cut.npy", "cut off|is empty|not a .npy file")

    @pytest.mark.slow
    def test_a_damaged_header_is_reported(self, tmp_path: Path) -> None:
        """A changed byte may give a valid header of another array; otherwise it is an `InputError`."""
        np.save(tmp_path / "whole.npy", np.ones(5, np.float32))
        content = (tmp_path / "whole.npy").read_bytes()
        refused = 0
        for place in range(128):
            for value in (0, 10, 32, 39, 48, 57, 65, 123, 255):
                damaged = bytearray(content)
                damaged[place] = value
                (tmp_path / "damaged.npy").write_bytes(damaged)
                try:
                    load_array(tmp_path / "damaged.npy")
                except InputError:
                    refused += 1
        assert refused > 100

    def test_pickles_are_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "objects.npy", np.array([{"any": "thing"}]), allow_pickle=True)
        self.refused(tmp_path / "objects.npy", "holds Python objects")

    @pytest.mark.parametrize("dtype", ["float64", ">f4", "int64", "U2", [("a", "f4")]])
    def test_unsupported_dtypes_are_refused(self, tmp_path: Path, dtype: Any) -> None:
        np.save(tmp_path / "other.npy", np.zeros(3, dtype))
        self.refused(tmp_path / "other.npy", "not applicable|the byte order of")


class TestCommand:
    def test_measure_prints_size_and_ratio_by_codec_and_layout(self, file: Path) -> None:
        done = simgpu("compression", "measure", file)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        description = " ".join(done.stdout.split())
        assert (
            "2x8x16x16, float32, 16 KiB" in description
            and "zeros 50.0%" in description
            and "window 4 KiB" in description
        )
        assert (
            "codec layout size ratio zvc nchw 8.5 KiB 1.882x nhwc 8.5 KiB 1.882x chwn 8.5 KiB 1.882x rle" in description
        )
        assert description.count("nchw") == len(codec_names())

    def test_json_has_the_same_measurements(self, file: Path) -> None:
        done = simgpu(
            "compression", "measure", file, "--json", "--codec", "zvc", "--codec", "rle", "--window", "64 KiB"
        )
        document = json.loads(done.stdout)
        assert (document["shape"], document["format"], document["bytes"]) == ([2, 8, 16, 16], "float32", 16384)
        assert (document["sparsity"], document["window"]) == (0.5, 65536)
        assert document["sizes"] == [
            {"codec": row.codec, "layout": row.layout, "bytes": row.compressed, "ratio": row.ratio}
            for row in measure(IMAGES, ["zvc", "rle"], window=65536)
        ]

    def test_an_array_without_layouts_is_measured_with_a_note(self, tmp_path: Path) -> None:
        np.save(tmp_path / "matrix.npy", np.ones((64, 32), np.float16))
        done = simgpu("compression", "measure", tmp_path / "matrix.npy")
        assert done.exit_code == 0
        assert "not measured: layouts need four axes (N, C, H, W), this array has 2" in " ".join(done.stdout.split())
        assert done.stdout.count("as given") == len(codec_names())

    def test_an_empty_array_has_no_ratio(self, tmp_path: Path) -> None:
        np.save(tmp_path / "empty.npy", np.ones((0, 1, 2, 3), np.int8))
        done = simgpu("compression", "measure", tmp_path / "empty.npy", "--codec", "zlib", "--layout", "nchw")
        assert done.exit_code == 0
        assert done.stdout.splitlines()[-1].split() == ["zlib", "nchw", "0", "B", "-"]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--codec", "zlip"], "unknown codec 'zlip'; did you mean 'zlib'?"),
            (["--layout", "chvn"], "unknown layout 'chvn'; did you mean 'chwn'?"),
            (["--window", "5000"], "window: '5000' has no unit"),
            (["--window", "2 KiB"], "give a power of two from 4 KiB to 64 KiB"),
            (["--window", "5 KiB"], "give a power of two from 4 KiB to 64 KiB"),
        ],
    )
    def test_wrong_arguments_end_with_exit_code_2(self, file: Path, arguments: list[str], why: str) -> None:
        done = simgpu("compression", "measure", file, *arguments)
        assert done.exit_code == 2
        assert why in done.stderr and "Traceback" not in done.stderr

    def test_bad_files_exit_with_2(self, tmp_path: Path) -> None:
        np.save(tmp_path / "double.npy", np.ones(3))
        (tmp_path / "text.npy").write_text("no array", encoding="utf-8")
        for name, why in (
            ("double.npy", "not applicable to dtype 'float64'"),
            ("text.npy", "not a .npy"),
            ("no", "no such file"),
        ):
            done = simgpu("compression", "measure", tmp_path / name)
            assert done.exit_code == 2
            assert f"{tmp_path / name}: " in done.stderr and why in done.stderr

    def test_list_names_every_codec_and_its_source(self) -> None:
        done = simgpu("compression", "codecs")
        assert done.exit_code == 0
        for name in codec_names():
            assert any(line.startswith(f"{name} ") for line in done.stdout.splitlines())
        assert "cDMA" in done.stdout and "CSWAP" in done.stdout
