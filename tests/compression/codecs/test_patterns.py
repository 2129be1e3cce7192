"""Modelled sizes: synthetic feature maps, the fitted table, and lookups in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.compression.codecs.measure import LAYOUTS
from simgpu.compression.codecs.pattern_fit import (
    SIDES,
    SPARSITY,
    main,
    measured_sizes,
    misfit,
    residuals,
    sizes_of,
    versions,
)
from simgpu.compression.codecs.pattern_maps import Pattern, field_of
from simgpu.compression.codecs.patterns import FORMAT_OF, MODELLED, load_patterns, modelled_bytes
from simgpu.compression.codecs.registry import make_codec
from simgpu.compression.codecs.sizes import compressed_bytes
from simgpu.errors import InputError
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import with_sparsity
from tests.papers.published import published

DATA = Path(__file__).parent / "data" / "activations.npz"
MIB = 2**20

#: The networks of cDMA and the batches of its table II.
CDMA = {"alexnet": 256, "overfeat": 256, "nin": 128, "vgg16": 128, "squeezenet": 512, "googlenet": 256}

by_codec = pytest.mark.parametrize("codec", MODELLED)
by_layout = pytest.mark.parametrize("layout", LAYOUTS)
by_itemsize = pytest.mark.parametrize("itemsize", FORMAT_OF)
WIDTHS = (2, 7, 13, 28, 55, 112, 224, 300)


def plane(side: int) -> tuple[int, int, int, int]:
    return 16, 32, side, side


def sizes_in_table(itemsize: int) -> dict[str, dict[str, list[list[float]]]]:
    """By codec and layout, for each side and sparsity."""
    sizes: dict[str, dict[str, list[list[float]]]] = load_patterns().model_dump()["sizes"][FORMAT_OF[itemsize]]
    return sizes


@cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(DATA) as stored:
        return dict(stored)


@cache
def shipped() -> Pattern:
    return Pattern(**load_patterns().pattern.model_dump())


@pytest.fixture
def same_libraries() -> None:
    created_by = load_patterns().created_by
    if versions() != created_by:
        pytest.skip(f"other versions of the libraries make other bytes: {versions()}, the table is of {created_by}")


@pytest.fixture(scope="module")
def fitted_residuals() -> dict[tuple[str, str, str], float]:
    """Residuals of the shipped pattern."""
    return residuals(shipped(), recorded(), sizes_of(recorded()))


@pytest.fixture(scope="module")
def ratios() -> dict[str, dict[str, float]]:
    """Ratios of each network by codec and layout."""
    return {name: network_ratios(name, batch) for name, batch in CDMA.items()}


class TestSyntheticMaps:
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("sparsity", [0.0, 0.013, 0.5, 0.999, 1.0])
    def test_patterns_have_the_requested_zeros(self, dtype: str, sparsity: float) -> None:
        maps = field_of(shipped(), (3, 5, 9, 11), 9, seed=1).maps(sparsity, dtype)
        assert maps.dtype == dtype
        assert maps.size - np.count_nonzero(maps) == round(maps.size * sparsity)
        assert not np.signbit(maps).any() and np.isfinite(maps).all()

    def test_zvc_compresses_patterns_as_in_its_closed_form(self) -> None:
        for sparsity in SPARSITY:
            maps = field_of(shipped(), (4, 8, 13, 13), 13, seed=2).maps(sparsity)
            description = compressed_bytes(maps.nbytes, 4, "zvc", sparsity)
            assert make_codec("zvc").compressed_size(maps) == description

    def test_more_zeros_extend_the_existing_zeros(self) -> None:
        field = field_of(shipped(), (2, 8, 14, 14), 14, seed=3)
        fewer, more = (field.maps(share) == 0 for share in (0.4, 0.6))
        assert (more | fewer).sum() == more.sum() > fewer.sum()

    def test_zeros_are_clustered_in_planes_and_channels(self) -> None:
        zero = field_of(shipped(), (16, 64, 28, 28), 28, seed=4).maps(0.6) == 0
        apart = zero[:, :, 1:] != zero[:, :, :-1]
        anywhere = 2 * 0.6 * 0.4
        assert apart.mean() < anywhere / 4
        by_channel = zero.mean(axis=(0, 2, 3))
        assert by_channel.max() > 0.95 and by_channel.min() < 0.2

    def test_the_same_seed_gives_the_same_maps(self) -> None:
        one, again, other = (field_of(shipped(), (2, 4, 8, 8), 8, seed).maps(0.5) for seed in (5, 5, 6))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_mantissas_use_all_bits_and_magnitudes_spread_like_recorded_ones(self) -> None:
        """The gain is chosen to match the spread of the logarithms of all layers' values."""
        created = {
            name: field_of(shipped(), array.shape, array.shape[3], 0).maps(float(np.mean(array == 0)))
            for name, array in recorded().items()
        }
        for name, array in created.items():
            values = array[array > 0].view(np.uint32)
            assert np.bitwise_or.reduce(values) & 0x7FFFFF == 0x7FFFFF, name
        real, modelled = (
            np.mean([np.log(array[array > 0]).std() for array in maps.values()]) for maps in (recorded(), created)
        )
        assert modelled == pytest.approx(real, rel=0.05)


