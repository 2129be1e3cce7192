"""Frozen descriptions of a node: GPUs, links, switches and host. Everything outside this package uses these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

#: Generations of GPUs that kernel times can be modelled for: `simgpu.workloads.timemodel` has parameters for each.
ArchitectureName = Literal["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "hopper"]


class Duplex(StrEnum):
    """Whether a link carries both directions at full rate at once, or shares one capacity between them."""

    FULL = "full"
    HALF = "half"


@dataclass(frozen=True, slots=True)
class CdmaSpec:
    """A compressing DMA engine: units at the memory controllers that encode what a copy moves (cDMA, section V).

    codec: what they encode by. read_bandwidth: uncompressed bytes per second that they can read or write (COMP_BW).
    buffer: bytes in flight between memory and engine; latency_ns: from the request of a byte to its arrival there.
    kernel_bandwidth: DRAM bandwidth that kernels take where a trace does not say, bytes per second.
    throttle: the bandwidth-aware policy, reads no faster than this; None for the performance-optimal one.
    """

    codec: str
    read_bandwidth: int
    buffer: int
    latency_ns: int
    kernel_bandwidth: int
    throttle: int | None = None

    @property
    def peak(self) -> int:
        """Uncompressed bytes per second that engine, buffer and policy allow, whatever else uses the memory.

        >>> CdmaSpec("zvc", 200 * 10**9, buffer=35_000, latency_ns=350, kernel_bandwidth=0).peak
        100000000000
        """
        limits = [self.read_bandwidth]
        if self.latency_ns:
            limits.append(self.buffer * 10**9 // self.latency_ns)
        if self.throttle is not None:
            limits.append(self.throttle)
        return min(limits)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The link between GPU and host: effective bandwidths (bytes/s) per direction and latency (ns) per copy.

    `half` duplex gives both directions together the larger of the two bandwidths.
    """

    kind: str
    d2h_bandwidth: int
    h2d_bandwidth: int
    latency_ns: int = 0
    duplex: Duplex = Duplex.FULL


@dataclass(frozen=True, slots=True)
class MetadataCacheSpec:
    """The cache of what compressed memory-entries are like (Buddy Compression, section 3.2).

    size: bytes of each slice. slices: how many there are. ways: lines of a set. line: bytes that a miss reads. entries:
    memory-entries that a line describes.
    """

    size: int
    slices: int
    ways: int
    line: int
    entries: int

    @property
    def total(self) -> int:
        """Bytes of all slices."""
        return self.size * self.slices

    @property
    def sets(self) -> int:
        """Sets of each slice.

        >>> MetadataCacheSpec(4096, slices=32, ways=4, line=32, entries=64).sets
        32
        """
        return self.size // (self.line * self.ways)


class BuddyMode(StrEnum):
    """What compression is for: more memory, extended by a buddy memory, or only faster transfers to the L2 cache."""

    CAPACITY = "capacity"
    BANDWIDTH_ONLY = "bandwidth-only"


class Granularity(StrEnum):
    """What a target ratio is chosen for: each allocation, or the whole program (the naive choice of section 3.4)."""

    ALLOCATION = "allocation"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class BuddySpec:
    """Compressed device memory with a buddy memory (Buddy Compression, sections 3 and 4.1).

    link: to the buddy memory, None for the GPU's own link to the host, which copies use too. carve_out: size of the
    buddy memory, in times the device memory. cache: of metadata. decompression_ns: that an access to a compressed entry
    takes longer. memory_latency_ns: of an access to device memory. in_flight: requested bytes that the GPU can have
    outstanding at once. overlap: share of a kernel's time on the device that its traffic to the buddy memory may
    overlap. mode: what compression is for. granularity, threshold, mostly_zero: how targets are chosen: for
    what, the largest share of an allocation's entries that may overflow, and whether those that stay almost all
    zero get a sixteenth of their size.
    """

    link: LinkSpec | None
    carve_out: int
    cache: MetadataCacheSpec
    decompression_ns: int
    memory_latency_ns: int
    in_flight: int
    overlap: float = 0.0
    mode: BuddyMode = BuddyMode.CAPACITY
    granularity: Granularity = Granularity.ALLOCATION
    threshold: float = 0.3
    mostly_zero: bool = True


