"""Layouts, compared with cDMA section VII-A, on feature maps of a network trained on photographs.

How these were made stands in ``data/README.md``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simgpu.compression.codecs.measure import LAYOUTS, in_layout, measure
from simgpu.errors import InputError

DATA = Path(__file__).parent / "data"

#: Bytes by layer, codec and layout.
Sizes = dict[tuple[str, str, str], int]

by_window = pytest.mark.parametrize("window", [4096, 65536])


@pytest.fixture(scope="module")
def activations() -> dict[str, np.ndarray]:
    with np.load(DATA / "activations.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def sizes_by_window(activations: dict[str, np.ndarray]) -> dict[int, Sizes]:
    return {
        window: {
            (layer, result.codec, result.layout): result.compressed
            for layer, array in activations.items()
            for result in measure(array, window=window)
        }
        for window in (4096, 65536)
    }


@pytest.fixture
def sizes(sizes_by_window: dict[int, Sizes], window: int) -> Sizes:
    return sizes_by_window[window]


def network(sizes: Sizes, codec: str, layout: str) -> int:
    """Bytes of all layers together, as cDMA weights its ratios."""
    return sum(size for (_, *key), size in sizes.items() if key == [codec, layout])


def test_the_last_letter_of_a_layout_changes_fastest() -> None:
    n, c, h, w = 2, 3, 5, 7
    array = np.arange(n * c * h * w).reshape(n, c, h, w)
    sides = {"n": n, "c": c, "h": h, "w": w}
    for layout in LAYOUTS:
        lying = in_layout(array, layout)
        assert lying.shape == tuple(sides[letter] for letter in layout)
        at = {"n": 1, "c": 2, "h": 3, "w": 4}
        assert lying[tuple(at[letter] for letter in layout)] == array[1, 2, 3, 4]
    assert np.shares_memory(in_layout(array, "chwn"), array)


def test_the_recorded_activations_look_like_relu_results(activations: dict[str, np.ndarray]) -> None:
    """Results of ReLUs: no negative values, no -0.0 (nonzero for ZVC), and mantissas that use all bits."""
    for name, array in activations.items():
        assert array.dtype == np.float32 and array.ndim == 4
        assert array.min() == 0 and not np.signbit(array).any()
        assert 0.5 < np.mean(array == 0) < 0.85, name
        values = array[array > 0].view(np.uint32)
        assert np.bitwise_or.reduce(values) & 0x7FFFFF == 0x7FFFFF
        assert np.mean(values & 0x1FFF != 0) > 0.99, name  # not rounded to float16 or bfloat16


@by_window
def test_zvc_and_csr_are_the_same_in_all_layouts(activations: dict[str, np.ndarray], sizes: Sizes) -> None:
    for layer in activations:
        for codec in ("zvc", "csr"):
            assert len({sizes[layer, codec, layout] for layout in LAYOUTS}) == 1, (layer, codec)


@by_window
@pytest.mark.parametrize("codec", ["rle", "zlib", "lz4"])
def test_rle_and_zlib_compress_best_in_nchw(activations: dict[str, np.ndarray], sizes: Sizes, codec: str) -> None:
    for layer in activations:
        assert sizes[layer, codec, "nchw"] < min(sizes[layer, codec, "nhwc"], sizes[layer, codec, "chwn"]), layer


@by_window
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rle_is_the_worst_of_the_three(activations: dict[str, np.ndarray], sizes: Sizes, layout: str) -> None:
    for layer in activations:
        assert sizes[layer, "rle", layout] > max(sizes[layer, "zvc", layout], sizes[layer, "zlib", layout]), layer


def test_zlib_beats_zvc_in_nchw_and_not_in_nhwc(sizes_by_window: dict[int, Sizes]) -> None:
    """In windows of 4 KB. In CHWN zlib is behind in cDMA except for GoogLeNet; this network is another exception."""
    sizes = sizes_by_window[4096]
    assert network(sizes, "zlib", "nchw") < network(sizes, "zvc", "nchw")
    assert network(sizes, "zlib", "nhwc") > network(sizes, "zvc", "nhwc")
    assert network(sizes, "zlib", "chwn") < network(sizes, "zvc", "chwn")


def test_larger_windows_save_at_most_5_percent(sizes_by_window: dict[int, Sizes]) -> None:
    for codec in ("zvc", "rle", "zlib"):
        for layout in LAYOUTS:
            small, large = (network(sizes_by_window[window], codec, layout) for window in (4096, 65536))
            assert 0.95 * small < large <= small, (codec, layout)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (1, 2, 3, 4, 5)])
def test_only_arrays_with_four_axes_have_a_layout(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"{len(shape)} axes, but a layout needs four"):
        in_layout(np.zeros(shape, np.float32), "nhwc")


def test_an_unknown_layout_is_reported_with_the_known_names() -> None:
    with pytest.raises(InputError, match="did you mean 'nchw'"):
        in_layout(np.zeros((1, 1, 1, 1), np.float32), "nchv")
