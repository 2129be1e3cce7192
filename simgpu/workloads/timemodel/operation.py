"""`Operation` describes the work of a kernel that determines its duration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: Bytes that matrix units' fastest kernels load at once.
_ALIGNMENT = 16


class OperationKind(StrEnum):
    """Kinds of kernels, which reach different fractions of a GPU's peak rates."""

    CONVOLUTION = "convolution"
    DEPTHWISE_CONVOLUTION = "depthwise_convolution"
    GEMM = "gemm"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    POOLING = "pooling"
    SOFTMAX = "softmax"
    GATHER = "gather"
    COPY = "copy"


class Direction(StrEnum):
    """One of an operator's three computations."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHTS = "backward_weights"


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A two-dimensional convolution, in terms of its forward direction; pairs are (height, width).

    >>> shape = ConvolutionShape(128, 3, (224, 224), 64, (3, 3), padding=(1, 1))
    >>> shape.out_size, shape.macs
    ((224, 224), 11098128384)
    """

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                self.in_size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return height, width

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one direction by direct convolution."""
        (height, width), (rows, columns) = self.out_size, self.kernel
        per_result = self.in_channels // self.groups * rows * columns
        return self.batch * self.out_channels * height * width * per_result

    @property
    def kind(self) -> OperationKind:
        """Depthwise if every input channel is a separate group, else a plain convolution."""
        depthwise = self.groups > 1 and self.groups == self.in_channels
        return OperationKind.DEPTHWISE_CONVOLUTION if depthwise else OperationKind.CONVOLUTION


@dataclass(frozen=True, slots=True)
class GemmShape:
    """`count` independent products of an m x k and a k x n matrix.

    aligned: whether the rows or columns of both factors and of the result begin at multiples of 16 bytes.

    >>> GemmShape(128, 4096, 9216).macs
    4831838208
    """

    m: int
    n: int
    k: int
    count: int = 1
    aligned: bool = True

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all products."""
        return self.count * self.m * self.n * self.k


def is_aligned(matrices: Iterable[tuple[Sequence[int], Sequence[int]]], itemsize: int) -> bool:
    """Whether rows or columns of matrices, each its sizes and strides in values, begin at multiples of 16 bytes.

    >>> is_aligned([((8, 50257), (50257, 1))], itemsize=2), is_aligned([((8, 50304), (50304, 1))], itemsize=2)
    (False, True)
    """
    between = ((sizes, max(strides[-2:])) for sizes, strides in matrices if len(sizes) > 1)
    return all(min(sizes[-2:]) == 1 or stride * itemsize % _ALIGNMENT == 0 for sizes, stride in between)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Fused attention, whose scores never reach memory.

    heads: of queries, of all samples together. rows, keys: queries and keys of a head. width, values: of a query or
    key, and of a value. causal: row i has the scores of the first i + 1 keys only. window: with a causal mask, the
    number of keys before its own that a row has scores of; None for all. efficient, cudnn: whether it is PyTorch's
    memory-efficient attention, or cuDNN's, instead of flash attention.

    >>> shape = AttentionShape(heads=16, rows=1024, keys=1024, width=64, values=64)
    >>> shape.flops(Direction.BACKWARD_DATA) / shape.flops(Direction.FORWARD)
    2.5
    """

    heads: int
    rows: int
    keys: int
    width: int
    values: int
    causal: bool = False
    efficient: bool = False
    window: int | None = None
    cudnn: bool = False

    @property
    def most(self) -> int:
        """The largest number of scores in a row."""
        return self.keys if self.window is None else min(self.keys, self.window + 1)

    @property
    def scores(self) -> int:
        """Number of scores that the mask keeps."""
        if not self.causal:
            return self.heads * self.rows * self.keys
        rising = min(self.rows, self.most)
        return self.heads * (rising * (rising + 1) // 2 + (self.rows - rising) * self.most)

    def flops(self, direction: Direction) -> int:
        """Operations of its products: two, or backward five."""
        if direction is Direction.FORWARD:
            return 2 * self.scores * (self.width + self.values)
        return 2 * self.scores * (3 * self.width + 2 * self.values)


@dataclass(frozen=True, slots=True)
class Operation:
    """The work of one kernel.

    flops: floating-point operations, two per multiply-accumulate.
    bytes: minimum traffic to and from device memory: every distinct input once and every result once.
    results: number of values that it produces, which determines how much of the GPU it can occupy.
    convolution, gemm, attention: its shape, in terms of the forward direction for a convolution and for attention; None
    if it is something else.
    dtype: number format of the values, as PyTorch names it.
    added_bytes: traffic of a second, elementwise kernel on a convolution's result, as frameworks add a bias.
    exchange_ns: the time of an exchange with other GPUs, which their links decide; None for other work.
    """

    kind: OperationKind
    flops: int
    bytes: int
    results: int
    direction: Direction = Direction.FORWARD
    convolution: ConvolutionShape | None = None
    gemm: GemmShape | None = None
    dtype: str = "float32"
    added_bytes: int = 0
    attention: AttentionShape | None = None
    exchange_ns: int | None = None

    @property
    def is_product(self) -> bool:
        """Whether it is priced by its arithmetic: a matrix product, attention, a convolution that is not depthwise."""
        return self.gemm is not None or self.attention is not None or self.kind is OperationKind.CONVOLUTION
