"""The response surface: its closed form, monotonicity, covered GPUs, and refused input."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import load_node
from simgpu.compression.codecs.gpu.response import FormulaSurface, response_of
from simgpu.compression.codecs.gpu.setting import LARGEST_GRID, THREADS, all_settings
from simgpu.compression.codecs.gpu.surface import ResponseSurface
from simgpu.compression.codecs.gpu.table import RESPONSE, load_table
from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec

V100 = response_of(load_node("v100").gpu)
CODECS = st.sampled_from(V100.codecs)
BYTES = st.integers(0, 2**36)
SHARES = st.floats(0, 1)
GRIDS = st.integers(1, LARGEST_GRID)
BLOCKS = st.sampled_from(THREADS)


def closed_form_ns(moved: float, grid: int, threads: int) -> float:
    """The formula of the module's docstring, in GB/s and nanoseconds, for a V100."""
    gpu = load_table().gpus["Tesla V100 PCIe"]
    memory, rate = gpu.dram_bandwidth / 1e9, gpu.multiprocessor_rate / 1e9
    spread = (ceil(grid / 80) + gpu.half_threads / threads) / (grid * rate)
    wide = {64: 1.0, 128: gpu.wide_block}[threads]
    return gpu.launch + moved * (1 / memory + spread) + wide * (gpu.block_ns * grid + gpu.contention_ns * grid**2)


@pytest.mark.parametrize("grid", [1, 79, 80, 81, 199, 4096])
@pytest.mark.parametrize("threads", THREADS)
def test_times_follow_the_closed_form(grid: int, threads: int) -> None:
    size = 10**9
    # Half zeros: encoding reads twice and writes 1/2 + 1/32, decoding reads that and writes once.
    encode, decode = closed_form_ns(2.53125 * size, grid, threads), closed_form_ns(1.53125 * size, grid, threads)
    assert V100.encode_ns("zvc", size, 0.5, grid, threads) == pytest.approx(encode, abs=1)
    assert V100.decode_ns("zvc", size, 0.5, grid, threads) == pytest.approx(decode, abs=1)


def test_a_tensor_without_bytes_costs_the_launch_and_its_blocks() -> None:
    assert V100.encode_ns("zvc", 0, 0.5, 10, 64) == round(closed_form_ns(0, 10, 64))


@given(codec=CODECS, small=BYTES, large=BYTES, sparsity=SHARES, grid=GRIDS, threads=BLOCKS)
def test_more_bytes_never_take_less_time(
    codec: str, small: int, large: int, sparsity: float, grid: int, threads: int
) -> None:
    small, large = sorted((small, large))
    assert V100.encode_ns(codec, small, sparsity, grid, threads) <= V100.encode_ns(
        codec, large, sparsity, grid, threads
    )
    assert V100.decode_ns(codec, small, sparsity, grid, threads) <= V100.decode_ns(
        codec, large, sparsity, grid, threads
    )


@given(codec=CODECS, sparsity=SHARES, grid=GRIDS, threads=BLOCKS)
def test_times_are_linear_in_bytes(codec: str, sparsity: float, grid: int, threads: int) -> None:
    none, one, two = (V100.encode_ns(codec, size * 10**9, sparsity, grid, threads) for size in range(3))
    assert abs((two - one) - (one - none)) <= 2  # each is rounded to a nanosecond


@pytest.mark.parametrize("codec", V100.codecs)
@pytest.mark.parametrize("piece", range(5))
def test_times_are_linear_in_sparsity_between_multiples_of_a_fifth(codec: str, piece: int) -> None:
    low, high = piece / 5, (piece + 1) / 5
    for timed in (V100.encode_ns, V100.decode_ns):
        at = [timed(codec, 10**9, low + (high - low) * part / 4, 80, 64) for part in range(5)]
        steps = np.diff(at)
        assert abs(steps - steps[0]).max() <= 2
        assert steps[0] < 0  # fewer bytes are written


@given(codec=CODECS, size=BYTES, sparsity=SHARES, grid=GRIDS, threads=BLOCKS)
def test_arrays_give_the_same_times_as_scalars(codec: str, size: int, sparsity: float, grid: int, threads: int) -> None:
    grids = np.array([[grid], [1], [80]])
    encode = V100.encode_times(codec, size, sparsity, grids, [64, threads])
    decode = V100.decode_times(codec, size, sparsity, grids, [64, threads])
    for (row, column), result in np.ndenumerate(encode):
        at = (size, sparsity, int(grids[row, 0]), (64, threads)[column])
        assert result == V100.encode_ns(codec, *at)
        assert decode[row, column] == V100.decode_ns(codec, *at)


def test_every_setting_gives_the_same_time_alone_and_in_arrays() -> None:
    grids, threads = all_settings()
    times = V100.encode_times("zvc", 500_000_000, 0.37, grids, threads)
    each = [V100.encode_ns("zvc", 500_000_000, 0.37, int(g), int(t)) for g, t in zip(grids, threads, strict=True)]
    assert times.tolist() == each


def test_times_have_a_minimum_over_grid_sizes_and_steps_after_full_waves() -> None:
    def at(grid: int) -> int:
        return V100.encode_ns("zvc", 500_000_000, 0.5, grid, 64)

    assert at(1) > at(10) > at(80) < at(1024) < at(4096)
    assert at(80) < at(81)
    assert at(160) < at(161)
    falls = np.diff([at(grid) for grid in range(1, 400)]) < 0
    assert (np.diff(falls.astype(int)) == 1).sum() >= 2  # it rises and falls again: not convex