class TestFit:
    """The fit to feature maps of a real network reproduces the table."""

    @pytest.mark.slow
    @pytest.mark.usefixtures("same_libraries")
    def test_the_stored_residuals_are_reproduced(self, fitted_residuals: dict[tuple[str, str, str], float]) -> None:
        description: Any = load_patterns().residuals
        assert set(fitted_residuals) == {
            (layer, codec, layout) for layer in recorded() for codec in MODELLED for layout in LAYOUTS
        }
        for (layer, codec, layout), residual in fitted_residuals.items():
            assert description[layer][codec][layout] == round(residual, 3)

    def test_the_fit_has_the_stated_error(self) -> None:
        description = [
            (layout, residual)
            for layer in load_patterns().residuals.values()
            for codec in layer.values()
            for layout, residual in codec.items()
        ]
        in_nchw = [residual for layout, residual in description if layout == "nchw"]
        assert sqrt(sum(residual**2 for residual in in_nchw) / len(in_nchw)) < 0.02
        assert sqrt(sum(residual**2 for _, residual in description) / len(description)) < 0.04
        assert max(map(abs, in_nchw)) < 0.05
        assert max(abs(residual) for _, residual in description) < 0.16

    @pytest.mark.slow
    @pytest.mark.parametrize("number", ["channels", "length"])
    def test_changing_any_fitted_number_by_a_fifth_is_worse(
        self, number: str, fitted_residuals: dict[tuple[str, str, str], float]
    ) -> None:
        best, real = misfit(fitted_residuals, recorded()), sizes_of(recorded())
        for factor in (0.8, 1.25):
            other = replace(shipped(), **{number: getattr(shipped(), number) * factor})
            assert misfit(residuals(other, recorded(), real), recorded()) > best

    @pytest.mark.exhaustive
    @pytest.mark.usefixtures("same_libraries")
    @pytest.mark.parametrize("side", [1, 7])
    @by_itemsize
    def test_the_pattern_table_is_reproduced(self, side: int, itemsize: int) -> None:
        sizes, place = sizes_in_table(itemsize), SIDES.index(side)
        expected = {codec: {layout: sizes[codec][layout][place] for layout in LAYOUTS} for codec in MODELLED}
        assert measured_sizes(shipped(), side, itemsize) == expected

    def test_a_bad_file_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        np.savez(tmp_path / "flat.npz", relu=np.zeros((2, 3), np.float32))
        (tmp_path / "text.npz").write_text("no archive")
        for name, what in (
            ("flat", "relu: float32 of shape (2, 3)"),
            ("text", "is damaged or was cut off: File is not a zip file"),
            ("none", "no such file"),
        ):
            assert main([str(tmp_path / f"{name}.npz"), "-o", str(tmp_path / "out.yaml")]) == 2
            assert what in capsys.readouterr().err
        assert not (tmp_path / "out.yaml").exists()


