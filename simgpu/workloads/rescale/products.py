"""Convolutions and matrix products of a trace, with their shapes, rebuilt from its blocks.

Kinds and shapes identify the blocks: a weight or its gradient has the channels, or the two sides that are not the rows.
A kernel that makes both gradients of a convolution is both. Where the recording has operation counts, the rebuilt
product must have the same count, or it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from simgpu.trace.model import Block, BlockKind, Kernel, Phase
from simgpu.units import ITEMSIZE
from simgpu.workloads.rescale.samples import Sides
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape, Operation, OperationKind

_Shape = tuple[int, ...]
_FORWARD, _DATA, _WEIGHTS = Direction.FORWARD, Direction.BACKWARD_DATA, Direction.BACKWARD_WEIGHTS
_UNDONE = {_FORWARD: _DATA, _DATA: _FORWARD, _WEIGHTS: _WEIGHTS}


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a kernel, or the sum of a gradient next to it.

    itemsize: bytes of a value. side: that of its `GemmShape` which the samples are on; None of any but a matrix
    product. bias: bytes of what is added to a convolution's result in a pass of its own.
    """

    operation: Operation
    itemsize: int
    side: str | None = None
    bias: int = 0

    def at(self, batch: int, was: int) -> Operation:
        """The same of another number of samples."""
        operation = self.operation
        if operation.convolution is not None:
            before = operation.convolution
            shape = replace(before, batch=before.batch * batch // was)
            more = self.itemsize * (_wide(shape) + _narrow(shape) - _wide(before) - _narrow(before))
            results = operation.results
            if operation.direction is not _WEIGHTS:
                results = results * batch // was
            return replace(
                operation,
                convolution=shape,
                flops=2 * shape.macs,
                bytes=operation.bytes + more,
                results=results,
                added_bytes=self.bias and self.bias + 2 * self.itemsize * results,
            )
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
    """Values of the input, as the forward direction sees it."""
    return shape.batch * shape.in_channels * prod(shape.in_size)


def _narrow(shape: ConvolutionShape) -> int:
    """Values of the result."""
    return shape.batch * shape.out_channels * prod(shape.out_size)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A convolution, or the transposed one that goes from its result to its input."""

    shape: ConvolutionShape
    transposed: bool

    @property
    def results(self) -> int:
        """Values that the operator makes in forward."""
        return _wide(self.shape) if self.transposed else _narrow(self.shape)


def _entries(gemm: GemmShape) -> int:
    """Values of a product's operands and result."""
    return gemm.count * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)


