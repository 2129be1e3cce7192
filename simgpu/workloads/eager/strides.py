"""Strides of tensors: contiguous ones, those of an elementwise result, and those of a view. They decide what copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Sizes = tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> Sizes:
    """Strides, in values, of a contiguous tensor.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    result, step = [], 1
    for side in reversed(shape):
        result.append(step)
        step *= max(side, 1)
    return tuple(reversed(result))


def is_contiguous(shape: Sizes, strides: Sizes) -> bool:
    """Whether values follow each other in memory; dimensions of size 1 do not count.

    >>> is_contiguous((2, 1, 3), (3, 99, 1)), is_contiguous((2, 3), (1, 2))
    (True, False)
    """
    expected = contiguous_strides(shape)
    return all(side == 1 or own == step for side, own, step in zip(shape, strides, expected, strict=True))


def is_dense(shape: Sizes, strides: Sizes) -> bool:
    """Whether the values fill their memory without gaps or overlaps, in any order of dimensions."""
    step = 1
    for stride, side in sorted((stride, side) for side, stride in zip(shape, strides, strict=True) if side != 1):
        if stride != step:
            return False
        step *= side
    return True


def broadcast(*shapes: Sizes) -> Sizes:
    """The common shape of operands.

    >>> broadcast((2, 1, 4), (3, 1))
    (2, 3, 4)
    """
    length = max(map(len, shapes))
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    return tuple(max(sides) if 0 not in sides else 0 for sides in zip(*padded, strict=True))


def elementwise_strides(shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """Strides of an elementwise result: dimensions in the order of the operands' strides.

    operands: (shape, strides) of each. As ``reorder_dimensions`` in PyTorch's ``ATen/TensorIterator.cpp``.

    >>> elementwise_strides((2, 3, 4), [((2, 3, 4), (12, 1, 3)), ((4,), (1,))])
    (12, 1, 3)
    """
    if all(own == shape and is_contiguous(own, strides) for own, strides in operands):
        return contiguous_strides(shape)
    if all(own == shape and strides == operands[0][1] and is_dense(own, strides) for own, strides in operands):
        return operands[0][1]
    steps = [_broadcast_strides(shape, *operand) for operand in operands]
    order = list(reversed(range(len(shape))))
    for place in range(1, len(order)):
        at = place
        for before in range(place - 1, -1, -1):
            compared = _compare(order[before], order[at], shape, steps)
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif compared < 0:
                break
    result, step = [0] * len(shape), 1
    for dimension in order:
        result[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(result)


def _broadcast_strides(shape: Sizes, own: Sizes, strides: Sizes) -> Sizes:
    missing = len(shape) - len(own)
    expanded = (
        0 if side == 1 and shape[missing + place] != 1 else stride
        for place, (side, stride) in enumerate(zip(own, strides, strict=True))
    )
    return (*[0] * missing, *expanded)


def _compare(first: int, second: int, shape: Sizes, steps: Sequence[Sizes]) -> int:
    """1 if the second dimension varies faster than the first, -1 if slower, 0 if undecided."""
    for strides in steps:
        if not strides[first] or not strides[second]:
            continue
        if strides[first] != strides[second]:
            return 1 if strides[first] > strides[second] else -1
        if shape[first] > shape[second]:
            return 1
    return 0


def view_strides(shape: Sizes, strides: Sizes, new: Sizes) -> Sizes | None:
    """Strides of a view in another shape; None if the values cannot be viewed so without a copy.

    As ``computeStride`` in PyTorch's ``ATen/TensorUtils.cpp``.

    >>> view_strides((2, 3, 4), (12, 4, 1), (6, 4)), view_strides((3, 2), (1, 3), (6,))
    ((4, 1), None)
    """
    if not prod(shape):
        return contiguous_strides(new)
    result = [0] * len(new)
    place, base, run, viewed = len(new) - 1, strides[-1] if strides else 1, 1, 1
    for dimension in reversed(range(len(shape))):
        run *= shape[dimension]
        outer = dimension - 1
        if dimension == 0 or (shape[outer] != 1 and strides[outer] != run * base):
            while place >= 0 and (viewed < run or new[place] == 1):
                result[place] = viewed * base
                viewed *= new[place]
                place -= 1
            if viewed != run:
                return None
            if dimension:
                base, run, viewed = strides[outer], 1, 1
    if not shape:
        return contiguous_strides(new)
    return tuple(result) if place == -1 else None
