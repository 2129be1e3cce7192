"""Compressed sizes of arrays by codec and memory layout, and functions that measure them during a recording.

Layouts are the orders in which frameworks store a batch of feature maps: N images, C channels, H rows, W columns; the
last letter is the fastest dimension. Caffe stores NCHW, cuDNN NCHW or NHWC, Neon and cuda-convnet CHWN (cDMA, Rhu et
al., HPCA 2018, section II).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.base import SMALLEST_WINDOW
from simgpu.compression.codecs.elements import FORMATS, format_of
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, histogram, size_classes
from simgpu.compression.codecs.registry import codec_class, codec_names, make_codec
from simgpu.errors import InputError, did_you_mean
from simgpu.io.array_files import open_array
from simgpu.trace.entries import CODEC, LAYOUT

#: The codec of memory-entries, each of which it compresses independently.
BY_ENTRY = CODEC

#: The layout in a trace of a block without exactly four axes.
PLAIN = "plain"


def sizes_in(codecs: Iterable[str]) -> Callable[[NDArray[Any]], tuple[tuple[str, str, int], ...]]:
    """For `record(..., measure=sizes_in(["zvc", "rle"]))`: codec, layout and bytes of an array, windows of 4 KiB.

    An array with four axes is measured in all layouts, any other one in memory order (`PLAIN`); an array of a type that
    codecs do not support, such as float64, is not measured. BPC, which compresses memory-entries, is omitted:
    `entries_in` measures it. Raises `InputError` for an unknown codec.

    >>> import numpy as np
    >>> sizes_in(["zvc"])(np.zeros((2, 32), np.float32))
    (('zvc', 'plain', 8),)
    """
    names = tuple(name for name in dict.fromkeys(codecs) if name != BY_ENTRY)
    for name in names:
        codec_class(name)

    def sizes(array: NDArray[Any]) -> tuple[tuple[str, str, int], ...]:
        if not names or array.dtype.name not in FORMATS:
            return ()
        result = measure(array, names)
        return tuple((row.codec, PLAIN if row.layout == AS_GIVEN else row.layout, row.compressed) for row in result)

    return sizes


def entries_in(codecs: Iterable[str]) -> Callable[[NDArray[Any]], tuple[tuple[str, str, int, int, int], ...]] | None:
    """For `record(..., measure_entries=entries_in(["bpc"]))`: number of an array's memory-entries by size.

    A row is codec, layout, bytes of an entry, its compressed bytes, and the number of entries with that size. None if
    BPC is not among the codecs.

    >>> import numpy as np
    >>> entries_in(["bpc"])(np.zeros(100, np.float32))
    (('bpc', 'plain', 128, 0, 4),)
    """
    return _entries if BY_ENTRY in codecs else None


def _entries(array: NDArray[Any]) -> tuple[tuple[str, str, int, int, int], ...]:
    counts = histogram(size_classes(array))
    result = zip(ENTRY_SIZES, counts, strict=True)
    return tuple((BY_ENTRY, LAYOUT, ENTRY_BYTES, size, count) for size, count in result if count)


#: The layout of a measurement that reordered nothing.
AS_GIVEN = "as given"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Compressed size of an array: codec, layout, window in bytes, and bytes before and after compression."""

    codec: str
    layout: str
    window: int
    bytes: int
    compressed: int

    @property
    def ratio(self) -> float | None:
        """Bytes before over bytes after compression; None for an empty array."""
        return self.bytes / self.compressed if self.compressed else None


def measure(
    array: NDArray[Any],
    codecs: Iterable[str] = (),
    layouts: Iterable[str] = (),
    window: int = SMALLEST_WINDOW,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[Measurement, ...]:
    """Compressed sizes of an array without simgpu's header, ordered by codec, then by layout.

    codecs: names; empty for all. layouts: orders of an array with axes N, C, H, W; empty for all three, or for C order
    if the array does not have four axes. window: bytes. progress: called with each step's description. Raises
    `InputError` for unknown names, an invalid window, a dtype that codecs do not support, and layouts of an array
    without exactly four axes.

    >>> for each in measure(np.zeros((1, 2, 32, 32), np.float32), ["zvc", "rle"], ["nchw"]):
    ...     print(each.codec, each.layout, each.compressed, each.ratio)
    zvc nchw 256 32.0
    rle nchw 12 682.6666666666666
    """
    format_of(array.dtype)
    chosen = {name: make_codec(name, window) for name in tuple(codecs) or codec_names()}
    orders = tuple(layouts) or (tuple(LAYOUTS) if array.ndim == 4 else (AS_GIVEN,))
    sizes: dict[tuple[str, str], int] = {}
    for layout in dict.fromkeys(orders):
        ordered = array if layout == AS_GIVEN else in_layout(array, layout)
        lying = np.ascontiguousarray(ordered)
        for name, codec in chosen.items():
            progress(f"{name}, {layout}")
            sizes[name, layout] = codec.compressed_size(lying)
    return tuple(
        Measurement(name, layout, window, array.nbytes, sizes[name, layout])
        for name in chosen
        for layout in dict.fromkeys(orders)
    )


def load_array(path: str | Path) -> NDArray[Any]:
    """The array of a ``.npy`` file, memory-mapped: data are read when they are used.

    Untyped values of two bytes, which NumPy writes for bfloat16, are returned as uint16. Raises `InputError` for a file
    that is missing, truncated, not a ``.npy`` file, or contains Python objects or values that codecs do not support.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "ones.npy"
    >>> np.save(file, np.ones((2, 3), np.float16))
    >>> load_array(file).shape
    (2, 3)
    """
    array = open_array(path)
    if array.dtype == np.dtype("V2"):
        array = array.view(np.uint16)
    try:
        format_of(array.dtype)
    except InputError as error:
        raise InputError.single(path, "", error.problems[0].what, error.problems[0].remedy) from None
    return array


#: The order of an NCHW array's axes in each layout.
LAYOUTS: Mapping[str, tuple[int, int, int, int]] = MappingProxyType(
    {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1), "chwn": (1, 2, 3, 0)}
)


def in_layout(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """A view of an array with axes N, C, H, W, with its axes in the order of the layout.

    Raises `InputError` for an unknown layout or an array without exactly four axes.

    >>> import numpy as np
    >>> in_layout(np.zeros((16, 3, 32, 48), np.float32), "chwn").shape
    (3, 32, 48, 16)
    """
    if layout not in LAYOUTS:
        raise InputError.single("", "layout", f"unknown layout '{layout}'", did_you_mean(layout, LAYOUTS))
    if array.ndim != 4:
        what = f"shape {array.shape} has {array.ndim} axes, but a layout needs four: N, C, H, W"
        raise InputError.single("", "layout", what, "give a 4-D array in the order NCHW, or no layout")
    return array.transpose(LAYOUTS[layout])
