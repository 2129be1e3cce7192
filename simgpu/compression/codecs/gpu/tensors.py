"""Synthetic tensors: sizes and sparsities to compute codec times for, and small arrays with them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.gpu.setting import is_integer, tensor_problems
from simgpu.errors import InputError, Problem
from simgpu.units import format_bytes

#: Range of sizes of CSWAP's generator, bytes, and of sparsities for training a time model (section IV-C).
SMALLEST, LARGEST = 20_000_000, 2_000_000_000
TRAINED = (0.2, 0.8)
#: Range of sparsities for testing it (section V-C).
TESTED = (0.2, 0.9)
_ITEMSIZE = 4
_LARGEST_ARRAY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """Bytes of a tensor and its share of zeros, 0..1. Raises `InputError` for negative bytes or other shares."""

    bytes: int
    sparsity: float

    def __post_init__(self) -> None:
        problems = tensor_problems("", self.bytes, self.sparsity, known=("",))
        if problems:
            raise InputError(problems)


def synthetic_tensors(
    count: int, generator: np.random.Generator, sparsity: tuple[float, float] = TRAINED
) -> tuple[SparseTensor, ...]:
    """`count` fp32 tensors with sizes uniform over 20..2000 MB and sparsities uniform over a range.

    Raises `InputError` for a negative count or a range that is not within 0..1 from low to high.

    >>> [tensor] = synthetic_tensors(1, np.random.default_rng(1))
    >>> tensor.bytes, round(tensor.sparsity, 3)
    (1033406816, 0.77)
    """
    low, high = sparsity
    problems = []
    if not is_integer(count) or count < 0:
        problems.append(Problem("", "count", f"{count!r} is not a number of tensors", "give 0 or more"))
    if not 0 <= low <= high <= 1:
        remedy = "give two numbers from 0 to 1, the smaller first"
        problems.append(Problem("", "sparsity", f"{low!r} to {high!r} is not a range of shares of zeros", remedy))
    if problems:
        raise InputError(problems)
    elements = generator.integers(SMALLEST // _ITEMSIZE, LARGEST // _ITEMSIZE, size=count, endpoint=True)
    shares = generator.uniform(low, high, size=count)
    return tuple(
        SparseTensor(int(number) * _ITEMSIZE, float(share)) for number, share in zip(elements, shares, strict=True)
    )


def array_of(tensor: SparseTensor, generator: np.random.Generator) -> NDArray[np.float32]:
    """An fp32 array for a tensor of at most 256 MiB: zeros at random positions, other values positive, as after a ReLU.

    The number of zeros is elements x sparsity, rounded. Raises `InputError` for a larger tensor, or bytes that are not
    a multiple of 4.

    >>> array = array_of(SparseTensor(400, 0.25), np.random.default_rng(0))
    >>> array.size, int((array == 0).sum())
    (100, 25)
    """
    if tensor.bytes > _LARGEST_ARRAY or tensor.bytes % _ITEMSIZE:
        remedy = f"give a multiple of {_ITEMSIZE} B, at most {format_bytes(_LARGEST_ARRAY)}"
        raise InputError.single("", "bytes", f"cannot create an array of {tensor.bytes} bytes", remedy)
    size = tensor.bytes // _ITEMSIZE
    values = 1 - generator.random(size, np.float32)
    values[generator.permutation(size)[: round(size * Fraction(tensor.sparsity))]] = 0
    return values
