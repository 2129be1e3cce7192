"""`Tensor`: a view of a block of memory with its place in autograd's graph; `Node`: one backward function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from simgpu.units import ITEMSIZE
from simgpu.workloads.eager.strides import Sizes, contiguous_strides, is_contiguous
from simgpu.workloads.lowering.tape import TapeBlock


@dataclass(slots=True, eq=False)
class Tensor:
    """Values in a block of memory.

    strides: in values. node, slot: the backward function of which it is a result, and which one; None if it needs no
    gradient. is_view: whether it is a view of another tensor, so autograd adds no gradient into it.
    offset: of its first value in the block.
    """

    block: TapeBlock
    shape: Sizes
    strides: Sizes
    node: Node | None = None
    slot: int = 0
    is_view: bool = False
    offset: int = 0

    @property
    def dtype(self) -> str:
        """PyTorch's name of the number format."""
        return self.block.dtype

    @property
    def count(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def distinct(self) -> int:
        """Number of values in memory: an expanded dimension counts once."""
        sides = zip(self.shape, self.strides, strict=True)
        return prod(side if stride else min(side, 1) for side, stride in sides)

    @property
    def bytes(self) -> int:
        """Bytes of all values, as if none shared memory."""
        return self.count * ITEMSIZE[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether its values follow each other in memory."""
        return is_contiguous(self.shape, self.strides)

    def seen(self, shape: Sizes, strides: Sizes | None = None) -> Tensor:
        """A view that begins where this one does, without a place in autograd's graph."""
        strides = contiguous_strides(shape) if strides is None else strides
        return Tensor(self.block, shape, strides, is_view=True, offset=self.offset)

    def part(self, dimension: int, begin: int, size: int) -> Tensor:
        """Some positions of a dimension, a view without a place in autograd's graph."""
        shape = list(self.shape)
        shape[dimension] = size
        result = self.seen(tuple(shape), self.strides)
        result.offset += begin * self.strides[dimension]
        return result


#: Maps the gradients of a node's results to those of its inputs; None for one that does not exist.
NodeBackward = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]


@dataclass(slots=True, eq=False)
class Node:
    """One backward function of autograd's graph.

    number: position in the order of creation; the engine runs the latest first.
    inputs: the tensors whose gradients it computes.
    saved: tensors that autograd keeps until it has run.
    layer: the module that called the operator.
    slots: number of results whose gradients it reads.
    weight: the weight whose gradient it collects; None for an operator.
    begin: position of its first kernel. unused, freed: that of the latest kernel when its backward function returned,
    and when the engine freed what was saved. All None before it runs. handed_on: blocks that it saved and returned as
    gradients. adds_in_place: whether gradients of its results may be added into each other's memory.
    """

    number: int
    inputs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    backward: NodeBackward
    layer: str | None
    slots: int = 1
    weight: Tensor | None = None
    begin: int | None = None
    unused: int | None = None
    freed: int | None = None
    adds_in_place: bool = True
    handed_on: frozenset[TapeBlock] = frozenset()
