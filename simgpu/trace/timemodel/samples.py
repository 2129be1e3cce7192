"""Measured durations beside the operations that took them: what the time model is fitted to and tested on.

Lives here: `Sample`, and samples from the published figures. Does not live here: samples from recordings
(`simgpu.trace.timemodel.recordings`), the fit (`simgpu.trace.timemodel.calibration`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import NOT_RECORDED, Origin, Phase, TraceInfo
from simgpu.trace.timemodel.model import Tf32, time_model
from simgpu.trace.timemodel.operation import Direction, Operation
from simgpu.trace.zoo.catalogue import NETWORKS, build
from simgpu.trace.zoo.lowering.entry import lower, operations_of
from simgpu.trace.zoo.lowering.optimizer import Optimizer

if TYPE_CHECKING:
    from simgpu.trace.timemodel.parameters import Parameters
    from simgpu.trace.timemodel.published import Figure, Published

#: Phases of an iteration that a published figure covers.
_PHASES = {
    "forward": (Phase.FORWARD,),
    "backward": (Phase.BACKWARD,),
    "both": (Phase.FORWARD, Phase.BACKWARD),
    "iteration": tuple(Phase),
}


class Use(StrEnum):
    """What a measurement is for; `published.yaml` states the rule."""

    FIT = "fit"
    SEEN_NETWORK = "seen network"  # not fitted to, but another one of the same network on the same GPU is
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    gpu: its name as a user would give it; spec: what the model computes with. measures: the part of an iteration.
    operations: what ran, each with how often. whole: the part is a phase or an iteration, not one sort of kernels.
    use: what the measurement is for. source: where it comes from.
    weight: what it counts in the fit; that of a sort of kernels is its part of the recording's time.
    """

    gpu: str
    spec: GpuSpec
    network: str
    batch: int
    measures: str
    operations: tuple[tuple[Operation, int], ...]
    measured_ns: int
    use: Use
    source: str
    whole: bool = True
    weight: float = 1.0
    tf32: Tf32 = Tf32.CONVOLUTIONS
    without: tuple[str, ...] = ()

    @property
    def fitted(self) -> bool:
        """Whether the parameters are fitted to it."""
        return self.use is Use.FIT

    def modelled_ns(self, parameters: Parameters | None = None) -> int:
        """What the time model says, with the parameters that come with simgpu or with others."""
        model = time_model(self.spec, tf32=self.tf32, without=self.without, parameters=parameters)
        return sum(count * model.duration_ns(operation) for operation, count in self.operations)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that cannot be compared, and why."""

    what: str
    why: str


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


def counted(operations: Iterable[Operation]) -> tuple[tuple[Operation, int], ...]:
    """Equal operations once, with how often they come."""
    return tuple(Counter(operations).items())


def published_samples(published: Published) -> Iterator[Sample | Skipped]:
    """The published figures; those of networks that the zoo does not have are skipped."""
    for figure in published.figures:
        if figure.network in NETWORKS:
            yield _sample(published, figure)
        else:
            yield Skipped(f"{figure.gpu} {figure.network} b{figure.batch}", "the zoo has no such network")


def _sample(published: Published, figure: Figure) -> Sample:
    phases = operations_by_phase(figure.network, figure.batch, tuple(figure.variant.items()))
    parts = _PHASES[figure.measures]
    kernels = [operation for phase in parts for _, operation in phases[phase]]
    if figure.input_gradient and Phase.BACKWARD in parts:
        kernels.append(_input_gradient(phases[Phase.FORWARD]))
    return Sample(
        figure.gpu,
        published.gpu(figure.gpu),
        figure.network,
        figure.batch,
        figure.measures,
        counted(kernels),
        figure.duration_ns,
        Use.FIT if figure.network in published.fitted_networks else Use.HELD_OUT,
        published.sources[figure.source].title,
        tf32=figure.tf32,
        without=figure.without,
    )


def _input_gradient(forward: tuple[tuple[str, Operation], ...]) -> Operation:
    """The kernel that trainings leave out and some benchmarks do not: the first convolution's, for its data."""
    first = next(operation for _, operation in forward if operation.convolution is not None)
    shape = first.convolution
    assert shape is not None
    values = shape.batch * shape.in_channels * shape.in_size[0] * shape.in_size[1]
    return replace(first, direction=Direction.BACKWARD_DATA, results=values, added_bytes=0)