class TestLookUp:
    @by_codec
    @by_layout
    def test_all_zeros_take_almost_no_bytes(self, codec: str, layout: str) -> None:
        for itemsize, side in product(FORMAT_OF, WIDTHS):
            assert modelled_bytes(MIB, itemsize, plane(side), codec, 1.0, layout) < MIB / 100

    @by_codec
    @by_layout
    def test_without_zeros_each_window_adds_at_most_two_bytes(self, codec: str, layout: str) -> None:
        for itemsize, side, size in product(FORMAT_OF, WIDTHS, (1, 4095, 4097, MIB, 10**10 + 1)):
            assert modelled_bytes(size, itemsize, plane(side), codec, 0.0, layout) <= size + 2 * ceil(size / 4096)

    @given(st.data())
    def test_more_zeros_never_increase_the_modelled_size(self, data: st.DataObject) -> None:
        codec, layout = data.draw(st.sampled_from(MODELLED)), data.draw(st.sampled_from(list(LAYOUTS)))
        side, itemsize = data.draw(st.integers(1, 512)), data.draw(st.sampled_from(list(FORMAT_OF)))
        size = data.draw(st.integers(0, 10**11))
        fewer, more = sorted(data.draw(st.tuples(*[st.floats(0, 1)] * 2)))
        taken = [modelled_bytes(size, itemsize, plane(side), codec, share, layout) for share in (fewer, more)]
        assert taken[0] >= taken[1]

    @pytest.mark.parametrize("side", [7, 13, 28, 55, 112, 224, 300])
    @pytest.mark.parametrize("sparsity", [0.3, 0.4, 0.5, 0.6, 0.7])
    def test_layouts_and_codecs_rank_as_in_cdma(self, side: int, sparsity: float) -> None:
        """All do best in NCHW, and RLE is the worst of the three, but that it comes level with ZVC in NCHW where planes
        are large, and passes it where nearly all is zero, for masks of zeros cost ZVC a 32nd."""
        sizes = {
            (codec, layout): modelled_bytes(MIB, 4, plane(side), codec, sparsity, layout)
            for codec in MODELLED
            for layout in LAYOUTS
        }
        for codec in MODELLED:
            assert sizes[codec, "nchw"] == min(sizes[codec, layout] for layout in LAYOUTS)
        zvc = compressed_bytes(MIB, 4, "zvc", sparsity)
        for layout in LAYOUTS:
            level = 0.97 if layout == "nchw" and side > 13 else 1.0
            assert sizes["rle", layout] > max(level * zvc, sizes["zlib", layout])
        assert modelled_bytes(MIB, 4, plane(28), "rle", 0.95) < compressed_bytes(MIB, 4, "zvc", 0.95)

    def test_only_blocks_with_planes_have_spatial_neighbours(self) -> None:
        flat = modelled_bytes(MIB, 4, (64, 4096), "rle", 0.6)
        assert flat == modelled_bytes(MIB, 4, None, "rle", 0.6) == modelled_bytes(MIB, 4, (64, 4096, 1, 1), "rle", 0.6)
        assert flat > modelled_bytes(MIB, 4, plane(7), "rle", 0.6)

    @by_codec
    def test_the_curve_interpolates_between_its_points(self, codec: str) -> None:
        at = {side: modelled_bytes(MIB, 4, plane(side), codec, 0.6) for side in (7, 10, 14)}
        assert at[7] > at[10] > at[14]
        assert modelled_bytes(MIB, 4, (1, 1, 5, 20), codec, 0.6) == at[10], (
            "planes that are not square go by their area"
        )
        below, middle, above = (modelled_bytes(MIB, 4, plane(7), codec, share) for share in (0.5, 0.55, 0.6))
        assert middle == pytest.approx((below + above) / 2, abs=1)

    @by_codec
    @by_layout
    def test_the_curve_passes_through_the_points_of_the_table(self, codec: str, layout: str) -> None:
        for side, description in zip(SIDES, sizes_in_table(4)[codec][layout], strict=True):
            fitted_residuals = [modelled_bytes(40960, 4, plane(side), codec, share, layout) for share in SPARSITY]
            assert fitted_residuals == [ceil(10 * size) for size in description]

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"codec": "zvc"}, "the size in zvc is not modelled.*follows from the share of zeros"),
            ({"codec": "bpc"}, "the size in bpc is not modelled; measure it .compressibility.csv.; modelled: rle, lz4"),
            ({"codec": "zlip"}, "unknown codec 'zlip'.*did you mean 'zlib'"),
            ({"itemsize": 1}, "sizes of elements of 1 bytes are not modelled"),
            ({"sparsity": 1.1}, "1.1 is not a share of zeros"),
            ({"sparsity": float("nan")}, "nan is not a share of zeros"),
            ({"layout": "nchv"}, "unknown layout 'nchv'.*did you mean 'nchw'"),
        ],
    )
    def test_bad_input_is_reported(self, changed: dict[str, Any], message: str) -> None:
        given = {"block_bytes": MIB, "itemsize": 4, "shape": plane(7), "codec": "rle", "sparsity": 0.5} | changed
        with pytest.raises(InputError, match=message):
            modelled_bytes(**given)


