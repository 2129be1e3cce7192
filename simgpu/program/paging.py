"""Memory modes of programs that move no blocks: paging on demand, and access to host memory."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.errors import InputError, Problem

#: Published facts of Unified Memory on NVIDIA's GPUs since Pascal, with their sources.
#: The size that a fault grows to where data are dense, and the page of a POWER9's operating system: "basic block" of
#: Ganguly et al., ISCA 2019.
PAGE = 64 * 2**10
#: The unit of eviction, a "root chunk": NVIDIA's open kernel modules, nvidia-uvm/uvm_pmm_gpu.c.
CHUNK = 2 * 2**20
#: Faults that are read from the fault buffer together: the same, nvidia-uvm/uvm_gpu_replayable_faults.c.
FAULT_BATCH = 256
#: Published figures are 20 to 50 us: Zheng et al., HPCA 2016; 45 us in Ganguly et al., ISCA 2019.
FAULT_LATENCY_NS = 45_000


@dataclass(frozen=True, slots=True)
class Paged:
    """All blocks are on demand: a launch faults in the missing pages that it accesses.

    page: bytes fetched per fault. chunk: bytes evicted together, a multiple of the page. fault_batch: faults served
    together. fault_latency_ns: from the stall of a kernel to the first byte copied for it. bandwidth: of migrations,
    bytes per second per direction, None for the link's. write_back_clean: whether clean pages are copied out on
    eviction: the driver keeps a page in one memory only, so the host's copy is dropped when the page migrates to the
    GPU (nvidia-uvm/uvm_va_block.c).

    Raises `InputError` for invalid numbers.
    """

    page: int = PAGE
    chunk: int = CHUNK
    fault_batch: int = FAULT_BATCH
    fault_latency_ns: int = FAULT_LATENCY_NS
    bandwidth: int | None = None
    write_back_clean: bool = True

    def __post_init__(self) -> None:
        problems = []
        if self.page < 128 or self.page % 128:
            problems.append(("page", f"{self.page} is no size of a page", "give a positive multiple of 128 B"))
        elif self.chunk < self.page or self.chunk % self.page:
            what = f"{self.chunk} is not a multiple of the page of {self.page} B"
            problems.append(("chunk", what, "give a positive multiple of the page"))
        if self.fault_batch < 1:
            problems.append(("fault_batch", f"{self.fault_batch} faults cannot be served together", "give 1 or more"))
        if self.fault_latency_ns < 0:
            problems.append(("fault_latency_ns", f"{self.fault_latency_ns} is negative", "give nanoseconds from 0 on"))
        if self.bandwidth is not None and self.bandwidth < 1:
            what = f"{self.bandwidth} bytes per second move nothing"
            problems.append(("bandwidth", what, "give a positive number, or leave it to the link"))
        if problems:
            raise InputError(Problem("", f"parameters.{place}", what, remedy) for place, what, remedy in problems)


@dataclass(frozen=True, slots=True)
class Remote:
    """All blocks are in the host's pinned memory, and kernels read and write them over the link."""
