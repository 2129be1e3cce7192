"""What a recording measures of its values, in words that the recorder understands without knowing codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from simgpu.compression.codecs.elements import FORMATS
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, histogram, size_classes
from simgpu.compression.codecs.measure import AS_GIVEN, measure
from simgpu.compression.codecs.registry import codec_class
from simgpu.trace.entries import CODEC, LAYOUT

#: The codec of memory-entries: it compresses each of them alone, whatever block it is of.
BY_ENTRY = CODEC

#: The layout, in a trace, of a block that has not four axes.
PLAIN = "plain"


def sizes_in(codecs: Iterable[str]) -> Callable[[NDArray[Any]], tuple[tuple[str, str, int], ...]]:
    """For `record(..., measure=sizes_in(["zvc", "rle"]))`: codec, layout and bytes of an array, windows of 4 KiB.

    An array with four axes is measured in all layouts, any other as it lies (`PLAIN`), one that codecs do not take (in
    float64, say) not at all. BPC, which compresses memory-entries, is passed over: `entries_in` is for it. Raises
    `InputError` for an unknown codec.

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
        found = measure(array, names)
        return tuple((row.codec, PLAIN if row.layout == AS_GIVEN else row.layout, row.compressed) for row in found)

    return sizes


def entries_in(codecs: Iterable[str]) -> Callable[[NDArray[Any]], tuple[tuple[str, str, int, int, int], ...]] | None:
    """For `record(..., measure_entries=entries_in(["bpc"]))`: how many memory-entries of an array have which size.

    A row is codec, layout, bytes of an entry, bytes that it takes, and how many entries take that many. None
    where BPC is not among the codecs.

    >>> import numpy as np
    >>> entries_in(["bpc"])(np.zeros(100, np.float32))
    (('bpc', 'plain', 128, 0, 4),)
    """
    return _entries if BY_ENTRY in codecs else None


def _entries(array: NDArray[Any]) -> tuple[tuple[str, str, int, int, int], ...]:
    counts = histogram(size_classes(array))
    found = zip(ENTRY_SIZES, counts, strict=True)
    return tuple((BY_ENTRY, LAYOUT, ENTRY_BYTES, size, count) for size, count in found if count)
