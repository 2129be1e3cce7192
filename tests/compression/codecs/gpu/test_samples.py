"""Synthetic tensors and samples: ranges, seeds, noise, arrays, and the file of measured samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simgpu import load_node
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.samples import draw_samples, read_samples
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.tensors import SparseTensor, array_of, synthetic_tensors
from simgpu.compression.codecs.registry import make_codec
from simgpu.compression.codecs.sizes import compressed_bytes
from simgpu.errors import InputError

V100 = response_of(load_node("v100").gpu)
SETTING = LaunchSetting(199, 64)
HEADER = "codec,bytes,sparsity,grid,threads,encode_ns,decode_ns"


def test_tensors_cover_sizes_and_sparsities() -> None:
    tensors = synthetic_tensors(3000, np.random.default_rng(1), (0.2, 0.9))
    sizes = np.array([tensor.bytes for tensor in tensors])
    shares = np.array([tensor.sparsity for tensor in tensors])
    assert 20_000_000 <= sizes.min() < 40_000_000
    assert 1_980_000_000 < sizes.max() <= 2_000_000_000
    assert not (sizes % 4).any()
    assert 0.2 <= shares.min() < 0.21
    assert 0.89 < shares.max() <= 0.9


def test_equal_seeds_give_equal_tensors_and_samples() -> None:
    def drawn(seed: int) -> object:
        generator = np.random.default_rng(seed)
        return draw_samples(V100, "csr", synthetic_tensors(20, generator), SETTING, generator)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_samples_scatter_around_the_surface_as_requested() -> None:
    tensors = [SparseTensor(10**9, 0.5)] * 4000
    samples = draw_samples(V100, "zvc", tensors, SETTING, np.random.default_rng(0), noise=0.05)
    encode = np.log([sample.encode_ns / V100.encode_ns("zvc", 10**9, 0.5, 199, 64) for sample in samples])
    decode = np.log([sample.decode_ns / V100.decode_ns("zvc", 10**9, 0.5, 199, 64) for sample in samples])
    for scatter in (encode, decode):
        assert abs(scatter.mean()) < 0.004
        assert scatter.std() == pytest.approx(0.05, rel=0.05)
    assert abs(np.corrcoef(encode, decode)[0, 1]) < 0.1


def test_a_negative_noise_is_refused() -> None:
    with pytest.raises(InputError, match=r"noise: -0\.1 is not a relative standard deviation"):
        draw_samples(V100, "zvc", [], SETTING, np.random.default_rng(0), noise=-0.1)


def test_an_array_has_the_requested_zeros_and_compresses_accordingly() -> None:
    tensor = SparseTensor(4 * 12345, 0.3)
    array = array_of(tensor, np.random.default_rng(0))
    assert array.nbytes == tensor.bytes
    assert int((array == 0).sum()) == 3703  # of 12345
    assert (array >= 0).all()
    assert make_codec("zvc").compressed_size(array) == compressed_bytes(tensor.bytes, 4, "zvc", 0.3)


def test_impossible_tensors_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        SparseTensor(-4, 2.0)
    assert [problem.place for problem in caught.value.problems] == ["bytes", "sparsity"]
    with pytest.raises(InputError, match="cannot create an array of 1073741824 bytes"):
        array_of(SparseTensor(2**30, 0.5), np.random.default_rng(0))
    with pytest.raises(InputError) as caught:
        synthetic_tensors(-1, np.random.default_rng(0), (0.8, 0.2))
    assert [problem.place for problem in caught.value.problems] == ["count", "sparsity"]


def test_invalid_launch_settings_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        LaunchSetting(0, 32)
    assert [problem.place for problem in caught.value.problems] == ["grid", "threads"]


def test_sample_columns_may_be_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    file.write_text("decode_ns,codec,bytes,sparsity,grid,threads,encode_ns\n7,zvc,400,0.25,80,64,9\n")
    [sample] = read_samples(file)
    assert (sample.codec, sample.bytes, sample.sparsity, sample.encode_ns, sample.decode_ns) == ("zvc", 400, 0.25, 9, 7)


def test_every_wrong_value_of_a_file_is_reported_by_row_and_column(tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    rows = ["zcv,400,0.5,80,64,9,7", "zvc,400,1.5,0,64,9,0", "zvc,big,0.5,80,64,9,", "zvc,400,0.5,80,64,9"]
    file.write_text("\n".join([HEADER, *rows]))
    with pytest.raises(InputError) as caught:
        read_samples(file)
    assert [problem.place for problem in caught.value.problems] == [
        "row 2, column codec",
        "row 3, column sparsity",
        "row 3, column grid",
        "row 3, column decode_ns",
        "row 4, column bytes",
        "row 4, column decode_ns",
        "row 5, column decode_ns",
    ]
    assert "did you mean 'zvc'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "contains no samples"),
        ("codec,bytes\nzvc,4\n", "row 1: the columns are codec, bytes; write exactly these: codec, bytes, sparsity"),
    ],
)
def test_files_without_samples_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "samples.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_samples(file)
