"""What the kernels of a zoo network's iteration compute, by phase."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from simgpu.trace.model import NOT_RECORDED, Origin, Phase, TraceInfo
from simgpu.workloads.catalogue import build
from simgpu.workloads.lowering.entry import lower, operations_of
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.timemodel.operation import Operation


class _Free:
    """Prices for a lowering of which only the phases are wanted."""

    def duration_ns(self, operation: Operation) -> int:
        return 0

    def algorithms(self, operation: Operation) -> tuple[()]:
        return ()


@cache
def operations_by_phase(
    name: str, batch: int, variant: tuple[tuple[str, bool | int | float | str], ...] = (), *, adam: bool = False
) -> Mapping[Phase, tuple[tuple[str, Operation], ...]]:
    """The kernels of one iteration of a zoo network, each with its operator's name, by phase.

    >>> len(operations_by_phase("vgg16", 8)[Phase.FORWARD])
    40
    """
    network = build(name, None, **dict(variant))
    optimizer = Optimizer.ADAM if adam else Optimizer.SGD
    info = TraceInfo(name, batch, NOT_RECORDED, "float32", Origin.MODELLED, "the model zoo")
    trace = lower(network, batch=batch, prices=_Free(), info=info, optimizer=optimizer)
    found: dict[Phase, list[tuple[str, Operation]]] = {phase: [] for phase in Phase}
    for kernel, (_, op, operation) in zip(trace.kernels, operations_of(network, batch, optimizer), strict=True):
        found[kernel.phase].append((op, operation))
    return {phase: tuple(kernels) for phase, kernels in found.items()}
