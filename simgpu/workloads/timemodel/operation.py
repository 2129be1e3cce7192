"""What a kernel computes, as far as its duration depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OperationKind(StrEnum):
    """Sorts of kernels that run at different shares of a GPU's peak rates."""

    CONVOLUTION = "convolution"
    DEPTHWISE_CONVOLUTION = "depthwise_convolution"
    GEMM = "gemm"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    POOLING = "pooling"
    SOFTMAX = "softmax"
    GATHER = "gather"
    COPY = "copy"


class Direction(StrEnum):
    """Which of an operator's three computations this is."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHTS = "backward_weights"


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A two-dimensional convolution as its forward direction sees it; pairs are (height, width).

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
        """Multiply-accumulates of one direction, computed directly."""
        (height, width), (rows, columns) = self.out_size, self.kernel
        per_result = self.in_channels // self.groups * rows * columns
        return self.batch * self.out_channels * height * width * per_result

    @property
    def kind(self) -> OperationKind:
        """Depthwise where every input channel is a group of its own."""
        depthwise = self.groups > 1 and self.groups == self.in_channels
        return OperationKind.DEPTHWISE_CONVOLUTION if depthwise else OperationKind.CONVOLUTION


@dataclass(frozen=True, slots=True)
class GemmShape:
    """`count` independent products of an m x k with a k x n matrix.

    >>> GemmShape(128, 4096, 9216).macs
    4831838208
    """

    m: int
    n: int
    k: int
    count: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all products."""
        return self.count * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel's work.

    flops: floating-point operations, two for each multiply-accumulate. bytes: what it must at least move to and from
    device memory: every distinct input once and every result once. results: how many values it produces, the measure
    of how much of the GPU it can keep busy. dtype: of the values, as PyTorch names it. added_bytes: what a second,
    elementwise kernel moves that goes over the result of a convolution in place, as frameworks add a bias.
    convolution, gemm: the shape, where the kernel is one of these; a convolution's is that of its forward direction.
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

    @property
    def is_product(self) -> bool:
        """Whether it is priced by its arithmetic: a matrix product or a convolution that is not depthwise."""
        return self.gemm is not None or self.kind is OperationKind.CONVOLUTION
