"""A trace at another batch size: blocks grow with the batch, durations follow the time model.

Lives here: which blocks and kernels grow, and by how much. Does not live here: the time model
(`simgpu.trace.timemodel`), which is asked for the ratio between both batch sizes; the recorded duration stays the base.

A block grows when it is not persistent state (weights, their gradients, optimizer state never grow), its bytes divide
by the batch, and its shape, where known, leads with the batch or a multiple of it (tokens, heads). One-sided blocks
grow only when their side is the batch itself: statistics of a normalization have a side for channels. A workspace
grows with its kernel. A kernel grows when a block it touches does, unless it is the optimizer's. Convolutions and
matrix products whose operations were not recorded grow in proportion to the batch, as if bound by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Origin, Phase, Trace
from simgpu.trace.ops import OpClass, op_class
from simgpu.trace.timemodel.operation import Direction, Operation, OperationKind

_FIXED = {BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE}
_KINDS = {
    OpClass.CONVOLUTION: OperationKind.CONVOLUTION,
    OpClass.LINEAR: OperationKind.GEMM,
    OpClass.POOLING: OperationKind.POOLING,
    OpClass.NORMALIZATION: OperationKind.NORMALIZATION,
    OpClass.SOFTMAX_LOSS: OperationKind.SOFTMAX,
}
_MATRIX = {OpClass.CONVOLUTION, OpClass.LINEAR}
#: Bytes of a value where a block does not say its number format.
_VALUE_BYTES = 4


class Durations(Protocol):
    """What prices an operation: a time model."""

    def duration_ns(self, operation: Operation) -> int:
        """Nanoseconds of a kernel that does this."""
        ...


class _WorkOnly:
    """Stands in where the device has no time model: a kernel takes as long as it has work."""

    def duration_ns(self, operation: Operation) -> int:
        return operation.flops or operation.bytes


def at_batch(trace: Trace, batch: int, gpu: GpuSpec | None = None) -> Trace:
    """The same iteration with another number of samples, marked modelled.

    gpu: whose time model tells how durations change; left out, the shipped GPU that has the device's name, and where
    there is none, durations grow in proportion to each kernel's work.
    Sparsity is kept. What was measured at the recorded batch alone is left out: starts, spreads, compressed sizes.
    Raises `InputError` for a batch below 1.

    >>> from simgpu.trace.chain import chain
    >>> doubled = at_batch(chain([5, 7], [10, 14], [100, 200]), 2)
    >>> [kernel.duration_ns for kernel in doubled.kernels], [block.bytes for block in doubled.blocks][:2]
    ([10, 14, 28, 20], [200, 400])
    """
    if type(batch) is not int or batch < 1:
        raise InputError.single(trace.name or "trace", "batch", f"{batch!r} is not a batch size", "give at least 1")
    was = trace.info.batch
    if batch == was:
        return trace
    model, told = _model_for(trace, gpu)
    grown = _Grown(trace, batch)
    ratios = {kernel.id: grown.ratio(kernel, model) for kernel in trace.kernels}
    notes = f"{trace.info.notes} Rescaled from batch {was} ({trace.info.origin}): {told}.".strip()
    info = replace(trace.info, batch=batch, origin=Origin.MODELLED, notes=notes, framework_peak_bytes=None)
    return replace(
        trace,
        info=info,
        kernels=tuple(
            replace(
                kernel,
                duration_ns=_scaled(kernel.duration_ns, *ratios[kernel.id]),
                start_ns=None,
                spread_ns=None,
                flops=grown.with_kernel(kernel, kernel.flops),
                dram_bytes=grown.dram_bytes(kernel),
            )
            for kernel in trace.kernels
        ),
        blocks=tuple(grown.block(block) for block in trace.blocks),
        algorithms=tuple(
            AlgorithmChoice(
                choice.kernel,
                choice.algorithm,
                _scaled(choice.duration_ns, *ratios[choice.kernel]),
                grown.workspace(choice),
            )
            for choice in trace.algorithms
        ),
        compressibility=(),
    )


def _model_for(trace: Trace, gpu: GpuSpec | None) -> tuple[Durations, str]:
    """The time model to use, and what it is in words."""
    from simgpu.hardware.nodes import load_node, node_names
    from simgpu.trace.timemodel.model import time_model

    if gpu is None:
        shipped = (load_node(name).gpu for name in node_names())
        gpu = next((found for found in shipped if found.name == trace.info.device and found.architecture), None)
    if gpu is None:
        return _WorkOnly(), f"no time model for {trace.info.device}, durations in proportion to each kernel's work"
    return time_model(gpu), f"durations by the time model of {gpu.name}"


def _scaled(value: int, numerator: int, denominator: int) -> int:
    """value x numerator / denominator, rounded half up; unchanged where there is nothing to divide by."""
    return (2 * value * numerator + denominator) // (2 * denominator) if denominator else value


@dataclass(frozen=True)
class _Grown:
    """Which blocks and kernels of a trace grow with the batch, and to what."""

    trace: Trace
    batch: int

    @cached_property
    def blocks(self) -> frozenset[str]:
        """Ids of the blocks that grow; workspaces follow their kernel."""
        was = self.trace.info.batch
        return frozenset(block.id for block in self.trace.blocks if _holds_samples(block, was))

    @cached_property
    def kernels(self) -> frozenset[str]:
        """Ids of the kernels that grow: those outside the optimizer that touch a block of samples."""
        return frozenset(
            kernel.id
            for kernel in self.trace.kernels
            if kernel.phase is not Phase.OPTIMIZER and not self.blocks.isdisjoint((*kernel.reads, *kernel.writes))
        )

    @cached_property
    def workspaces(self) -> frozenset[str]:
        """Ids of the workspaces of kernels that grow."""
        table = self.trace.block_by_id
        return frozenset(
            name
            for kernel in self.trace.kernels
            if kernel.id in self.kernels
            for name in kernel.writes
            if table[name].kind is BlockKind.WORKSPACE
        )

    def size(self, block: Block) -> int:
        """Bytes at the new batch."""
        if block.id in self.blocks or block.id in self.workspaces:
            return _scaled(block.bytes, self.batch, self.trace.info.batch)
        return block.bytes

    def block(self, block: Block) -> Block:
        """The block at the new batch."""
        shape = block.shape
        if shape and block.id in self.blocks:
            shape = (shape[0] // self.trace.info.batch * self.batch, *shape[1:])
        return replace(block, bytes=self.size(block), shape=shape)

    def with_kernel(self, kernel: Kernel, work: int | None) -> int | None:
        """Work of a kernel at the new batch: in proportion where it grows."""
        if work is None or kernel.id not in self.kernels:
            return work
        return _scaled(work, self.batch, self.trace.info.batch)

    def dram_bytes(self, kernel: Kernel) -> int | None:
        """Recorded traffic at the new batch: it grows as the bytes of the kernel's blocks do, weights staying."""
        if kernel.dram_bytes is None:
            return None
        return _scaled(kernel.dram_bytes, self._touched(kernel, new=True), self._touched(kernel, new=False))

    def workspace(self, choice: AlgorithmChoice) -> int:
        """Workspace of another algorithm at the new batch."""
        if choice.kernel not in self.kernels:
            return choice.workspace_bytes
        return _scaled(choice.workspace_bytes, self.batch, self.trace.info.batch)

    def ratio(self, kernel: Kernel, model: Durations) -> tuple[int, int]:
        """Modelled durations of a kernel at the new and the recorded batch."""
        if kernel.id not in self.kernels:
            return 1, 1
        if kernel.flops is None and op_class(kernel.op) in _MATRIX:
            return self.batch, self.trace.info.batch
        new, old = (model.duration_ns(self._operation(kernel, new=new)) for new in (True, False))
        return new, old

    def _operation(self, kernel: Kernel, *, new: bool) -> Operation:
        work = (self.with_kernel(kernel, kernel.flops) if new else kernel.flops) or 0
        recorded = self.dram_bytes(kernel) if new else kernel.dram_bytes
        table = self.trace.block_by_id
        written = [table[name] for name in kernel.writes]
        bytes_out = sum(self.size(block) if new else block.bytes for block in written)
        kind = _KINDS.get(op_class(kernel.op), OperationKind.ELEMENTWISE)
        return Operation(
            kind,
            work,
            recorded if recorded is not None else self._touched(kernel, new=new),
            max(1, bytes_out // _VALUE_BYTES),
            Direction.FORWARD if kernel.phase is Phase.FORWARD else Direction.BACKWARD_DATA,
        )

    def _touched(self, kernel: Kernel, *, new: bool) -> int:
        table = self.trace.block_by_id
        names = dict.fromkeys((*kernel.reads, *kernel.writes))
        return sum(self.size(table[name]) if new else table[name].bytes for name in names)


def _holds_samples(block: Block, batch: int) -> bool:
    if block.kind in _FIXED or block.kind is BlockKind.WORKSPACE or block.bytes == 0 or block.bytes % batch:
        return False
    if block.persistent and block.kind not in (BlockKind.INPUT, BlockKind.LABEL):
        return False
    if block.shape is None:
        return block.kind is not BlockKind.OTHER
    if len(block.shape) == 1 and block.kind not in (BlockKind.INPUT, BlockKind.LABEL):
        return block.shape[0] == batch and block.kind is not BlockKind.OTHER
    return bool(block.shape) and block.shape[0] > 0 and block.shape[0] % batch == 0
