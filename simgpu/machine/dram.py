"""DRAM bandwidth that kernels take from the engine that compresses copies (cDMA, HPCA 2018, section VI)."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import GpuSpec
from simgpu.machine.flows import FlowNetwork
from simgpu.machine.instants import InstantPhase
from simgpu.machine.simulator import Events, KernelStep, Stream
from simgpu.memory.transfer import NANO, sending_rate


class Dram:
    """A GPU's DRAM. taken: bytes per second that kernels use now: the sum of their demands if these vary, else the
    constant of the engine."""

    def __init__(self, gpu: GpuSpec, flows: FlowNetwork | None, *, demands_vary: bool) -> None:
        self.gpu = gpu
        self.flows = flows
        self.taken = 0 if demands_vary or gpu.cdma is None else gpu.cdma.kernel_bandwidth

    def sending_rate(self, size: int, raw: int, link: int) -> int:
        """Bytes per second on a link at which a block of `raw` bytes is sent as `size` bytes."""
        return sending_rate(self.gpu, self.taken, size, raw, link)

    def take(self, rate: int) -> None:
        """A kernel begins to use bandwidth; negative when it ends."""
        self.taken += rate
        if self.flows is not None:
            self.flows.update_rates()


@dataclass(frozen=True, slots=True)
class DemandingKernelStep:
    """Run a kernel that takes bandwidth while it runs. demand: bytes per second."""

    kernel: KernelStep
    dram: Dram
    demand: int

    def perform(self, stream: Stream) -> Events:
        """Copies that are under way slow down when it starts."""
        yield stream.turn(InstantPhase.START)
        self.dram.take(self.demand)
        waits = self.kernel.perform(stream)
        if waits is not None:
            yield from waits
        self.dram.take(-self.demand)


def dram_demands(graph: TaskGraph, cdma: CdmaSpec) -> list[int] | None:
    """DRAM bandwidth that each kernel takes, bytes per second; None where no kernel's is recorded.

    A kernel without a record among others that have one takes the engine's constant.
    """
    if all(kernel.dram_bytes is None for kernel in graph.kernels):
        return None
    return [
        cdma.kernel_bandwidth if kernel.dram_bytes is None else kernel.dram_bytes * NANO // max(duration, 1)
        for kernel, duration in zip(graph.kernels, graph.durations, strict=True)
    ]