def test_the_other_codecs_are_slower_than_zvc() -> None:
    zvc, *others = ("zvc", "rle", "csr", "lz4")
    for other in others:
        assert V100.encode_ns(other, 10**9, 0.5, 80, 64) > V100.encode_ns(zvc, 10**9, 0.5, 80, 64)
        assert V100.decode_ns(other, 10**9, 0.5, 80, 64) > V100.decode_ns(zvc, 10**9, 0.5, 80, 64)


def test_a_gpu_is_recognized_by_its_driver_name() -> None:
    gpu = GpuSpec("bench", 1, reported_as=("Tesla V100 PCIe",))
    result = response_of(gpu)
    assert (result.gpu, result.basis) == ("bench", "fitted")
    assert result.encode_ns("zvc", 10**9, 0.5, 80, 64) == V100.encode_ns("zvc", 10**9, 0.5, 80, 64)


def test_the_2080ti_has_the_scaled_coefficients() -> None:
    spec = load_node("2080ti").gpu
    listed = response_of(spec)
    by_rule = response_of(replace(spec, name="another", reported_as=()))
    assert isinstance(listed, FormulaSurface)
    assert isinstance(by_rule, FormulaSurface)
    assert listed.basis == by_rule.basis == "scaled"
    assert listed.coefficients == by_rule.coefficients


def times_of(gpu: GpuSpec) -> list[int]:
    surface: ResponseSurface = response_of(gpu)
    return [surface.encode_ns("zvc", 10**9, 0.5, grid, 64) for grid in (10, 4096)]


def test_scaling_follows_bandwidth_and_number_of_multiprocessors() -> None:
    spec = GpuSpec("new", 1, dram_bandwidth=900 * 10**9, multiprocessors=80)
    faster = times_of(replace(spec, dram_bandwidth=1800 * 10**9))
    assert times_of(spec) == [V100.encode_ns("zvc", 10**9, 0.5, grid, 64) for grid in (10, 4096)]
    assert all(fast < slow for fast, slow in zip(faster, times_of(spec), strict=True))
    few, many = times_of(replace(spec, multiprocessors=160))
    assert few == times_of(spec)[0]
    assert many < times_of(spec)[1]


def test_a_gpu_with_missing_figures_is_refused_with_their_names() -> None:
    with pytest.raises(InputError, match=r"gpu\.dram_bandwidth, gpu\.multiprocessors: codec times of GPU 'card'"):
        response_of(GpuSpec("card", 1))
    with pytest.raises(InputError, match=r"^gpu\.multiprocessors: .*; add the missing values$"):
        response_of(GpuSpec("card", 1, dram_bandwidth=10**9))


@pytest.mark.parametrize(
    ("place", "given", "message"),
    [
        ("codec", ("zcv", 1, 0.5, 1, 64), "did you mean 'zvc'? known: csr, lz4, rle, zvc"),
        ("codec", ("zlib", 1, 0.5, 1, 64), "no times on a GPU are known for 'zlib'"),
        ("bytes", ("zvc", -1, 0.5, 1, 64), "-1 is not a size"),
        ("sparsity", ("zvc", 1, 1.01, 1, 64), "1.01 is not a share of zeros"),
        ("sparsity", ("zvc", 1, float("nan"), 1, 64), "nan is not a share of zeros"),
        ("grid", ("zvc", 1, 0.5, 0, 64), "0 is not a grid; give 1 to 4096 thread blocks"),
        ("grid", ("zvc", 1, 0.5, 4097, 64), "4097 is not a grid"),
        ("threads", ("zvc", 1, 0.5, 1, 96), "96 is not a block size; give 64 or 128 threads"),
    ],
)
def test_arguments_without_a_time_are_refused(
    place: str, given: tuple[str, int, float, int, int], message: str
) -> None:
    for timed in (V100.encode_ns, V100.decode_ns, V100.encode_times, V100.decode_times):
        with pytest.raises(InputError) as caught:
            timed(*given)
        assert [problem.place for problem in caught.value.problems] == [place]
        assert message in str(caught.value)


def test_all_problems_are_reported_with_the_first_wrong_value_of_arrays() -> None:
    with pytest.raises(InputError) as caught:
        V100.encode_times("gzip", [1, -5], 0.5, [[4], [5000]], 32)
    assert [problem.place for problem in caught.value.problems] == ["codec", "bytes", "grid", "threads"]
    assert "-5 is not a size" in str(caught.value)
    assert "5000 is not a grid" in str(caught.value)


def test_empty_arrays_give_empty_arrays() -> None:
    assert V100.encode_times("zvc", [], 0.5, 1, 64).shape == (0,)


def test_a_number_without_a_source_and_uneven_curves_are_refused(tmp_path: Path) -> None:
    text = RESPONSE.read_text()
    broken = text.replace("  codecs.zvc:", "  codecs.rle2:").replace("decode: [2.03125, ", "decode: [")
    file = tmp_path / "response.yaml"
    file.write_text(broken)
    with pytest.raises(InputError) as caught:
        load_table(file)
    assert "codecs.zvc.encode: has no source" in str(caught.value)
    assert "codecs.zvc: encode and decode differ in length" in str(caught.value)


def test_a_response_file_without_a_fitted_gpu_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "response.yaml"
    file.write_text(RESPONSE.read_text().replace("basis: fitted", "basis: scaled"))
    with pytest.raises(InputError, match="0 GPUs are fitted"):
        response_of(load_node("p100").gpu, file)
