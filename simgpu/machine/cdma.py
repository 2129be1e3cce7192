"""A compressing DMA engine: how fast it can feed the link with what it has compressed.

cDMA (HPCA 2018), sections V and VI. The engine reads a block uncompressed and sends it compressed, so its copies move
fewer bytes over the link and may be held up by what they read: at most what the engine, its buffer and its policy
allow, and what running kernels leave of the DRAM's bandwidth. Kernels are not slowed. A copy back is the same the
other way. A block's compression windows are taken together, by their sizes in sum, as section VI does with a layer's
ratio: windows that compress well and badly lie side by side, and the buffer evens them out.

Lives here: the rate, the demand of kernels, and the bytes that blocks take on the link. Does not live here: links and
engines (`simgpu.machine.engines`), or how small blocks become (`simgpu.codecs`).
"""

from __future__ import annotations

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import CdmaSpec, GpuSpec
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


class ReadRate:
    """What the engine can read, as kernels come and go.

    taken: DRAM bandwidth that running kernels take, bytes per second.
    """

    def __init__(self, gpu: GpuSpec, cdma: CdmaSpec, taken: int) -> None:
        self.dram = gpu.dram_bandwidth or 0
        self.peak = cdma.peak
        self.taken = taken

    def cap(self, size: int, raw: int, link: int) -> int:
        """Rate at which a block of `raw` bytes can be sent as `size` bytes, bytes per second on the link.

        link: the link's own rate. A plain copy has its share of DRAM whatever kernels take, so the engine, too, has at
        least that much to read from. Copies in both directions at once each have all that kernels leave.

        >>> maxwell = GpuSpec("Titan X", 12 * 2**30, dram_bandwidth=336 * 10**9)
        >>> engine = CdmaSpec("zvc", 200 * 10**9, buffer=70_000, latency_ns=350, kernel_bandwidth=100 * 10**9)
        >>> rate = ReadRate(maxwell, engine, engine.kernel_bandwidth)
        >>> rate.cap(100, 260, link=16 * 10**9), rate.cap(100, 2000, link=16 * 10**9)
        (16000000000, 10000000000)
        """
        if not raw:
            return link
        reading = min(self.peak, max(self.dram - self.taken, link))
        return max(min(link, reading * size // raw), 1)
