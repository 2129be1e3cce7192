"""Modelled sizes of feature maps in RLE, LZ4 and zlib, from their sparsity alone.

These sizes depend on the positions of the zeros. Synthetic feature maps, whose zeros cluster as those of a trained
network do (`simgpu.compression.codecs.pattern_maps`), were compressed by the real codecs; ``patterns.yaml`` contains
the result, the network that the pattern was fitted to, the residuals, and the versions of the libraries. Between its
points, sizes are interpolated linearly over sparsity and over the logarithm of a plane's side.

Imports pydantic, so import it lazily.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from math import ceil, log2, sqrt
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field

from simgpu.compression.codecs.base import SMALLEST_WINDOW
from simgpu.compression.codecs.measure import LAYOUTS
from simgpu.compression.codecs.registry import codec_class
from simgpu.compression.codecs.sizes import FROM_SPARSITY
from simgpu.errors import InputError, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping

SCHEMA = "simgpu.patterns/2"
TABLE = Path(__file__).with_name("patterns.yaml")

#: Codecs whose size is modelled.
MODELLED = ("rle", "lz4", "zlib")

Text = Annotated[str, Field(min_length=1)]
Codec = Literal["rle", "lz4", "zlib"]
Layout = Literal["nchw", "nhwc", "chwn"]
Format = Literal["float32", "float16"]
#: The element format used for each width in bytes.
FORMAT_OF: dict[int, Format] = {4: "float32", 2: "float16"}


class PatternNumbers(FileModel):
    """The parameters of `simgpu.compression.codecs.pattern_maps.Pattern`."""

    channels: float
    length: float
    gain: float


class PatternTable(FileModel):
    """The table. sizes: bytes per full window of 4 KiB, by format, codec, layout, side and sparsity.

    residuals: by layer of the real network, codec and layout, the natural logarithm of modelled over measured bytes.
    """

    schema_: Literal["simgpu.patterns/2"] = Field(alias="schema")
    created_by: dict[str, Text]
    fitted_to: Text
    pattern: PatternNumbers
    residuals: dict[str, dict[Codec, dict[Layout, float]]]
    sparsity: tuple[float, ...] = Field(strict=False)
    sides: tuple[int, ...] = Field(strict=False)
    sizes: dict[Format, dict[Codec, dict[Layout, list[list[float]]]]]


@cache
def load_patterns(path: Path = TABLE) -> PatternTable:
    """The shipped table, or that of another file. Raises `InputError` for an invalid file.

    >>> load_patterns().sparsity[0], load_patterns().sparsity[-1]
    (0.0, 1.0)
    """
    document = read_yaml_mapping(path, SCHEMA)
    return validate(PatternTable, document.values, lambda place: (document.file, document.place(place)))


def modelled_bytes(
    block_bytes: int, itemsize: int, shape: Sequence[int] | None, codec: str, sparsity: float, layout: str = "nchw"
) -> int:
    """Modelled bytes of a feature map of `block_bytes` bytes in RLE, LZ4 or zlib, in windows of 4 KiB.

    itemsize: bytes of an element: 4 (float32) or 2 (modelled as float16).
    shape: axes N, C, H, W; without exactly four axes, or if None, values have no neighbours in a plane (a side of 1).
    sparsity: share of zeros, 0..1. layout: order in memory, nchw, nhwc or chwn.
    More zeros never take more bytes; a block without zeros takes at most 2 bytes per window more than uncompressed.
    Raises `InputError` for a codec or itemsize that is not modelled, a sparsity outside 0..1, and an unknown codec or
    layout.

    >>> modelled_bytes(2**20, 4, (16, 16, 128, 128), "rle", 1.0)
    1536
    """
    _check(itemsize, codec, sparsity, layout)
    table = load_patterns()
    rows = table.sizes[FORMAT_OF[itemsize]][cast("Codec", codec)][cast("Layout", layout)]  # checked above
    side = log2(sqrt(shape[2] * shape[3])) if shape is not None and len(shape) == 4 and min(shape) > 0 else 0.0
    by_side = [_between(table.sparsity, row, sparsity) for row in rows]
    each = _between([log2(known) for known in table.sides], by_side, side)
    return ceil(block_bytes * each / SMALLEST_WINDOW)


def _check(itemsize: int, codec: str, sparsity: float, layout: str) -> None:
    codec_class(codec)
    if codec not in MODELLED:
        what = f"the size in {codec} is not modelled"
        instead = "it follows from the share of zeros" if codec in FROM_SPARSITY else "measure it (compressibility.csv)"
        raise InputError.single("", "codec", what, f"{instead}; modelled: {', '.join(MODELLED)}")
    if itemsize not in FORMAT_OF:
        what = f"sizes of elements of {itemsize!r} bytes are not modelled"
        raise InputError.single("", "itemsize", what, "give 4 or 2, the floating-point formats that are modelled")
    if not 0 <= sparsity <= 1:  # a NaN is within no bounds
        raise InputError.single("", "sparsity", f"{sparsity!r} is not a share of zeros", "give a number from 0 to 1")
    if layout not in LAYOUTS:
        raise InputError.single("", "layout", f"unknown layout '{layout}'", did_you_mean(layout, LAYOUTS))


def _between(points: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear interpolation between the two points around `at`; constant beyond the ends."""
    right = bisect_right(points, at)
    if right in (0, len(points)):
        return values[max(right - 1, 0)]
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share
