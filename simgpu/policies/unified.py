"""`um`: Unified Memory, which migrates pages when kernels touch them, or lets kernels access host memory.

Buddy Compression (Choukse et al., ISCA 2020, sections 2.3 and 4.3) compares itself with it. The model follows the
published driver (NVIDIA's open kernel modules, nvidia-uvm) and studies of it (Zheng et al., HPCA 2016; Ganguly et al.,
ISCA 2019).

Where behaviour is not published, or differs between systems, this implementation decides:

* One fault fetches one page. The driver's prefetcher fetches 4 KiB to 2 MiB, depending on how much of a chunk is
  resident; a larger `page` models it.
* A kernel that faults stalls until its batch has arrived; evictions end before any page is fetched.
* Persistent blocks are resident when the first iteration begins, as far as they fit.
* The framework keeps freed memory (as caching allocators do): a value written into free memory needs no fault, and the
  contents of a released block are not written back.
* Recorded lifetimes and no compression, as with `none`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.errors import InputError
from simgpu.memory.chunks import Chunk, ResidentChunks
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.program.paging import CHUNK, FAULT_BATCH, FAULT_LATENCY_NS, PAGE, Paged
from simgpu.program.residency import in_host_memory, on_demand


@dataclass(frozen=True)
class UnifiedMemory(Policy):
    """No planning: pages migrate on faults and are evicted when memory is full, or everything stays in host memory."""

    name = "um"
    summary = "Unified Memory: pages migrate on faults and are evicted when memory is full, or stay pinned on the host"
    source = "Choukse et al., ISCA 2020 (Buddy Compression), sections 2.3 and 4.3"

    access: Literal["migrate", "pinned"] = parameter(
        "migrate", "migrate: pages move to the GPU that touches them; pinned: kernels access host memory over the link"
    )
    page: int = parameter(PAGE, "bytes migrated per fault, a multiple of 128")
    chunk: int = parameter(CHUNK, "bytes evicted together, a multiple of the page")
    fault_batch: int = parameter(FAULT_BATCH, "faults that the driver serves together")
    fault_latency_ns: int = parameter(
        FAULT_LATENCY_NS, "nanoseconds from a batch's faults to the first byte transferred"
    )
    bandwidth: int = parameter(0, "of migrations per direction, bytes per second, at most the link's; 0: the link's")
    eviction: Literal["touched", "arrived"] = parameter(
        "touched",
        "the chunk to evict: least recently touched (LRU), or least recently faulted on, as the driver, which sees "
        "only faults",
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
            self.fault_latency_ns,
            self.bandwidth or None,
            write_back_clean=self.write_back == "all",
        )
        if context.parallel_trial is not None:
            what = "um supports one GPU: pages shared by several GPUs are not modelled"
            raise InputError.single("", "data_parallel", what, "run it on one GPU, or choose another policy")
        program = plain_framework(context.graph)
        return in_host_memory(program) if self.access == "pinned" else on_demand(program, paged)

    def reclaim(self, residents: ResidentChunks) -> Chunk:
        """The oldest chunk by `eviction`."""
        return next(iter(residents.arrived if self.eviction == "arrived" else residents.touched))