class TestAgainstThePaper:
    """Figure 11 of cDMA: ratios over all layers of six networks, from sparsity that is itself modelled. Nothing here
    was fitted to it."""

    @pytest.mark.slow
    def test_codecs_and_layouts_rank_as_in_figure_11(self, ratios: dict[str, dict[str, float]]) -> None:
        for name, ratio in ratios.items():
            assert ratio["zlib nhwc"] < ratio["zvc"] < ratio["zlib nchw"], name
            for codec in ("rle", "zlib"):
                assert ratio[f"{codec} nchw"] > max(ratio[f"{codec} nhwc"], ratio[f"{codec} chwn"]), name
            for layout in LAYOUTS:
                assert ratio[f"rle {layout}"] < ratio[f"zlib {layout}"], name
                assert ratio[f"rle {layout}"] < ratio["zvc"] * (1.02 if layout == "nchw" else 1), name

    @pytest.mark.slow
    def test_mean_ratios_are_close_to_the_published_ones(self, ratios: dict[str, dict[str, float]]) -> None:
        mean = {key: sum(ratio[key] for ratio in ratios.values()) / len(ratios) for key in ratios["nin"]}
        assert mean["zvc without masks"] == pytest.approx(published()["cdma.ratio.zvc"][0], rel=0.04)
        assert mean["zlib nchw"] == pytest.approx(published()["cdma.ratio.zlib"], rel=0.03)
        assert mean["rle nchw"] < mean["zvc"]

    def test_known_differences_from_figure_11_persist(self, ratios: dict[str, dict[str, float]]) -> None:
        """One pattern for all networks gives zlib the same lead everywhere: GoogLeNet's 30% is missed, and so is that
        other networks gain less; in CHWN zlib stays ahead of ZVC; RLE is not the worst in NCHW in two of them."""
        leads = [ratio["zlib nchw"] / ratio["zvc"] for ratio in ratios.values()]
        assert 1.1 < min(leads) < max(leads) < 1.14
        assert [name for name, ratio in ratios.items() if ratio["rle nchw"] > ratio["zvc"]] == ["vgg16", "squeezenet"]
        assert all(ratio["zlib chwn"] > ratio["zvc"] for ratio in ratios.values())


def network_ratios(name: str, batch: int) -> dict[str, float]:
    """Bytes before over bytes after, over all feature maps with zeros and along a training of 51 epochs."""
    gpu = simgpu.load_node("titan-x-maxwell").gpu
    trace = with_sparsity(build_trace(name, batch=batch, gpu=gpu), 51, "cdma")
    table, before, after = trace.block_by_id, 0, dict.fromkeys(["zvc", "zvc without masks"], 0)
    for sample in trace.sparsity:
        block = table[sample.block]
        before += block.bytes
        with_masks = compressed_bytes(block.bytes, 4, "zvc", sample.sparsity)
        after["zvc"] += with_masks
        # The paper's ratios leave them out: a bit for each value.
        after["zvc without masks"] += with_masks - block.bytes // 32
        for codec in ("rle", "zlib"):
            for layout in LAYOUTS:
                size = modelled_bytes(block.bytes, 4, block.shape, codec, sample.sparsity, layout)
                after[f"{codec} {layout}"] = after.get(f"{codec} {layout}", 0) + size
    return {key: before / size for key, size in after.items()}