@dataclass(frozen=True, slots=True)
class _Operands:
    """A kernel's blocks of known shape, workspaces left out."""

    kernel: Kernel
    reads: Sequence[tuple[Block, _Shape]]
    writes: Sequence[tuple[Block, _Shape]]
    sides: Sides

    def weight(self, sides: Sequence[int]) -> _Shape | None:
        """The first weight read with so many sides, or what is made of weights alone, as rows drawn from one are."""
        return next((s for block, s in self.reads if block.id not in self.sides and len(s) in sides), None)

    def weight_gradient(self, sides: Sequence[int]) -> _Shape | None:
        """The first weight gradient made with so many sides."""
        kind = BlockKind.WEIGHT_GRADIENT
        return next((s for block, s in self.writes if block.kind is kind and len(s) in sides), None)

    @property
    def dtype(self) -> str:
        """Of the first block that says so."""
        return next((block.dtype for block, _ in (*self.writes, *self.reads) if block.dtype), "float32")

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return ITEMSIZE.get(self.dtype, ITEMSIZE["float32"])

    def values(self, blocks: Sequence[tuple[Block, _Shape]]) -> list[_Shape]:
        """Shapes of those that hold samples."""
        return [shape for block, shape in blocks if block.id in self.sides]


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Rebuilds products, kernel by kernel in their order: backward's convolutions are those that forward's were.

    sides: the blocks that hold samples.
    """

    sides: Sides
    _forward: dict[tuple[str, _Shape], _Geometry] = field(default_factory=dict)
    _scores: dict[str, GemmShape] = field(default_factory=dict)

    def products_of(self, kernel: Kernel, reads: Sequence[Block], writes: Sequence[Block]) -> list[Product] | None:
        """What a convolution or matrix product comes down to; None where its blocks do not tell."""
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
        """Two products whose scores never reach memory; backward makes the scores again and four gradients.

        Forward's result is samples x heads x tokens x depth of a head; how many keys there are, operations tell.
        """
        result = next((each for each in operands.writes if len(each[1]) == 4), None)
        if _direction(operands) is _FORWARD and result is not None:
            block, shape = result
            count, rows, depth = prod(shape[:2]), *shape[2:]
            keys = _depth(operands, 2 * prod(shape), rows)
            if not keys:
                return []
            self._scores[block.id] = GemmShape(rows, keys, depth, count)
            return _attention_products(operands, self._scores[block.id])
        results_seen = next((self._scores[block.id] for block, _ in operands.reads if block.id in self._scores), None)
        return [] if results_seen is None else _attention_products(operands, results_seen)


def _attention_products(operands: _Operands, scores: GemmShape) -> list[Product]:
    """Every operand is read once: with the first product that needs it."""
    query, key = scores.count * scores.m * scores.k, scores.count * scores.n * scores.k
    values = replace(scores, n=scores.k, k=scores.n)
    turned = GemmShape(scores.n, scores.k, scores.m, scores.count)
    if _direction(operands) is _FORWARD:
        work = [(scores, query + key), (values, key + query)]
    else:
        work = [(scores, query + key), (turned, query + key), (scores, key), (values, query), (turned, key)]
    direction, size = _direction(operands), operands.itemsize
    return [
        Product(
            Operation(
                OperationKind.GEMM,
                2 * gemm.macs,
                size * moved,
                gemm.count * gemm.m * gemm.n,
                direction,
                gemm=gemm,
                dtype=operands.dtype,
            ),
            size,
            "count",
        )
        for gemm, moved in work
    ]


def _known(blocks: Sequence[Block]) -> list[tuple[Block, _Shape]]:
    return [(block, block.shape) for block in blocks if block.shape and block.kind is not BlockKind.WORKSPACE]


def _direction(operands: _Operands) -> Direction:
    """What a kernel is for: feature maps made again in backward are forward's, as in checkpointing."""
    created = {block.kind for block, _ in operands.writes}
    if operands.kernel.phase is not Phase.BACKWARD or BlockKind.ACTIVATION in created:
        return _FORWARD
    return _WEIGHTS if BlockKind.WEIGHT_GRADIENT in created else _DATA


def _geometries(operands: _Operands, weight: _Shape) -> Iterator[_Geometry]:
    """What the sides of a convolution's blocks allow, the usual first."""
    read, created = (
        [shape for shape in operands.values(blocks) if len(shape) == len(weight)]
        for blocks in (operands.reads, operands.writes)
    )
    # Backward reads the result's gradient first, then the input; the input's own gradient has the input's shape.
    forward = _direction(operands) is _FORWARD
    inputs, outputs = (read, created) if forward else (created or read[1:], read)
    if not inputs or not outputs:
        return
    description = "transpose" in operands.kernel.op
    for far in (False, True):
        for transposed in (True,) if description else (False, True):
            wide, narrow = (outputs[0], inputs[0]) if transposed else (inputs[0], outputs[0])
            shape = convolution_of(wide, weight, narrow, far=far)
            if shape is not None:
                yield _Geometry(shape, transposed)


def _convolutions(operands: _Operands, geometry: _Geometry, weight: _Shape) -> list[Product]:
    """The directions that a kernel computes, and the sum for the bias next to them."""
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
    direction = _UNDONE[way] if geometry.transposed else way
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
    """A product with a weight, for a weight's gradient, or of two values: rows, as many as there are samples, in m."""
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
    """The gradient of a weight sums over rows: as many as operations say, or as the gradient that is read has."""
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


def _depth(operands: _Operands, results: int, otherwise: int) -> int:
    """How many products each result sums, by the recorded operations where there are any."""
    flops = operands.kernel.flops
    if flops is None:
        return otherwise
    return flops // (2 * results) if flops % (2 * results) == 0 else 0


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
