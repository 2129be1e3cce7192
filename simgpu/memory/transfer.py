"""The time of a copy on an idle link."""

from __future__ import annotations

from simgpu.hardware.spec import GpuSpec

NANO = 10**9


def stream_ns(size: int, bandwidth: int) -> int:
    """Nanoseconds for `size` bytes at `bandwidth` bytes per second, rounded up to a whole nanosecond.

    >>> stream_ns(11_700_000_000, 11_700_000_000), stream_ns(1, 3_000_000_000), stream_ns(0, 1)
    (1000000000, 1, 0)
    """
    return -(-size * NANO // bandwidth)


def copy_ns(size: int, bandwidth: int, latency_ns: int) -> int:
    """Nanoseconds of a copy on an idle link: latency, then the bytes.

    >>> copy_ns(1000, 1_000_000_000, 350)
    1350
    """
    return latency_ns + stream_ns(size, bandwidth)


def sending_rate(gpu: GpuSpec, kernel_bandwidth: int, size: int, raw: int, link: int) -> int:
    """Rate at which a GPU sends a block of `raw` bytes as `size` bytes over a link, bytes per second on the link.

    kernel_bandwidth: DRAM bandwidth used by kernels. link: the link's own rate. Only a compressing engine may be slower
    than the link: its limits are the engine, its buffer and its policy, and the DRAM bandwidth that kernels do not use
    (cDMA, HPCA 2018, section VI). A plain copy always has its share of DRAM bandwidth, so the engine can read at least
    at that rate. Simultaneous copies in both directions each have all unused DRAM bandwidth.

    >>> from simgpu.hardware.dma_engine import CdmaSpec
    >>> engine = CdmaSpec("zvc", 200 * 10**9, buffer=70_000, latency_ns=350, kernel_bandwidth=100 * 10**9)
    >>> maxwell = GpuSpec("Titan X", 12 * 2**30, dram_bandwidth=336 * 10**9, cdma=engine)
    >>> [sending_rate(maxwell, engine.kernel_bandwidth, 100, raw, 16 * 10**9) for raw in (260, 2000)]
    [16000000000, 10000000000]
    """
    if gpu.cdma is None or not raw:
        return link
    reading = min(gpu.cdma.reading(link), max((gpu.dram_bandwidth or 0) - kernel_bandwidth, link))
    return max(min(link, reading * size // raw), 1)
