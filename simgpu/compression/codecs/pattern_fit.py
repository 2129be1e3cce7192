"""``python -m simgpu.compression.codecs.pattern_fit MAPS.npz -o FILE``: fits the pattern of zeros to feature maps and
writes its table.

``python -m simgpu.compression.codecs.pattern_fit tests/compression/codecs/data/activations.npz -o
simgpu/compression/codecs/patterns.yaml`` regenerates the shipped table in a few minutes; it needs SciPy (the extra
``calibrate``). With the library versions that the table names, the result is byte-identical.

Two parameters of the pattern (channels, length) are fitted by least squares over layers, codecs and layouts; a residual
is the logarithm of modelled over measured bytes, weighted by the layer's bytes. Synthetic maps have the layer's shape
and sparsity. The third parameter, the gain, is chosen so that the spread of magnitudes matches that of the real maps: a
free gain would more than double the spread and reduce the residuals only a little. Two more parameters were tried, for
contributions of single planes and of single values to the field; the fit set them to zero, so they are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any
from zlib import ZLIB_RUNTIME_VERSION

import lz4
import numpy as np
import yaml
from numpy.typing import NDArray

from simgpu.compression.codecs.base import SMALLEST_WINDOW
from simgpu.compression.codecs.measure import LAYOUTS, measure
from simgpu.compression.codecs.pattern_maps import Pattern, field_of
from simgpu.compression.codecs.patterns import FORMAT_OF, MODELLED, SCHEMA
from simgpu.errors import InputError, MissingExtraError
from simgpu.io.array_files import open_archive
from simgpu.io.fitted_tables import write_fitted

#: Start of the search (its gain is not fitted), largest number of patterns tried, and digits of the result.
START = Pattern(channels=1.5, length=4.0, gain=1.0)
_TRIES, _DIGITS = 60, 3
#: Number of draws of synthetic maps whose sizes are added up, so that the fit does not depend on a single draw.
_DRAWS = 3

SPARSITY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
SIDES = (1, 2, 4, 7, 14, 28, 56, 112, 224)
#: The table's maps: images (more for small planes, to have enough data), channels, and compressed elements of a plane:
#: two windows, because values farther apart are not compressed together.
_IMAGES, _CHANNELS, _PLANE = 8, 128, 2048
_FEWEST_ELEMENTS = 2**18

#: Bytes by layer, codec and layout.
Sizes = dict[tuple[str, str, str], float]


def sizes_of(maps: Mapping[str, NDArray[Any]]) -> Sizes:
    """Compressed sizes of feature maps (N, C, H, W), in each layout, bytes."""
    return {
        (name, result.codec, result.layout): result.compressed
        for name, array in maps.items()
        for result in measure(array, MODELLED)
    }


def residuals(pattern: Pattern, maps: Mapping[str, NDArray[Any]], real: Sizes) -> Sizes:
    """Natural logarithm of modelled over real bytes, by layer, codec and layout."""
    total = dict.fromkeys(real, 0.0)
    shares = {name: 1 - np.count_nonzero(array) / array.size for name, array in maps.items()}
    for draw in range(_DRAWS):
        created = {
            name: field_of(pattern, array.shape, array.shape[3], draw).maps(shares[name])
            for name, array in maps.items()
        }
        for key, size in sizes_of(created).items():
            total[key] += size
    return {key: log(size / _DRAWS / real[key]) for key, size in total.items()}


def misfit(modelled: Sizes, maps: Mapping[str, NDArray[Any]]) -> float:
    """Mean square of residuals, weighted by the bytes of their layers."""
    weights = {key: maps[key[0]].nbytes for key in modelled}
    return sum(weights[key] * residual**2 for key, residual in modelled.items()) / sum(weights.values())


def fitted_pattern(maps: Mapping[str, NDArray[Any]]) -> Pattern:
    """The pattern that fits real feature maps best. Raises `MissingExtraError` without SciPy."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtraError("fitting patterns of zeros", "scipy", "calibrate") from None
    real = sizes_of(maps)
    first = np.array([START.channels, START.length])

    def squares(factors: NDArray[np.float64]) -> float:
        return misfit(residuals(_pattern(first * np.abs(factors)), maps, real), maps)

    simplex = np.ones((first.size + 1, first.size)) + 0.3 * np.eye(first.size + 1, first.size)
    options = {"maxfev": _TRIES, "initial_simplex": simplex, "xatol": 10**-_DIGITS, "fatol": 1e-7}
    result = minimize(squares, np.ones(first.size), method="Nelder-Mead", options=options)
    return _pattern(first * np.abs(result.x))


