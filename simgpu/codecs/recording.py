"""What a recording measures of its feature maps, in words that the recorder understands without knowing codecs.

Does not live here: recording (`simgpu.trace.recorder`), which is given what this makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from simgpu.codecs.elements import FORMATS
from simgpu.codecs.measure import AS_GIVEN, measure
from simgpu.codecs.registry import codec_class

#: The layout, in a trace, of a block that has not four axes.
PLAIN = "plain"


def sizes_in(codecs: Iterable[str]) -> Callable[[NDArray[Any]], tuple[tuple[str, str, int], ...]]:
    """For `record(..., measure=sizes_in(["zvc", "rle"]))`: codec, layout and bytes of an array, windows of 4 KiB.

    An array with four axes is measured in all layouts, any other as it lies (`PLAIN`), one that codecs do not take (in
    float64, say) not at all. Raises `InputError` for an unknown codec.

    >>> import numpy as np
    >>> sizes_in(["zvc"])(np.zeros((2, 32), np.float32))
    (('zvc', 'plain', 8),)
    """
    names = tuple(dict.fromkeys(codecs))
    for name in names:
        codec_class(name)

    def sizes(array: NDArray[Any]) -> tuple[tuple[str, str, int], ...]:
        if not names or array.dtype.name not in FORMATS:
            return ()
        found = measure(array, names)
        return tuple((row.codec, PLAIN if row.layout == AS_GIVEN else row.layout, row.compressed) for row in found)

    return sizes
