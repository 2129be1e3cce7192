"""Determines the work of every operator of an iteration, and its duration on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.modelled.operations import OperatorWork, work_of
from simgpu.recorder.notes import AlgorithmNote, BlockNote, KernelNote
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.timemodel.model import Tf32, time_model
from simgpu.workloads.timemodel.operation import Direction, Operation, OperationKind
from simgpu.workloads.timemodel.prices import Prices, algorithm_costs

#: Kinds of operations whose call shows their direction.
_DIRECTED = (OperationKind.CONVOLUTION, OperationKind.DEPTHWISE_CONVOLUTION, OperationKind.ATTENTION)


class WorkPass(TorchDispatchMode):
    """Notes the work of each operator call, and reports its workspace to the structure pass.

    Enter it before the structure pass, which then calls every operator through it.
    """

    def __init__(self, gpu: Prices) -> None:
        super().__init__()
        self.calls: list[OperatorWork] = []
        self._gpu = gpu

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: otherwise PyTorch would not run compiled code while this mode is active."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        returned = func(*args, **named)
        if func.namespace != "prim":
            self.calls.append(work_of(func, args, named, returned))
        return returned

    def start(self) -> None:
        """Nothing to do: `used` depends only on the noted call."""

    def used(self) -> int:
        """Returns the workspace bytes of the fastest algorithm for the last call."""
        result = algorithms(self._gpu, len(self.calls) - 1, self.calls[-1].operations)
        return result[0].workspace_bytes if result else 0


def algorithms(gpu: Prices, call: int, operations: Sequence[Operation]) -> list[AlgorithmNote]:
    """Returns the algorithms for a call with convolutions, fastest first; empty for other calls."""
    return [AlgorithmNote(call, *cost) for cost in algorithm_costs(gpu, operations)]


def all_algorithms(gpu: Prices, kernels: Sequence[KernelNote], calls: Sequence[OperatorWork]) -> list[AlgorithmNote]:
    """Returns the algorithms of all kernels with convolutions, in order."""
    return [each for kernel in kernels for each in algorithms(gpu, kernel.call, calls[kernel.call].operations)]


def priced_as_set(gpu: GpuSpec) -> Prices:
    """The time model of a GPU, with TF32 where PyTorch's settings allow it now.

    The setting is `torch.set_float32_matmul_precision`. If products may run in TF32, convolutions are taken to, which
    is PyTorch's default. Raises `InputError` as `time_model` does.
    """
    usual = Tf32.CONVOLUTIONS if allows_tf32(torch.backends.cudnn, "conv") else Tf32.NONE
    tf32 = Tf32.ALL if allows_tf32(torch.backends.cuda, "matmul") else usual
    return time_model(gpu, tf32=tf32)


def allows_tf32(backend: Any, operator: str) -> bool:
    """Whether a backend's float32 operators may run in TF32; recent versions of PyTorch have a precision instead."""
    of_operator = getattr(backend, operator, None)
    precision = getattr(of_operator, "fp32_precision", None)
    if precision in ("ieee", "tf32"):
        return bool(precision == "tf32")
    return bool(getattr(of_operator if hasattr(of_operator, "allow_tf32") else backend, "allow_tf32", False))


def prices_of(gpu: GpuSpec) -> tuple[Prices | None, InputError | None]:
    """Returns the time model of a GPU, or why there is none."""
    try:
        return priced_as_set(gpu), None
    except InputError as error:
        return None, error


def durations(
    gpu: Prices, kernels: Sequence[KernelNote], blocks: Sequence[BlockNote], calls: Sequence[OperatorWork]
) -> list[int]:
    """Returns the nanoseconds of each call; 0 for calls that are no kernel or only allocate memory."""
    priced = [0] * len(calls)
    for kernel in kernels:
        direction = _direction(kernel, blocks)
        work = calls[kernel.call].operations
        priced[kernel.call] = sum(gpu.duration_ns(_directed(operation, direction)) for operation in work)
    return priced


def _direction(kernel: KernelNote, blocks: Sequence[BlockNote]) -> Direction:
    """Returns the direction of an operator; feature maps recomputed in backward (checkpointing) count as forward."""
    created = {blocks[number].kind for number in kernel.writes}
    if kernel.phase is not Phase.BACKWARD or BlockKind.ACTIVATION in created:
        return Direction.FORWARD
    return Direction.BACKWARD_WEIGHTS if BlockKind.WEIGHT_GRADIENT in created else Direction.BACKWARD_DATA


def _directed(operation: Operation, direction: Direction) -> Operation:
    """Sets the direction of an operation that has none; only products get the direction of weight gradients."""
    if operation.direction is not Direction.FORWARD or operation.kind in _DIRECTED:
        return operation
    if direction is Direction.BACKWARD_WEIGHTS and operation.kind is not OperationKind.GEMM:
        direction = Direction.BACKWARD_DATA
    return replace(operation, direction=direction)
