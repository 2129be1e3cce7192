"""What codecs make of an array, in the layouts it could lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.base import SMALLEST_WINDOW
from simgpu.compression.codecs.elements import format_of
from simgpu.compression.codecs.layouts import LAYOUTS, in_layout
from simgpu.compression.codecs.registry import codec_names, make_codec
from simgpu.errors import InputError
from simgpu.io.array_files import open_array

#: The layout of a measurement that reordered nothing.
AS_GIVEN = "as given"


@dataclass(frozen=True, slots=True)
class Measurement:
    """An array in a codec: name of the codec and the layout, window, bytes before and after."""

    codec: str
    layout: str
    window: int
    bytes: int
    compressed: int

    @property
    def ratio(self) -> float | None:
        """How many times smaller it became; None where there was nothing."""
        return self.bytes / self.compressed if self.compressed else None


def measure(
    array: NDArray[Any],
    codecs: Iterable[str] = (),
    layouts: Iterable[str] = (),
    window: int = SMALLEST_WINDOW,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[Measurement, ...]:
    """Sizes of the payloads, codec by codec and in each layout by layout.

    codecs: their names; none for all. layouts: for an array with axes N, C, H, W; none for all three, and for an array
    with other than four axes its elements in C order as they are. window: bytes. progress: told what is being done.
    Raises `InputError` for unknown names, an impossible window, a dtype that codecs do not take, and layouts of an
    array with other than four axes.

    >>> for found in measure(np.zeros((1, 2, 32, 32), np.float32), ["zvc", "rle"], ["nchw"]):
    ...     print(found.codec, found.layout, found.compressed, found.ratio)
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
    """The array of a ``.npy`` file, its data left in the file until they are used.

    Values of two bytes without a type, which is what NumPy writes for bfloat16, come as uint16. Raises `InputError` for
    a file that is missing, is not of this kind, was cut off, or holds Python objects or values that codecs do not take.

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
