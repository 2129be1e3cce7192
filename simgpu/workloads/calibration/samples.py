"""Samples: measured durations with their operations, which the time model is fitted to and tested on."""

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
    """How a measurement is used; `published.yaml` states the rule."""

    FIT = "fit"
    SEEN_NETWORK = "seen network"  # not fitted, but another measurement of the same network on the same GPU is
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    gpu: name of the GPU, as in options. spec: its description for the model.
    measures: the measured part of an iteration.
    operations: the operations that ran, each with its count.
    use: how the measurement is used.
    source: origin of the measurement.
    full: whether the part is a phase or an iteration, not one type of kernels.
    weight: weight in the fit; for one type of kernels, its fraction of the recording's time.
    without: algorithms that the library lacked.
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
        """Whether the fit uses this sample."""
        return self.use is SampleUse.FIT

    def modelled_ns(self, parameters: Parameters | None = None) -> int:
        """Duration in the time model, ns; by default with simgpu's parameters."""
        model = time_model(self.spec, tf32=self.tf32, without=self.without, parameters=parameters)
        return sum(count * model.duration_ns(operation) for operation, count in self.operations)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that cannot be compared, with the reason."""

    what: str
    why: str


def counted(operations: Iterable[Operation]) -> tuple[tuple[Operation, int], ...]:
    """The distinct operations with their counts."""
    return tuple(Counter(operations).items())
