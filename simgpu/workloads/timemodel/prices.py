"""The `Prices` interface of a time model, and the costs of kernels with several convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Protocol

from simgpu.workloads.timemodel.operation import Operation

#: Default limit on a convolution's workspace, bytes: TensorFlow's (TF_CUDNN_WORKSPACE_LIMIT_IN_MB, conv_ops_gpu.cc).
WORKSPACE_LIMIT = 2**32


class Priced(Protocol):
    """One way to run a convolution, such as a `simgpu.workloads.timemodel.model.Algorithm`."""

    @property
    def name(self) -> str:
        """Name of the algorithm."""

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""

    @property
    def workspace_bytes(self) -> int:
        """Workspace in bytes."""


class Prices(Protocol):
    """Durations of operations on a GPU, such as a `simgpu.workloads.timemodel.model.TimeModel`."""

    def duration_ns(self, operation: Operation) -> int:
        """Duration of an operation in nanoseconds; that of the fastest algorithm for a convolution."""

    def algorithms(self, operation: Operation) -> Sequence[Priced]:
        """Algorithms of a convolution, fastest first; empty for other operations."""


class AlgorithmCost(NamedTuple):
    """One way to run a kernel. name: its convolutions' algorithms, joined by a plus."""

    name: str
    duration_ns: int
    workspace_bytes: int


def algorithm_costs(prices: Prices, operations: Sequence[Operation]) -> list[AlgorithmCost]:
    """The ways to run a kernel that contains convolutions, fastest first; empty if it contains none.

    A kernel with several convolutions, such as the backward of one, combines their algorithms. They run one after
    another in the same workspace: durations add up, the workspace is the largest. The result has only combinations that
    need less workspace than all faster ones.
    """
    priced = [prices.algorithms(operation) for operation in operations]
    others = sum(prices.duration_ns(operation) for operation, each in zip(operations, priced, strict=True) if not each)
    convolutions = [each for each in priced if each]
    if not convolutions:
        return []
    combined = [
        AlgorithmCost(
            "+".join(each.name for each in chosen),
            others + sum(each.duration_ns for each in chosen),
            max(each.workspace_bytes for each in chosen),
        )
        for chosen in product(*convolutions)
    ]
    combined.sort(key=lambda way: (way.duration_ns, way.workspace_bytes, way.name))
    return combined if len(convolutions) == 1 else _unbeaten(combined)


def _unbeaten(costs: Sequence[AlgorithmCost]) -> list[AlgorithmCost]:
    front: list[AlgorithmCost] = []
    for cost in costs:
        if not front or cost.workspace_bytes < front[-1].workspace_bytes:
            front.append(cost)
    return front
