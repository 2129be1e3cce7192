"""Rebuilds the shapes of a trace's convolutions and matrix products from its blocks, with `Rebuilder`.

Kinds and shapes identify the operands: a weight or its gradient gives the channels, or the two dimensions other than
the rows. A kernel that computes both gradients of a convolution becomes two products. If the recording has operation
counts, a rebuilt product is used only if it has the same count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from simgpu.trace.model import Block, BlockKind, Kernel, Phase
from simgpu.units import ITEMSIZE
from simgpu.workloads.rescale.samples import Sides
from simgpu.workloads.timemodel.operation import (
    AttentionShape,
    ConvolutionShape,
    Direction,
    GemmShape,
    Operation,
    OperationKind,
)

_Shape = tuple[int, ...]
_FORWARD, _DATA, _WEIGHTS = Direction.FORWARD, Direction.BACKWARD_DATA, Direction.BACKWARD_WEIGHTS
_TRANSPOSED = {_FORWARD: _DATA, _DATA: _FORWARD, _WEIGHTS: _WEIGHTS}


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a kernel, or the sum that computes a bias gradient.

    itemsize: bytes of a value.
    side: field of its `GemmShape` that holds the samples (m, n, k or count); None except for matrix products.
    bias: bytes of the bias that a separate pass adds to a convolution's result.
    """

    operation: Operation
    itemsize: int
    side: str | None = None
    bias: int = 0

    def at(self, batch: int, was: int) -> Operation:
        """The operation at `batch` samples. was: the recorded number of samples."""
        operation = self.operation
        if operation.convolution is not None:
            before = operation.convolution
            shape = replace(before, batch=before.batch * batch // was)
            added = self.itemsize * (_wide(shape) + _narrow(shape) - _wide(before) - _narrow(before))
            results = operation.results
            if operation.direction is not _WEIGHTS:
                results = results * batch // was
            return replace(
                operation,
                convolution=shape,
                flops=2 * shape.macs,
                bytes=operation.bytes + added,
                results=results,
                added_bytes=self.bias and self.bias + 2 * self.itemsize * results,
            )
        if operation.attention is not None:
            heads = replace(operation.attention, heads=operation.attention.heads * batch // was)
            flops, moved = heads.flops(operation.direction), operation.bytes * batch // was
            results = operation.results * batch // was
            return replace(operation, attention=heads, flops=flops, bytes=moved, results=results)
        if operation.gemm is not None and self.side is not None:
            gemm = replace(operation.gemm, **{self.side: getattr(operation.gemm, self.side) * batch // was})
            if self.side == "count":
                moved = operation.bytes * batch // was
            else:
                moved = operation.bytes + self.itemsize * (_entries(gemm) - _entries(operation.gemm))
            return replace(operation, gemm=gemm, flops=2 * gemm.macs, bytes=moved)
        flops = operation.flops * batch // was
        return replace(operation, flops=flops, bytes=operation.bytes + self.itemsize * (flops - operation.flops))


def _wide(shape: ConvolutionShape) -> int:
    """Number of values of the forward convolution's input."""
    return shape.batch * shape.in_channels * prod(shape.in_size)


def _narrow(shape: ConvolutionShape) -> int:
    """Number of values of the forward convolution's result."""
    return shape.batch * shape.out_channels * prod(shape.out_size)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A convolution, or its transpose, which maps its result to its input."""

    shape: ConvolutionShape
    transposed: bool

    @property
    def results(self) -> int:
        """Number of values that the operator produces in forward."""
        return _wide(self.shape) if self.transposed else _narrow(self.shape)


def _entries(gemm: GemmShape) -> int:
    """Number of values of a product's operands and result."""
    return gemm.count * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)


@dataclass(frozen=True, slots=True)
class _Operands:
    """A kernel's blocks of known shape, without workspaces."""

    kernel: Kernel
    reads: Sequence[tuple[Block, _Shape]]
    writes: Sequence[tuple[Block, _Shape]]
    sides: Sides

    def weight(self, sides: Sequence[int]) -> _Shape | None:
        """Shape of the first block without samples that is read and has that rank; None if there is none.

        It is a weight, or computed only from weights, such as sampled rows of one.
        """
        return next((s for block, s in self.reads if block.id not in self.sides and len(s) in sides), None)

    def weight_gradient(self, sides: Sequence[int]) -> _Shape | None:
        """Shape of the first weight gradient written that has that rank; None if there is none."""
        kind = BlockKind.WEIGHT_GRADIENT
        return next((s for block, s in self.writes if block.kind is kind and len(s) in sides), None)

    @property
    def dtype(self) -> str:
        """Number format of the first block with a known one, else float32."""
        return next((block.dtype for block, _ in (*self.writes, *self.reads) if block.dtype), "float32")

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return ITEMSIZE.get(self.dtype, ITEMSIZE["float32"])

    def values(self, blocks: Sequence[tuple[Block, _Shape]]) -> list[_Shape]:
        """Shapes of the blocks that hold samples."""
        return [shape for block, shape in blocks if block.id in self.sides]


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Rebuilds the products of kernels; pass kernels in order, as backward reuses the geometry found in forward.

    sides: the blocks that hold samples.
    """

    sides: Sides
    _forward: dict[tuple[str, _Shape], _Geometry] = field(default_factory=dict)
    _scores: dict[str, AttentionShape] = field(default_factory=dict)

    def products_of(self, kernel: Kernel, reads: Sequence[Block], writes: Sequence[Block]) -> list[Product] | None:
        """The products of a convolution or matrix product; None if its blocks do not determine them."""
        operands = _Operands(kernel, _known(reads), _known(writes), self.sides)
        for result in self._candidates(operands):
            counted = sum(each.operation.flops for each in result if each.operation.kind is not OperationKind.REDUCTION)
            if result and kernel.flops in (None, counted):
                return result
        return None

    def _candidates(self, operands: _Operands) -> Iterator[list[Product]]:
        if "scaled_dot_product" in operands.kernel.op:
            yield self._attention(operands)
            return
        weight = operands.weight((3, 4)) or operands.weight_gradient((3, 4))
        if weight is None:
            yield _gemm(operands)
            return
        forward = _direction(operands) is _FORWARD
        keys = [block.id for block, shape in operands.reads if shape == weight or block.id in self.sides]
        known = next((self._forward[key, weight] for key in keys if (key, weight) in self._forward), None)
        if known is not None and not forward:
            yield _convolutions(operands, known, weight)
        for geometry in _geometries(operands, weight):
            if forward:
                self._forward.update({(key, weight): geometry for key in keys})
            yield _convolutions(operands, geometry, weight)

    def _attention(self, operands: _Operands) -> list[Product]:
        """Attention whose scores never reach memory.

        Forward's result is samples x heads x tokens x head dimension. The operation count shows a causal mask, and
        otherwise gives the number of keys.
        """
        result = next((each for each in operands.writes if len(each[1]) == 4), None)
        if _direction(operands) is _FORWARD and result is not None:
            block, (samples, heads, rows, width) = result
            efficient = "efficient" in operands.kernel.op
            shape = AttentionShape(samples * heads, rows, rows, width, width, causal=True, efficient=efficient)
            if shape.flops(_FORWARD) != operands.kernel.flops:
                keys = _depth(operands, 2 * prod(result[1]), rows)
                shape = replace(shape, keys=keys, causal=False)
            if not shape.keys:
                return []
            self._scores[block.id] = shape
            return [_attention_product(operands, shape)]
        known = next((self._scores[block.id] for block, _ in operands.reads if block.id in self._scores), None)
        return [] if known is None else [_attention_product(operands, known)]


def _attention_product(operands: _Operands, shape: AttentionShape) -> Product:
    """Attention, which reads every operand and writes every result once."""
    forward = _direction(operands) is _FORWARD
    direction = _FORWARD if forward else _DATA
    query, key = shape.heads * shape.rows * shape.width, shape.heads * shape.keys * shape.width
    moved = (1 if forward else 2) * operands.itemsize * 2 * (query + key)
    flops, kind = shape.flops(direction), OperationKind.ATTENTION
    operation = Operation(kind, flops, moved, query, direction, dtype=operands.dtype, attention=shape)
    return Product(operation, operands.itemsize)


def _known(blocks: Sequence[Block]) -> list[tuple[Block, _Shape]]:
    return [(block, block.shape) for block in blocks if block.shape and block.kind is not BlockKind.WORKSPACE]


def _direction(operands: _Operands) -> Direction:
    """The direction that a kernel computes: an activation recomputed in backward (checkpointing) is forward."""
    created = {block.kind for block, _ in operands.writes}
    if operands.kernel.phase is not Phase.BACKWARD or BlockKind.ACTIVATION in created:
        return _FORWARD
    return _WEIGHTS if BlockKind.WEIGHT_GRADIENT in created else _DATA


def _geometries(operands: _Operands, weight: _Shape) -> Iterator[_Geometry]:
    """The geometries that fit the shapes of a convolution's blocks, the most common first."""
    read, created = (
        [shape for shape in operands.values(blocks) if len(shape) == len(weight)]
        for blocks in (operands.reads, operands.writes)
    )
    # Backward reads the result's gradient first, then the input; the input's gradient has the input's shape.
    forward = _direction(operands) is _FORWARD
    inputs, outputs = (read, created) if forward else (created or read[1:], read)
    if not inputs or not outputs:
        return
    is_transpose = "transpose" in operands.kernel.op
    for far in (False, True):
        for transposed in (True,) if is_transpose else (False, True):
            wide, narrow = (outputs[0], inputs[0]) if transposed else (inputs[0], outputs[0])
            shape = convolution_of(wide, weight, narrow, far=far)
            if shape is not None:
                yield _Geometry(shape, transposed)


def _convolutions(operands: _Operands, geometry: _Geometry, weight: _Shape) -> list[Product]:
    """The directions that a kernel computes, and the sum for the bias gradient."""
    if _direction(operands) is _FORWARD:
        return [_convolution(operands, geometry, _FORWARD, weight)]
    data = any(block.kind is not BlockKind.WEIGHT_GRADIENT for block, _ in operands.writes)
    weights = operands.weight_gradient((len(weight),)) is not None
    ways = ((_DATA,) if data else ()) + ((_WEIGHTS,) if weights else ())
    result = [_convolution(operands, geometry, way, weight) for way in ways]
    bias = operands.weight_gradient((1,))
    return [*result, _summed(operands, geometry.results, bias[0])] if bias else result


def _convolution(operands: _Operands, geometry: _Geometry, way: Direction, weight: _Shape) -> Product:
    shape, size = geometry.shape, operands.itemsize
    direction = _TRANSPOSED[way] if geometry.transposed else way
    results = {_FORWARD: _narrow(shape), _DATA: _wide(shape), _WEIGHTS: prod(weight)}[direction]
    bias = 0
    if way is _FORWARD and shape.kind is OperationKind.CONVOLUTION:
        bias = sum(block.bytes for block, s in operands.reads if block.kind is BlockKind.WEIGHT and len(s) == 1)
    operation = Operation(
        shape.kind,
        2 * shape.macs,
        size * (_wide(shape) + _narrow(shape) + prod(weight)),
        results,
        direction,
        convolution=shape,
        dtype=operands.dtype,
        added_bytes=bias and bias + 2 * size * results,
    )
    return Product(operation, size, bias=bias)


def _summed(operands: _Operands, values: int, results: int) -> Product:
    size = operands.itemsize
    moved = size * (values + results)
    operation = Operation(OperationKind.REDUCTION, values, moved, results, _DATA, dtype=operands.dtype)
    return Product(operation, size)


def _gemm(operands: _Operands) -> list[Product]:
    """A product with a weight (samples in the rows, m), for a weight's gradient (in k), or of two values."""
    direction = _direction(operands)
    created = [(block, shape) for block, shape in operands.writes if len(shape) >= 2]
    if len(operands.writes) != 1 or not created:
        return []
    ((block, result),) = created
    weight = operands.weight((2,))
    if direction is _WEIGHTS:
        gemm, side = _for_weights(operands, result), "k"
    elif weight is not None and result[-1] in weight:
        depth = weight[1 - weight.index(result[-1])]
        gemm, side = GemmShape(prod(result[:-1]), result[-1], depth), "m"
    else:
        gemm, side = _of_two(operands, result), "count"
        place = operands.sides.get(block.id)
        if place is None:
            side = "k"
        elif place >= len(result) - 2:
            side = "mn"[place - len(result)]
    if gemm is None:
        return []
    moved, dtype = operands.itemsize * _entries(gemm), operands.dtype
    operation = Operation(OperationKind.GEMM, 2 * gemm.macs, moved, prod(result), direction, gemm=gemm, dtype=dtype)
    return [Product(operation, operands.itemsize, side)]


def _for_weights(operands: _Operands, result: _Shape) -> GemmShape | None:
    """The gradient of a weight sums over rows, whose number the operations give, else the gradient that is read."""
    outputs, inputs = prod(result[:-1]), result[-1]
    read = operands.values(operands.reads)
    rows = [prod(shape) // outputs for shape in read if prod(shape) % outputs == 0 and shape[-1] == outputs]
    depth = _depth(operands, prod(result), rows[0] if rows else 0)
    return GemmShape(outputs, inputs, depth) if depth else None


def _of_two(operands: _Operands, result: _Shape) -> GemmShape | None:
    count, (rows, columns) = prod(result[:-2]), result[-2:]
    read = [prod(shape) for _, shape in operands.reads]
    depth = 0
    if len(read) == 2 and read[0] % (count * rows) == 0 and read[1] == read[0] // rows * columns:
        depth = read[0] // (count * rows)
    depth = _depth(operands, prod(result), depth)
    return GemmShape(rows, columns, depth, count) if depth else None


def _depth(operands: _Operands, results: int, default: int) -> int:
    """Number of products that each result sums, from the recorded operations; `default` if not recorded."""
    flops = operands.kernel.flops
    if flops is None:
        return default
    return flops // (2 * results) if flops % (2 * results) == 0 else 0


def convolution_of(wide: _Shape, weight: _Shape, narrow: _Shape, *, far: bool = False) -> ConvolutionShape | None:
    """The convolution from `wide` (N x C x H x W) to `narrow` (N x K x P x Q); None if no convolution fits.

    weight: K x C / groups x R x S, also for a transposed convolution from `narrow` to `wide`, whose input channels
    come first. `narrow` may have more channels than the weight produces, if a kernel writes part of it. In one
    dimension, the other dimension is 1. far: allow a padding as wide as the filter or wider. Dilation is always 1: the
    shapes do not distinguish it from a larger padding.

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
    """Stride and padding along one dimension; None if none fit.

    The stride is the factor by which the dimension shrinks, else 1; the padding is the smallest that fits.

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
