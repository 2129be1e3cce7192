"""`sample_sides` finds the blocks of a trace that hold samples, and which of their dimensions does.

A block holds samples if the kernel that produces it reads a block that does, and one of its dimensions is the sample
dimension of that block: alone, merged with its neighbours (samples x tokens, samples x heads) or split from them. So
a table's gradient with a row for each token grows, while one with a fixed number of sampled rows does not, although the
first dimension of both is a multiple of the batch. If no dimension matches one of the read block, the first of two or
more counts if the batch divides it.

Blocks produced without inputs (such as a random mask) hold samples if a kernel uses them with a block that does and
with which they share the sample dimension. Feature maps and gradients that are produced without samples, according to
the recording, hold samples if a kernel uses them with one of the same shape, or of the same bytes if shapes are
unknown. If a recording has no inputs, all its feature maps and gradients whose bytes the batch divides are assumed to
hold samples.

These never hold samples: weights, weight gradients with the shape of a weight, optimizer state, persistent blocks
except inputs and labels, workspaces, and the channel statistics of batch normalization. A block of unknown shape holds
samples if the batch divides its bytes, unless the optimizer reads it or a reduction makes it as large as some weight.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from types import MappingProxyType

from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import OperationKind

_BATCH = (BlockKind.INPUT, BlockKind.LABEL)
_FLOWING = (BlockKind.ACTIVATION, BlockKind.GRADIENT)
_NEVER = (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.WORKSPACE)
_REDUCING = (OperationKind.REDUCTION, OperationKind.NORMALIZATION)
#: A mask is at most this factor smaller than the block it masks: one byte for an 8-byte number.
_WIDEST = 8

#: The sample dimension of each block that holds samples; None if its shape is unknown.
Sides = Mapping[str, int | None]

#: The trace that was last followed, and its result: a search rescales one trace to many batches.
_LAST: dict[str, tuple[weakref.ref[Trace], Sides]] = {}


def sample_sides(trace: Trace) -> Sides:
    """The blocks that hold samples, with their sample dimension.

    >>> from simgpu.trace.chain import chain
    >>> list(sample_sides(chain([5], [10], [100])))[:1]
    ['x1']
    """
    last = _LAST.get("trace")
    if last is None or last[0]() is not trace:
        last = _LAST["trace"] = weakref.ref(trace), MappingProxyType(_Flow(trace).run())
    return last[1]


@dataclass
class _Flow:
    """Follows samples through a trace; `sides` has the blocks found so far."""

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
        self.producers: dict[str, Kernel] = {}
        for kernel in trace.kernels:
            for name in kernel.writes:
                self.producers.setdefault(name, kernel)

    def run(self) -> dict[str, int | None]:
        """Passes over the kernels until nothing more is found; later uses identify blocks produced without inputs."""
        self._begin()
        found = -1
        while found != len(self.sides):
            found = len(self.sides)
            for kernel in self.trace.kernels:
                self._through(kernel)
        return self.sides

    def _begin(self) -> None:
        inputs = [block for block in self.trace.blocks if block.kind in _BATCH and block.bytes]
        leading = any(block.shape and block.shape[0] == self.batch for block in inputs)
        for block in inputs:
            exact = leading and block.kind is BlockKind.INPUT
            if block.shape is None and self._divides(block.bytes):
                self.sides[block.id] = None
            elif block.shape and (block.shape[0] == self.batch or (not exact and self._divides(block.shape[0]))):
                self.sides[block.id] = 0
        if not self.sides:  # The recording has no inputs to start from.
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
            produced_here = read and self.producers.get(name) is kernel
            if produced_here or self._has_no_inputs(name):
                self._judge(kernel, block, touched, with_inputs=not produced_here)
            elif block.kind in _FLOWING and name not in self.updating:
                self._judge_by_similarity(block, touched)

    def _judge_by_similarity(self, block: Block, others: Collection[str]) -> None:
        """Adds a block produced without samples, according to the recording, if one of `others` has its shape."""
        for name in others:
            other = self.blocks[name]
            if other.shape == block.shape and (block.shape is not None or other.bytes == block.bytes):
                self.sides[block.id] = self.sides[name]
                return

    def _has_no_inputs(self, name: str) -> bool:
        producer = self.producers.get(name)
        return producer is not None and set(producer.reads) <= {name}

    def _judge(self, kernel: Kernel, block: Block, others: Collection[str], *, with_inputs: bool) -> None:
        """Adds a block if it holds samples. others: blocks with samples that it is produced from or used with."""
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
        split = [
            place
            for place, length in enumerate(shape)
            if not strict and self._divides(length) and not runs.isdisjoint(_runs(shape, place))
        ]
        matches = [*exact, *split]
        if matches:
            return next((place for place in matches if shape[place] == self.batch), matches[0])
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
    """Lengths that a dimension may be merged into: products of neighbouring dimensions that include it.

    >>> sorted(_runs((8, 4, 32), 0))
    [8, 32, 1024]
    """
    left = list(accumulate(reversed(shape[:side]), mul, initial=1))
    right = list(accumulate(shape[side + 1 :], mul, initial=1))
    return {before * shape[side] * after for before in left for after in right}