def _pattern(numbers: NDArray[np.float64]) -> Pattern:
    channels, length = (round(float(number), _DIGITS) for number in numbers)
    return Pattern(channels, length, START.gain)


def measured_sizes(pattern: Pattern, side: int, itemsize: int) -> dict[str, dict[str, list[float]]]:
    """Compressed bytes per window by codec and layout, for each of `SPARSITY`, in planes of `side` x `side`."""
    rows = min(side, -(-_PLANE // side))
    images = max(_IMAGES, -(-_FEWEST_ELEMENTS // (_CHANNELS * rows * side)))
    field = field_of(pattern, (images, _CHANNELS, rows, side), side, seed=0)
    table: dict[str, dict[str, list[float]]] = {codec: {layout: [] for layout in LAYOUTS} for codec in MODELLED}
    for share in SPARSITY:
        for result in measure(field.maps(share, FORMAT_OF[itemsize]), MODELLED):
            row = table[result.codec][result.layout]
            each = round(SMALLEST_WINDOW * result.compressed / result.bytes, 1)
            row.append(min([each, *row[-1:]]))  # removes noise of a few bytes: more zeros must not give larger sizes
    return table


def fitted_table(path: Path) -> str:
    """The table as YAML text, fitted to the arrays of an ``.npz`` file. Raises `InputError` for an invalid file."""
    maps = _load(path)
    pattern = fitted_pattern(maps)
    parts: dict[str, Any] = {
        "schema": SCHEMA,
        "created_by": versions(),
        "fitted_to": f"{len(maps)} recorded layers in {path.name} (rle, lz4, zlib; nchw, nhwc, chwn; windows of 4 KiB)",
        "pattern": {name: getattr(pattern, name) for name in Pattern.__slots__},
        "residuals": _nested(residuals(pattern, maps, sizes_of(maps))),
        "sparsity": list(SPARSITY),
        "sides": list(SIDES),
        "sizes": {name: _over_sides(pattern, itemsize) for itemsize, name in FORMAT_OF.items()},
    }
    return yaml.safe_dump(parts, sort_keys=False, width=120, default_flow_style=None)


def versions() -> dict[str, str]:
    """Versions of the libraries that determine the compressed bytes."""
    return {"numpy": np.__version__, "zlib": ZLIB_RUNTIME_VERSION, "lz4": lz4.__version__}


def _over_sides(pattern: Pattern, itemsize: int) -> dict[str, dict[str, list[list[float]]]]:
    by_side = [measured_sizes(pattern, side, itemsize) for side in SIDES]
    return {codec: {layout: [result[codec][layout] for result in by_side] for layout in LAYOUTS} for codec in MODELLED}


def _nested(sizes: Sizes) -> dict[str, dict[str, dict[str, float]]]:
    nested: dict[str, dict[str, dict[str, float]]] = {}
    for (layer, codec, layout), value in sizes.items():
        nested.setdefault(layer, {}).setdefault(codec, {})[layout] = round(value, _DIGITS)
    return nested


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with open_archive(path) as archive:
        maps = {name: archive.read(name) for name in archive.headers}
    for name, array in maps.items():
        if array.ndim != 4 or array.dtype != np.float32 or not array.any():
            what = f"{array.dtype} of shape {array.shape} is not a nonempty feature map"
            raise InputError.single(path, name, what, "give float32 arrays with axes N, C, H, W")
    return maps


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 for invalid input."""
    description = "Fit patterns of zeros to recorded feature maps, and write the table of modelled sizes."
    source = ("maps", ".npz file of feature maps, float32, axes N, C, H, W")
    return write_fitted("python -m simgpu.compression.codecs.pattern_fit", description, source, fitted_table, arguments)


if __name__ == "__main__":
    sys.exit(main())
