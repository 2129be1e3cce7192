"""Memory modes of programs that acquire no memory: paging on demand, and access to host memory."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.errors import InputError, Problem

#: Published facts of Unified Memory on NVIDIA's GPUs since Pascal, with their sources.
#: The page of x86 and of the driver's bookkeeping.
PAGE = 4096
#: The size to which the driver extends each fault: nvidia-uvm/uvm_perf_prefetch.c of NVIDIA's open kernel modules.
GROUP = 64 * 2**10
#: Per cent of a range that must be more than resident for the rest to be prefetched: the same.
PREFETCH = 51
#: The unit of eviction, a "root chunk": the same modules, nvidia-uvm/uvm_pmm_gpu.c; also that of prefetching.
CHUNK = 2 * 2**20
#: Entries that are read from the fault buffer together, duplicates included: nvidia-uvm/uvm_gpu_replayable_faults.c.
FAULT_BATCH = 256
#: Entries of a page: a warp that accesses adjacent numbers reads or writes 128 B, and each of a page's warps faults.
ENTRIES_PER_PAGE = PAGE // 128
#: Published figures are 20 to 50 us: Zheng et al., HPCA 2016; 45 us in Ganguly et al., ISCA 2019.
FAULT_LATENCY_NS = 45_000
#: FITTED, the only number here that is: what a page that the host has written costs besides its copy. The driver takes
#: each such page out of the host's page table. Fitted to the two sums of kernels with all data in host memory (BERT and
#: ViT on an A100; G10, MICRO 2023), and checked with those whose results alone fault: `simgpu reproduce recordings`.
HOST_PAGE_NS = 1_350


@dataclass(frozen=True, slots=True)
class Paged:
    """All blocks are on demand: a launch faults in the missing pages that it accesses.

    By default a fault fetches one page, and nothing else is modelled; `simgpu.policies.unified` has the driver's rules.

    page: bytes. chunk: bytes evicted together, a multiple of the page. fault_batch: entries of the fault buffer that
    are served together. entries_per_page: how many of them a page that is accessed for the first time takes.
    fault_latency_ns: from the stall of a kernel to the first byte copied for it. prefetch: per cent of a range, more
    than which must be resident for the rest to be fetched (`simgpu.memory.prefetching`); 0 for no prefetching.
    host_page_ns: what fetching a page that the host has written costs besides its copy. first_touch: whether a page
    that gets its first value faults while memory is free. bandwidth: of migrations, bytes per second per direction,
    None for the link's. write_back_clean: whether clean pages are copied out on eviction: the driver keeps a page in
    one memory only, so the host's copy is dropped when the page migrates to the GPU (nvidia-uvm/uvm_va_block.c).

    Raises `InputError` for invalid numbers.
    """

    page: int = GROUP
    chunk: int = CHUNK
    fault_batch: int = FAULT_BATCH
    entries_per_page: int = 1
    fault_latency_ns: int = FAULT_LATENCY_NS
    prefetch: int = 0
    host_page_ns: int = 0
    first_touch: bool = False
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
        if self.entries_per_page < 1:
            what = f"a page that faults takes entries, not {self.entries_per_page}"
            problems.append(("entries_per_page", what, "give 1 or more"))
        for name in ("fault_latency_ns", "host_page_ns"):
            if (value := getattr(self, name)) < 0:
                problems.append((name, f"{value} is negative", "give nanoseconds from 0 on"))
        if not 0 <= self.prefetch <= 100:
            problems.append(("prefetch", f"{self.prefetch} is no percentage", "give 1 to 100, or 0 for no prefetching"))
        if self.bandwidth is not None and self.bandwidth < 1:
            what = f"{self.bandwidth} bytes per second move nothing"
            problems.append(("bandwidth", what, "give a positive number, or leave it to the link"))
        if problems:
            raise InputError(Problem("", f"parameters.{place}", what, remedy) for place, what, remedy in problems)

    @property
    def pages_per_batch(self) -> int:
        """Pages whose faults are served together."""
        return max(self.fault_batch // self.entries_per_page, 1)


#: The rules of NVIDIA's driver.
DRIVER = Paged(PAGE, CHUNK, FAULT_BATCH, ENTRIES_PER_PAGE, FAULT_LATENCY_NS, PREFETCH, HOST_PAGE_NS)


@dataclass(frozen=True, slots=True)
class Remote:
    """All blocks are in the host's pinned memory, and kernels read and write them over the link."""
