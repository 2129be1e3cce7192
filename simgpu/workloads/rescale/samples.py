"""Which blocks of a trace hold samples, and in which of their sides.

A block holds samples when the kernel that makes it reads a block that does, and one of its sides is the batch times a
number for each sample: as the read block has it, alone, merged with its neighbours (samples x tokens, samples x heads)
or parted from them again. So a table's gradient that holds a row for each token grows, and one for each of a fixed
number of drawn rows does not, although both lead with a multiple of the batch. Where no side is one of the read
block's, the leading one of two or more counts when the batch divides it.

What a kernel makes out of nothing (a mask drawn at random) holds samples when it is used next to a block that does and
has its side; a feature map or gradient that is made without samples, as far as the recording tells, when it is used
next to one of its own shape, or where shapes are unknown of as many bytes. Where a recording tells no inputs, all its
feature maps and gradients of a size that the batch divides are taken to hold samples.

These hold no samples whatever their size: weights and what has the shape of one among their gradients, optimizer
state, persistent blocks but inputs and labels, workspaces, and the channels' statistics of a batch normalization.
Blocks of unknown shape go by their bytes, which the batch must divide; those that the optimizer reads, or that a
reduction makes as large as some weight, do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import OperationKind

_BATCH = (BlockKind.INPUT, BlockKind.LABEL)
_FLOWING = (BlockKind.ACTIVATION, BlockKind.GRADIENT)
_NEVER = (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.WORKSPACE)
_REDUCING = (OperationKind.REDUCTION, OperationKind.NORMALIZATION)
#: A mask has at most so many times fewer bytes than what it masks: one for a number of eight.
_WIDEST = 8

#: For each block that holds samples the side in which it does, None where its shape is unknown.
Sides = Mapping[str, int | None]


def sample_sides(trace: Trace) -> Sides:
    """The blocks that hold samples.

    >>> from simgpu.trace.chain import chain
    >>> list(sample_sides(chain([5], [10], [100])))[:1]
    ['x1']
    """
    return _Flow(trace).run()


@dataclass
class _Flow:
    """Follows samples; what is found so far stands in `sides`."""

    trace: Trace
    sides: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace = self.trace
        self.batch = trace.info.batch
        self.blocks = dict(trace.block_by_id)
        weights = [block for block in trace.blocks if block.kind is BlockKind.WEIGHT]
        self.weight_shapes = {_without_ones(block.shape) for block in weights if block.shape is not None}
        self.fixed_sizes = {block.bytes for block in trace.blocks if block.persistent and block.kind not in _BATCH}
        self.updating = {name for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER for name in kernel.reads}
        self.makers: dict[str, Kernel] = {}
        for kernel in trace.kernels:
            for name in kernel.writes:
                self.makers.setdefault(name, kernel)

    def run(self) -> Sides:
        """Until nothing more is found: what is made out of nothing is known by its use, which comes later."""
        self._begin()
        result = -1
        while result != len(self.sides):
            result = len(self.sides)
            for kernel in self.trace.kernels:
                self._through(kernel)
        return self.sides

    def _begin(self) -> None:
        given = [block for block in self.trace.blocks if block.kind in _BATCH and block.bytes]
        leading = any(block.shape and block.shape[0] == self.batch for block in given)
        for block in given:
            exact = leading and block.kind is BlockKind.INPUT
            if block.shape is None and self._divides(block.bytes):
                self.sides[block.id] = None
            elif block.shape and (block.shape[0] == self.batch or (not exact and self._divides(block.shape[0]))):
                self.sides[block.id] = 0
        if not self.sides:  # The recording does not tell inputs: feature maps follow from them.
            for block in self.trace.blocks:
                if block.kind in _FLOWING and self._divides(block.bytes):
                    self.sides[block.id] = self._alone(block)

    def _alone(self, block: Block) -> int | None:
        return 0 if block.shape and self._divides(block.shape[0]) else None

    def _divides(self, number: int) -> bool:
        return number > 0 and number % self.batch == 0

    def _through(self, kernel: Kernel) -> None:
        read = [name for name in kernel.reads if name in self.sides]
        touched = read or [name for name in kernel.writes if name in self.sides]
        if not touched:
            return
        for name in dict.fromkeys((*kernel.writes, *kernel.reads)):
            block = self.blocks[name]
            if name in self.sides or block.kind in _NEVER or (block.persistent and block.kind not in _BATCH):
                continue
            produced_here = read and self.makers.get(name) is kernel
            if produced_here or self._has_no_inputs(name):
                self._judge(kernel, block, touched, with_inputs=not produced_here)
            elif block.kind in _FLOWING and name not in self.updating:
                self._judge_by_likeness(block, touched)

    def _judge_by_likeness(self, block: Block, others: Collection[str]) -> None:
        """A block that is made without samples, as far as the recording tells, and is used next to some like it."""
        for name in others:
            other = self.blocks[name]
            if other.shape == block.shape and (block.shape is not None or other.bytes == block.bytes):
                self.sides[block.id] = self.sides[name]
                return

    def _has_no_inputs(self, name: str) -> bool:
        maker = self.makers.get(name)
        return maker is not None and set(maker.reads) <= {name}

    def _judge(self, kernel: Kernel, block: Block, others: Collection[str], *, with_inputs: bool) -> None:
        """Whether a block holds samples, made from or used next to others that do."""
        if block.shape is None:
            if self._grows_by_size(kernel, block, others, with_inputs=with_inputs):
                self.sides[block.id] = None
            return
        is_gradient = block.kind is BlockKind.WEIGHT_GRADIENT
        if is_gradient and _without_ones(block.shape) in self.weight_shapes:
            return
        if len(block.shape) == 1 and "batch_norm" in kernel.op.lower():
            return
        side = self._side(block.shape, others, strict=is_gradient or with_inputs)
        if side is not None:
            self.sides[block.id] = side

    def _side(self, shape: tuple[int, ...], others: Collection[str], *, strict: bool) -> int | None:
        runs = set[int]()
        for name in others:
            side, other = self.sides[name], self.blocks[name].shape
            if side is not None and other is not None:
                runs |= _runs(other, side)
        exact = [place for place, length in enumerate(shape) if length in runs]
        parted = [
            place
            for place, length in enumerate(shape)
            if not strict and self._divides(length) and not runs.isdisjoint(_runs(shape, place))
        ]
        result = [*exact, *parted]
        if result:
            return next((place for place in result if shape[place] == self.batch), result[0])
        loose = not strict and len(shape) > 1 and self.batch > 1
        return 0 if loose and self._divides(shape[0]) else None

    def _grows_by_size(self, kernel: Kernel, block: Block, others: Collection[str], *, with_inputs: bool) -> bool:
        if not self._divides(block.bytes) or block.id in self.updating or block.kind is BlockKind.WEIGHT_GRADIENT:
            return False
        if with_inputs:
            sizes = [self.blocks[name].bytes for name in others]
            return any(size % block.bytes == 0 and size // block.bytes <= _WIDEST for size in sizes)
        return kind_of(kernel.op) not in _REDUCING or block.bytes not in self.fixed_sizes


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def _runs(shape: tuple[int, ...], side: int) -> set[int]:
    """What a side may be merged into: products of neighbouring sides that hold it.

    >>> sorted(_runs((8, 4, 32), 0))
    [8, 32, 1024]
    """
    left = list(accumulate(reversed(shape[:side]), mul, initial=1))
    right = list(accumulate(shape[side + 1 :], mul, initial=1))
    return {before * shape[side] * after for before in left for after in right}
