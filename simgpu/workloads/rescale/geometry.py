"""Shapes of convolutions, from the sides of their blocks."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.timemodel.operation import ConvolutionShape

_Shape = tuple[int, ...]


def convolution_of(wide: _Shape, weight: _Shape, narrow: _Shape, *, far: bool = False) -> ConvolutionShape | None:
    """The convolution from `wide` (N x C x H x W) to `narrow` (N x K x P x Q), None where sides do not fit one.

    weight: K x C / groups x R x S. Of a transposed convolution, which goes from `narrow` to `wide`, it is the same: its
    input's channels lead. `narrow` may have more channels than the weight makes, where a kernel sees a part of it. With
    one side in place of two, the other is 1. far: a padding may be as wide as the filter or wider. Without dilation,
    which sides do not tell from a larger padding.

    >>> shape = convolution_of((8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 28, 28))
    >>> shape.stride, shape.padding, shape.groups
    ((2, 2), (1, 1), 1)
    """
    (outputs, inputs), filters = weight[:2], weight[2:]
    if not len(wide) == len(weight) == len(narrow) or wide[0] != narrow[0] or narrow[1] < outputs:
        return None
    groups, rest = divmod(wide[1], inputs)
    ways = [_way(*sides, far) for sides in zip(wide[2:], filters, narrow[2:], strict=True)]
    if rest or outputs % groups or None in ways:
        return None
    strides, paddings = zip(*(way for way in ways if way is not None), strict=True)
    return ConvolutionShape(
        wide[0],
        wide[1],
        _pair(wide[2:], 1),
        outputs,
        _pair(filters, 1),
        _pair(strides, 1),
        _pair(paddings, 0),
        groups=groups,
    )


def _pair(sides: Sequence[int], missing: int) -> tuple[int, int]:
    return (sides[0], sides[1]) if len(sides) == 2 else (missing, sides[0])


def _way(length: int, kernel: int, result: int, far: bool = False) -> tuple[int, int] | None:
    """Stride and padding along one side.

    The stride is the one by which the side shrinks, or else 1, and the padding the smallest that gives the result.

    >>> _way(224, 7, 112), _way(224, 11, 55), _way(7, 3, 7), _way(7, 7, 1), _way(5, 3, 9), _way(5, 3, 9, far=True)
    ((2, 3), (4, 2), (1, 1), (1, 0), None, (1, 3))
    """
    if min(length, kernel, result) < 1:
        return None
    if result == 1 and kernel == length:
        return 1, 0
    for stride in dict.fromkeys((max(1, round(length / result)), length // result or 1, 1)):
        padding = max(0, -(-((result - 1) * stride + kernel - length) // 2))
        fits = length + 2 * padding >= kernel and (length + 2 * padding - kernel) // stride + 1 == result
        if fits and (far or padding < kernel):
            return stride, padding
    return None
