"""What every operator of an iteration does, and what that costs on a named GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.recorder.modelled.operations import OperatorWork, work_of
from simgpu.recorder.notes import AlgorithmNote, BlockNote, KernelNote
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.timemodel.operation import Direction, Operation, OperationKind
from simgpu.workloads.timemodel.prices import Prices, algorithm_costs


class WorkPass(TorchDispatchMode):  # type: ignore[misc]
    """Notes the work of each operator called, and tells the structure pass the workspace it needs.

    Enter it before the structure pass, which then calls through it once for every operator that it sees.
    """

    def __init__(self, gpu: Prices) -> None:
        super().__init__()
        self.calls: list[OperatorWork] = []
        self._gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        returned = func(*args, **named)
        if func.namespace != "prim":
            self.calls.append(work_of(func, args, named, returned))
        return returned

    def start(self) -> None:
        """The call that is noted tells all."""

    def used(self) -> int:
        """Bytes of workspace of the fastest way to run the last call."""
        result = algorithms(self._gpu, len(self.calls) - 1, self.calls[-1].operations)
        return result[0].workspace_bytes if result else 0


def algorithms(gpu: Prices, call: int, operations: Sequence[Operation]) -> list[AlgorithmNote]:
    """The ways to run a call that holds convolutions, fastest first; none where it holds none."""
    return [AlgorithmNote(call, *way) for way in algorithm_costs(gpu, operations)]


def durations(
    gpu: Prices, kernels: Sequence[KernelNote], blocks: Sequence[BlockNote], calls: Sequence[OperatorWork]
) -> list[int]:
    """Nanoseconds of each call; 0 of those that are no kernel, or that only ask for memory."""
    priced = [0] * len(calls)
    for kernel in kernels:
        direction = _direction(kernel, blocks)
        work = calls[kernel.call].operations
        priced[kernel.call] = sum(gpu.duration_ns(_directed(operation, direction)) for operation in work)
    return priced


def _direction(kernel: KernelNote, blocks: Sequence[BlockNote]) -> Direction:
    """What an operator is called for: feature maps made again in backward are forward's, as in checkpointing."""
    created = {blocks[number].kind for number in kernel.writes}
    if kernel.phase is not Phase.BACKWARD or BlockKind.ACTIVATION in created:
        return Direction.FORWARD
    return Direction.BACKWARD_WEIGHTS if BlockKind.WEIGHT_GRADIENT in created else Direction.BACKWARD_DATA


def _directed(operation: Operation, direction: Direction) -> Operation:
    """An operation told what it is for; only products tell weights from data, and convolutions know by themselves."""
    if operation.convolution is not None or operation.direction is not Direction.FORWARD:
        return operation
    if direction is Direction.BACKWARD_WEIGHTS and operation.kind is not OperationKind.GEMM:
        direction = Direction.BACKWARD_DATA
    return replace(operation, direction=direction)