@dataclass(frozen=True, slots=True)
class PowerSpec:
    """What the parts of a GPU's board draw: milliwatts, and femtojoules for each byte that moves.

    limit_mw: the thermal design power of the board. idle_mw: drawn all the time by a board that holds a program and
    runs no kernel. arithmetic_mw: what arithmetic at the full rate adds. dram_fj: for a byte to or from device memory;
    link_fj: for a byte over the link.
    """

    limit_mw: int
    idle_mw: int
    arithmetic_mw: int
    dram_fj: int
    link_fj: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU.

    memory: bytes a program can use. reserved: bytes of them that the framework keeps for itself (its context).
    copy_engines: 1 serves both directions in turn, 2 serves one each.
    alignment: every allocation is rounded up to a multiple of this many bytes.
    architecture: the generation's name in lower case, such as ``volta``. multiprocessors: how many it has.
    dram_bandwidth: peak, bytes per second. fp32_rate, tensor_rate: peak operations per second of single precision on
    the ordinary units, and of the matrix units on half-precision inputs. None where not stated or not there.
    cdma: its compressing DMA engine; buddy: its compressed memory; None where it has none. power: what its parts draw,
    None where not stated.
    reported_as: what its driver calls it, where that is not its name; boards of several sizes may share a chip's rates.
    instant_codecs: codecs take no time, on the GPU and on its host; for what-if runs only.
    """

    name: str
    memory: int
    copy_engines: int = 2
    alignment: int = 1
    reserved: int = 0
    dram_bandwidth: int | None = None
    fp32_rate: int | None = None
    tensor_rate: int | None = None
    architecture: str | None = None
    multiprocessors: int | None = None
    cdma: CdmaSpec | None = None
    buddy: BuddySpec | None = None
    power: PowerSpec | None = None
    reported_as: tuple[str, ...] = ()
    instant_codecs: bool = False

    def is_called(self, device: str) -> bool:
        """Whether a recording on `device` was made on this GPU.

        >>> GpuSpec("Tesla V100 PCIe", 1, reported_as=("Tesla V100-PCIE-32GB",)).is_called("Tesla V100-PCIE-32GB")
        True
        """
        return device == self.name or device in self.reported_as


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """A switch between some GPUs and the host: what they can send through it together, bytes/s per direction.

    gpus: numbers of the GPUs behind it, from 0. A copy of one of them passes the GPU's own link and the switch. `half`
    duplex gives both directions together the larger of the two bandwidths.
    """

    gpus: tuple[int, ...]
    d2h_bandwidth: int
    h2d_bandwidth: int
    duplex: Duplex = Duplex.FULL


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host.

    pinned_memory: bytes that may be pinned for copies; None means without limit. memory: bytes it has; cores: how
    many its processors have together. codec_bandwidth: uncompressed bytes per second that they encode or decode.
    accumulate_bandwidth: bytes per second that one core reads and writes while it adds up gradients; accumulate_limit:
    what all cores together reach at that, bound by their memory. None where not stated.
    """

    pinned_memory: int | None = None
    memory: int | None = None
    cores: int | None = None
    codec_bandwidth: int | None = None
    accumulate_bandwidth: int | None = None
    accumulate_limit: int | None = None

    def accumulating(self, cores: int) -> int | None:
        """Bytes per second that `cores` cores read and write while they add up gradients; None where not stated.

        >>> HostSpec(accumulate_bandwidth=10, accumulate_limit=25).accumulating(20)
        25
        """
        if self.accumulate_bandwidth is None:
            return None
        rate = cores * self.accumulate_bandwidth
        return rate if self.accumulate_limit is None else min(rate, self.accumulate_limit)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Equal GPUs, each with an equal link, the switches that some of them share, and their host.

    A program for one GPU uses GPU 0 with its link alone, as if there were no other GPU and no switch.

    >>> gpu, link = GpuSpec("small", memory=1000, reserved=100), LinkSpec("bus", 10**9, 10**9)
    >>> NodeSpec("bench", gpu, link).budget
    900
    """

    name: str
    gpu: GpuSpec
    link: LinkSpec
    host: HostSpec = HostSpec()
    description: str = ""
    gpus: int = 1
    switches: tuple[SwitchSpec, ...] = ()

    @property
    def budget(self) -> int:
        """Bytes of device memory that a program may use."""
        return self.gpu.memory - self.gpu.reserved
