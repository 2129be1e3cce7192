"""A compressing DMA engine: how fast it can feed the link with what it has compressed.

cDMA (HPCA 2018), sections V and VI. The engine reads a block uncompressed and sends it compressed, so its copies move
fewer bytes over the link and may be held up by what they read: at most what the engine, its buffer and its policy
allow, and what running kernels leave of the DRAM's bandwidth. Kernels are not slowed. A copy back is the same the
other way. A block's compression windows are taken together, by their sizes in sum, as section VI does with a layer's
ratio: windows that compress well and badly lie side by side, and the buffer evens them out.
"""

from __future__ import annotations

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import CdmaSpec
from simgpu.memory.transfer import NANO


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
