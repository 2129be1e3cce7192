"""Measured samples from a file instead of fitted coefficients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simgpu import load_node
from simgpu.compression.codecs.gpu import fit
from simgpu.compression.codecs.gpu.response import MeasuredSurface, response_of
from simgpu.compression.codecs.gpu.samples import CodecSample
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.table import RESPONSE, load_table
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.gpu.timemodel import CodecTimeModel
from simgpu.compression.codecs.gpu.tuner import LaunchTuner
from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec

GPU = GpuSpec("bench", 1, reported_as=("NVIDIA Bench 1000",))
HEADER = "codec,bytes,sparsity,grid,threads,encode_ns,decode_ns"
V100 = response_of(load_node("v100").gpu)


def linear_ns(size: int, sparsity: float, grid: int) -> int:
    return size // 100 - round(1_000_000 * sparsity) + 5_000_000 + 10_000 * grid


def written(path: Path, ns: Callable[[int, float, int], int] = linear_ns) -> Path:
    """A response file that refers to a file with samples of 27 tensors and settings."""
    rows = [
        f"zvc,{size},{share},{grid},64,{ns(size, share, grid)},{2 * ns(size, share, grid)}"
        for grid in (80, 160, 320)
        for share in (0.0, 0.5, 1.0)
        for size in (10**7, 10**8, 10**9)
    ]
    (path / "bench.csv").write_text("\n".join([HEADER, *rows]))
    measured = "measured:\n  NVIDIA Bench 1000: bench.csv\n"
    text = RESPONSE.read_text().replace("codecs:\n", f"{measured}codecs:\n", 1)
    file = path / "response.yaml"
    file.write_text(f"{text}  measured.NVIDIA Bench 1000: made up for a test\n")
    return file


@pytest.mark.slow
def test_a_gpu_with_samples_uses_its_samples(tmp_path: Path) -> None:
    surface = response_of(GPU, written(tmp_path))
    assert isinstance(surface, MeasuredSurface)
    assert (surface.gpu, surface.basis, surface.codecs) == ("bench", "measured", ("zvc",))
    assert surface.description == f"measured, 27 samples of {tmp_path / 'bench.csv'}"
    for share in (0.0, 0.25, 0.9):
        expected = linear_ns(123_456_700, share, 160)
        assert surface.encode_ns("zvc", 123_456_700, share, 160, 64) == pytest.approx(expected, abs=2)
        assert surface.decode_ns("zvc", 123_456_700, share, 160, 64) == pytest.approx(2 * expected, abs=2)


@pytest.mark.slow
def test_a_gpu_with_samples_of_the_extreme_grids_can_be_tuned() -> None:
    samples = [
        CodecSample("zvc", size, share, grid, threads, linear_ns(size, share, grid), linear_ns(size, share, grid))
        for threads in (64, 128)
        for grid in (1, 100, 4096)
        for share in (0.2, 0.8)
        for size in (10**8, 10**9)
    ]
    tuner = LaunchTuner(MeasuredSurface.of("bench", samples), "zvc", (SparseTensor(10**9, 0.5),))
    result = tuner.grid_search()
    assert result.setting == LaunchSetting(1, 64)
    assert result.total_ns == tuner.at(result.setting) == pytest.approx(2 * linear_ns(10**9, 0.5, 1), abs=4)


@pytest.mark.slow
def test_the_fit_keeps_the_samples_that_the_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    monkeypatch.setattr(fit, "load_table", lambda: load_table(file))
    (tmp_path / "again.yaml").write_text(fit.response_text())
    again, shipped = (load_table(path) for path in (tmp_path / "again.yaml", file))
    assert (again.measured, again.sources) == (shipped.measured, shipped.sources)


def test_gpus_without_samples_use_the_fitted_surface(tmp_path: Path) -> None:
    other = response_of(load_node("v100").gpu, written(tmp_path))
    assert other == V100


@pytest.mark.slow
def test_times_are_interpolated_linearly_between_grids(tmp_path: Path) -> None:
    surface = response_of(GPU, written(tmp_path))
    at = [surface.encode_ns("zvc", 10**8, 0.5, grid, 64) for grid in (160, 200, 240, 280, 320)]
    assert np.diff(at).tolist() == pytest.approx([400_000] * 4, abs=2)


@pytest.mark.slow
def test_at_a_measured_setting_times_equal_the_time_model(tmp_path: Path) -> None:
    written(tmp_path)
    surface = MeasuredSurface.read("bench", tmp_path / "bench.csv")
    model = surface.models["zvc"][64][80]
    assert isinstance(model, CodecTimeModel)
    assert [(part.low, part.high) for part in model.encode["zvc"]] == [(0.0, 0.5), (0.5, 1.0)]
    assert model.predict_ns("zvc", 10**8, 0.3)[0] == surface.encode_ns("zvc", 10**8, 0.3, 80, 64)


@pytest.mark.slow
def test_arrays_give_the_same_times_as_scalars(tmp_path: Path) -> None:
    surface = response_of(GPU, written(tmp_path))
    sizes, grids = np.array([[10**7], [10**9]]), np.array([80, 100, 320])
    times = surface.decode_times("zvc", sizes, 0.7, grids, 64)
    assert times.tolist() == [
        [surface.decode_ns("zvc", int(size), 0.7, int(grid), 64) for grid in grids] for size in sizes[:, 0]
    ]


def test_samples_of_the_fitted_surface_reproduce_it_approximately(tmp_path: Path) -> None:
    """They differ only by the curvature of the product of bytes and zeros within a range of sparsities."""
    surface = response_of(
        GPU, written(tmp_path, lambda size, share, grid: V100.encode_ns("zvc", size, share, grid, 64))
    )
    for grid in (80, 160, 320):
        expected = V100.encode_ns("zvc", 5 * 10**8, 0.4, grid, 64)
        assert surface.encode_ns("zvc", 5 * 10**8, 0.4, grid, 64) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("grid", "threads", "message"),
    [
        (
            79,
            64,
            r"\(79, 64\) is outside the measured range of zvc on bench; measured with 64 threads: grids 80 to 320",
        ),
        (321, 64, r"\(321, 64\) is outside the measured range"),
        (80, 128, "measured with 128 threads: no grid"),
    ],
)
def test_settings_beyond_the_measured_ones_are_refused(tmp_path: Path, grid: int, threads: int, message: str) -> None:
    surface = response_of(GPU, written(tmp_path))
    with pytest.raises(InputError, match=message):
        surface.encode_ns("zvc", 10**8, 0.5, grid, threads)
    with pytest.raises(InputError, match="known: zvc"):
        surface.encode_ns("lz4", 10**8, 0.5, 80, 64)


def test_too_few_samples_of_a_setting_are_reported_with_the_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    samples = tmp_path / "bench.csv"
    rows = samples.read_text().splitlines()
    samples.write_text("\n".join(rows[:3]))
    with pytest.raises(
        InputError, match=r"bench.csv: zvc at \(80, 64\): samples of only 1 sparsity; measure at least two"
    ):
        response_of(GPU, file)
    samples.write_text("\n".join([rows[0], rows[1], rows[4]]))
    with pytest.raises(
        InputError, match=r"bench.csv: zvc at \(80, 64\): only 2 samples of zvc have sparsities from 0 to 0.5"
    ):
        response_of(GPU, file)


def test_missing_samples_are_reported(tmp_path: Path) -> None:
    file = written(tmp_path)
    (tmp_path / "bench.csv").unlink()
    with pytest.raises(InputError, match=r"bench\.csv: no such file"):
        response_of(GPU, file)
