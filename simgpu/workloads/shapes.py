"""Shape inference: the shape of a layer's result."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]
Pair = tuple[int, int]
#: One number for both height and width, or (height, width).
Side = int | Pair


def pair(side: Side) -> Pair:
    """(height, width) of a side; one number stands for both.

    >>> pair(3), pair((1, 7))
    ((3, 3), (1, 7))
    """
    return (side, side) if isinstance(side, int) else side


def window_sides(
    sides: Sequence[int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1), *, ceil: bool = False
) -> Pair | None:
    """Height and width after a convolution or pooling; None if the window is larger than the padded input.

    With `ceil`, the last window counts if it starts inside the input or its leading padding, as in PyTorch.

    >>> window_sides((224, 224), (7, 7), (2, 2), (3, 3))
    (112, 112)
    >>> window_sides((112, 112), (3, 3), (2, 2), (0, 0), ceil=True)
    (56, 56)
    """
    height, width = (
        _side(sides[axis], kernel[axis], stride[axis], padding[axis], dilation[axis], ceil) for axis in (0, 1)
    )
    return (height, width) if height > 0 and width > 0 else None


def _side(side: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    span = side + 2 * padding - dilation * (kernel - 1) - 1
    if span < 0:
        return 0
    if not ceil:
        return span // stride + 1
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= side + padding else count


def transposed_window_sides(sides: Sequence[int], kernel: Pair, stride: Pair, padding: Pair) -> Pair | None:
    """Height and width after a transposed convolution; None if the padding removes everything.

    >>> transposed_window_sides((28, 28), (2, 2), (2, 2), (0, 0))
    (56, 56)
    """
    height, width = ((sides[axis] - 1) * stride[axis] - 2 * padding[axis] + kernel[axis] for axis in (0, 1))
    return (height, width) if height > 0 and width > 0 else None


def matmul_shape(first: Shape, second: Shape, transpose_second: bool) -> Shape | None:
    """Shape of the matrix product of two values; None unless all dimensions before the last two are equal.

    >>> matmul_shape((12, 128, 64), (12, 128, 64), True)
    (12, 128, 128)
    """
    if len(first) < 2 or len(first) != len(second) or first[:-2] != second[:-2]:
        return None
    inner, columns = (second[-1], second[-2]) if transpose_second else (second[-2], second[-1])
    return (*first[:-1], columns) if first[-1] == inner else None


def concatenated(shapes: Sequence[Shape], axis: int) -> Shape | None:
    """Shape of the concatenation of values along an axis; None if the other dimensions differ.

    >>> concatenated([(64, 28, 28), (128, 28, 28)], 0)
    (192, 28, 28)
    """
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) != 1 or any(axis >= len(shape) for shape in shapes):
        return None
    first = shapes[0]
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])
