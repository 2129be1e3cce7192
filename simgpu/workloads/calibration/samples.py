"""Measured durations next to the operations that took them: what the time model is fitted to and tested on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.timemodel.model import Tf32, time_model
from simgpu.workloads.timemodel.operation import Operation

if TYPE_CHECKING:
    from simgpu.workloads.timemodel.parameters import Parameters


class SampleUse(StrEnum):
    """What a measurement is for; `published.yaml` states the rule."""

    FIT = "fit"
    SEEN_NETWORK = "seen network"  # not fitted to, but another one of the same network on the same GPU is
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    gpu: its name as a user would give it; spec: what the model computes with. measures: the part of an iteration.
    operations: what ran, each with how often. full: the part is a phase or an iteration, not one sort of kernels.
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
    use: SampleUse
    source: str
    full: bool = True
    weight: float = 1.0
    tf32: Tf32 = Tf32.CONVOLUTIONS
    without: tuple[str, ...] = ()

    @property
    def fitted(self) -> bool:
        """Whether the parameters are fitted to it."""
        return self.use is SampleUse.FIT

    def modelled_ns(self, parameters: Parameters | None = None) -> int:
        """What the time model says, with the parameters that come with simgpu or with others."""
        model = time_model(self.spec, tf32=self.tf32, without=self.without, parameters=parameters)
        return sum(count * model.duration_ns(operation) for operation, count in self.operations)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that cannot be compared, and why."""

    what: str
    why: str


def counted(operations: Iterable[Operation]) -> tuple[tuple[Operation, int], ...]:
    """Equal operations once, with how often they come."""
    return tuple(Counter(operations).items())
