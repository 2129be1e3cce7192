"""`um`: Unified Memory, which migrates pages when kernels touch them, or lets kernels access host memory.

The rules are those of NVIDIA's published driver (its open kernel modules, nvidia-uvm): up to 256 entries of the fault
buffer are served together, duplicates included, and what is left is dropped before the kernel goes on; the prefetcher
extends faults within chunks of 2 MiB (`simgpu.memory.prefetching`); the chunk on which a page faulted longest ago is
evicted, as the driver does not see other accesses. Times are those of studies (Zheng et al., HPCA 2016; Ganguly et al.,
ISCA 2019), and one is fitted (`simgpu.program.paging.HOST_PAGE_NS`). `simgpu reproduce recordings` compares all of it
with kernels under page faults on an A100.

Buddy Compression (Choukse et al., ISCA 2020, sections 2.3 and 4.3) compares itself with Unified Memory on a POWER9.
`scenarios/buddy-12.yaml` has the simpler rules that are taken for it: one page of 64 KiB a fault, no prefetching, and
LRU.

Where behaviour is not published, or differs between systems, this implementation decides:

* A page takes 32 of the 256 entries: each warp that accesses 128 B of it faults. Random accesses may take fewer.
* A kernel that faults stalls until its batch has arrived; evictions end before any page is fetched.
* Persistent blocks are resident when the first iteration begins, as far as they fit.
* The framework keeps freed memory (as caching allocators do): a value written into free memory needs no fault, and the
  contents of a released block are not written back. `first_touch` is for a process that has just started.
* Pages that the host has written cost the host's time once, when they first migrate; what comes back after an eviction
  is in none of the recordings.
* The driver's protection from thrashing reacts to pages that processors take from each other by faults, not to
  evictions (nvidia-uvm/uvm_perf_thrashing.c); here only one GPU faults.
* Recorded lifetimes and no compression, as with `none`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.memory.chunks import Chunk, ResidentChunks
from simgpu.policies.base import PlanContext, Policy, parameter, require_one_gpu
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.program.paging import (
    CHUNK,
    ENTRIES_PER_PAGE,
    FAULT_BATCH,
    FAULT_LATENCY_NS,
    HOST_PAGE_NS,
    PAGE,
    PREFETCH,
    Paged,
)
from simgpu.program.residency import in_host_memory, on_demand


@dataclass(frozen=True)
class UnifiedMemory(Policy):
    """No planning: pages migrate on faults and are evicted when memory is full, or everything stays in host memory."""

    name = "um"
    summary = "Unified Memory: pages migrate on faults and are evicted when memory is full, or stay pinned on the host"
    source = (
        "NVIDIA's open kernel modules, nvidia-uvm; Choukse et al., ISCA 2020 (Buddy Compression), sections 2.3 and 4.3"
    )

    access: Literal["migrate", "pinned"] = parameter(
        "migrate", "migrate: pages move to the GPU that touches them; pinned: kernels access host memory over the link"
    )
    page: int = parameter(PAGE, "bytes of a page, a multiple of 128")
    chunk: int = parameter(CHUNK, "bytes evicted together, a multiple of the page")
    fault_batch: int = parameter(FAULT_BATCH, "entries of the fault buffer that the driver serves together")
    entries_per_page: int = parameter(
        ENTRIES_PER_PAGE, "entries of the fault buffer that an absent page takes; the default is for 4 KiB"
    )
    fault_latency_ns: int = parameter(
        FAULT_LATENCY_NS, "nanoseconds from a batch's faults to the first byte transferred"
    )
    prefetch: int = parameter(
        PREFETCH,
        "per cent of a range, more than which must be resident for the rest to be prefetched; 0: no prefetching",
    )
    host_page_ns: int = parameter(
        HOST_PAGE_NS, "nanoseconds per page that the host has written, besides its copy; fitted"
    )
    first_touch: bool = parameter(
        False, "whether a first value in free memory faults, as in a process that has just started"
    )
    bandwidth: int = parameter(0, "of migrations per direction, bytes per second, at most the link's; 0: the link's")
    eviction: Literal["touched", "arrived"] = parameter(
        "arrived",
        "the chunk to evict: least recently faulted on, as the driver, which sees only faults, or least recently "
        "touched (LRU)",
    )
    write_back: Literal["all", "dirty"] = parameter(
        "all", "bytes written back from an evicted chunk: all, as the driver does, or only dirty ones"
    )

    def plan(self, context: PlanContext) -> Program:
        """The recorded iteration; the driver moves the pages, not the program.

        Raises `InputError` for invalid parameters and for several GPUs.
        """
        paged = Paged(
            self.page,
            self.chunk,
            self.fault_batch,
            self.entries_per_page,
            self.fault_latency_ns,
            self.prefetch,
            self.host_page_ns,
            self.first_touch,
            self.bandwidth or None,
            write_back_clean=self.write_back == "all",
        )
        require_one_gpu(context, self.name)
        program = plain_framework(context.graph)
        return in_host_memory(program) if self.access == "pinned" else on_demand(program, paged)

    def reclaim(self, residents: ResidentChunks) -> Chunk:
        """The oldest chunk by `eviction`."""
        return next(iter(residents.arrived if self.eviction == "arrived" else residents.touched))
