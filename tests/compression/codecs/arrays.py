"""Arrays for tests of codecs: every element format, special bit patterns, runs and noise."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

#: As the user names them: bfloat16 both as its own type and as bit patterns.
DTYPES = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16, np.uint16, np.int8, np.uint8)]

#: Zero, -0.0, smallest and largest denormal, one, infinities, a NaN that is quiet, one that is not, one with all bits.
SPECIAL = {
    "float32": [0, 1 << 31, 1, 0x7FFFFF, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00123, 0x7F800001, 0xFFFFFFFF],
    "float16": [0, 1 << 15, 1, 0x3FF, 0x3C00, 0x7C00, 0xFC00, 0x7E12, 0x7C01, 0xFFFF],
    "bfloat16": [0, 1 << 15, 1, 0x7F, 0x3F80, 0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFFF],
    "int8": [0, 0x80, 1, 0x7F, 0xFF],
}
SPECIAL |= {"uint16": SPECIAL["bfloat16"], "uint8": SPECIAL["int8"]}


def bits(array: NDArray[Any]) -> list[int]:
    """The elements as whole numbers, in C order."""
    result: list[int] = np.frombuffer(array.tobytes(), f"u{array.itemsize}").tolist()
    return result


def activation(elements: int, sparsity: float, dtype: Any = np.float32, seed: int = 0) -> NDArray[Any]:
    """Nonzero values, a rounded share of which is set to zero in random places."""
    random = np.random.default_rng(seed)
    array = random.integers(1, 100, elements).astype(dtype)
    array[random.permutation(elements)[: round(elements * sparsity)]] = 0
    return array


@st.composite
def arrays(draw: st.DrawFn, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Arrays of runs and mixed patterns, from empty to several windows long."""
    pattern = st.sampled_from(SPECIAL[dtype.name]) | st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    length = st.integers(1, 70) | st.integers(1, 5000)
    run = st.tuples(st.lists(pattern, min_size=1, max_size=1), length)
    stretch = st.tuples(st.lists(pattern, min_size=2, max_size=8), length)
    pieces = []
    for patterns, elements in draw(st.lists(run | stretch, max_size=8)):
        random = np.random.default_rng(elements)
        pieces.append(random.choice(np.array(patterns, f"u{dtype.itemsize}"), elements))
    empty = np.empty(0, f"u{dtype.itemsize}")
    return np.concatenate([empty, *pieces]).view(dtype)
