"""What prices operations: the face that a time model shows to those who make traces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Protocol

from simgpu.workloads.timemodel.operation import Operation


class Priced(Protocol):
    """One way to run a convolution; `simgpu.workloads.timemodel.model.Algorithm` is one."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def duration_ns(self) -> int:
        """Nanoseconds."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes that it needs while it runs."""


class Prices(Protocol):
    """What a GPU takes; `simgpu.workloads.timemodel.model.TimeModel` is one."""

    def duration_ns(self, operation: Operation) -> int:
        """Nanoseconds of one operation; of a convolution by its fastest algorithm."""

    def algorithms(self, operation: Operation) -> Sequence[Priced]:
        """Ways to run a convolution, fastest first; none for anything else."""


class AlgorithmCost(NamedTuple):
    """One way to run a kernel: names of its convolutions' algorithms joined by a plus, nanoseconds, bytes."""

    name: str
    duration_ns: int
    workspace_bytes: int


def algorithm_costs(prices: Prices, operations: Sequence[Operation]) -> list[AlgorithmCost]:
    """The ways to run a kernel that holds convolutions, fastest first; none where it holds none.

    A kernel with several, as the backward of a convolution is, combines their algorithms, one running after another in
    the same workspace: the durations add up, the workspace is the largest. Of the combinations only those stand that
    need less workspace than all faster ones.
    """
    result = [prices.algorithms(operation) for operation in operations]
    others = sum(prices.duration_ns(operation) for operation, each in zip(operations, result, strict=True) if not each)
    convolutions = [each for each in result if each]
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


def _unbeaten(result: Sequence[AlgorithmCost]) -> list[AlgorithmCost]:
    retained: list[AlgorithmCost] = []
    for way in result:
        if not retained or way.workspace_bytes < retained[-1].workspace_bytes:
            retained.append(way)
    return retained
