"""The compressing DMA engine of a GPU (cDMA, section V)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CdmaSpec:
    """A compressing DMA engine, whose units at the memory controllers encode the data of copies (cDMA, section V).

    codec: codec of the units.
    read_bandwidth: uncompressed bytes per second that they can read or write (COMP_BW).
    buffer: bytes in flight between memory and engine.
    latency_ns: time from the request of a byte to its arrival at the engine.
    kernel_bandwidth: DRAM bytes per second of kernels for which the trace has no bandwidth.
    throttle: read limit of the bandwidth-aware policy, bytes per second; None for the performance-optimal policy.
    nominal_link: link rate for which the read limits are stated, bytes per second; None if they hold for any link.
    """

    codec: str
    read_bandwidth: int
    buffer: int
    latency_ns: int
    kernel_bandwidth: int
    throttle: int | None = None
    nominal_link: int | None = None

    def reading(self, link: int) -> int:
        """Uncompressed bytes per second that it may read for a link of this rate.

        The paper states its limits as a compression ratio times the nominal rate of the link (section V-D: 48 GB/s are
        3.0 times 16 GB/s). On a slower link the same ratio takes less.

        >>> engine = CdmaSpec("zvc", 48 * 10**9, 70_000, 350, kernel_bandwidth=0, nominal_link=16 * 10**9)
        >>> engine.reading(12_800_000_000) / 12_800_000_000
        3.0
        """
        if self.nominal_link is None or link >= self.nominal_link:
            return self.peak
        return self.peak * link // self.nominal_link

    @property
    def peak(self) -> int:
        """Uncompressed bytes per second that engine, buffer and policy allow, regardless of other memory traffic.

        >>> CdmaSpec("zvc", 200 * 10**9, buffer=35_000, latency_ns=350, kernel_bandwidth=0).peak
        100000000000
        """
        limits = [self.read_bandwidth]
        if self.latency_ns:
            limits.append(self.buffer * 10**9 // self.latency_ns)
        if self.throttle is not None:
            limits.append(self.throttle)
        return min(limits)
