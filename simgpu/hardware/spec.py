"""Frozen dataclasses that describe a node: GPUs, memories, links, switches and host. All other packages use these."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

from simgpu.hardware.dma_engine import CdmaSpec

#: GPU architectures whose kernel times can be modelled: `simgpu.workloads.timemodel` has parameters for each.
ArchitectureName = Literal[
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "blackwell-rtx",
    "cdna3",
]


#: Memories that every node has: each GPU's own, and the host's pinned memory. A node may list others.
DEVICE = "device"
HOST = "host"


def is_memory(name: str) -> bool:
    """Whether a memory can have this name: two or more small letters, so that names of engines can be read back.

    >>> is_memory("ssd"), is_memory("nvme0")
    (True, False)
    """
    return len(name) > 1 and name.isascii() and name.isalpha() and name.islower()


class Duplex(StrEnum):
    """Whether a link transfers in both directions at full rate (full), or both share one capacity (half)."""

    FULL = "full"
    HALF = "half"


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The link between GPU and host: effective bandwidths (bytes/s) per direction and latency (ns) per copy.

    With `half` duplex, both directions share the larger of the two bandwidths.
    """

    kind: str
    d2h_bandwidth: int
    h2d_bandwidth: int
    latency_ns: int = 0
    duplex: Duplex = Duplex.FULL


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """A memory that programs can name.

    kind: what it is, for people. capacity: bytes; None for no limit. alignment: every allocation is rounded up to a
    multiple of this many bytes. allocator: ``counting`` counts bytes, ``addressed`` also finds a place for each block.
    endurance: bytes that may be written to it before it wears out; None for no limit.
    """

    name: str
    kind: str
    capacity: int | None = None
    alignment: int = 1
    allocator: Literal["counting", "addressed"] = "counting"
    endurance: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryLink:
    """A link between two memories.

    ends: the names of the memories. bandwidths: effective, from the first to the second and back, bytes per second;
    with `half` duplex, both directions share the larger. latency_ns: of each copy. copy_engines: 1 (one for both
    directions) or 2. over_gpu_link: whether its copies pass the GPU's own link as well, whose bandwidth they share with
    copies to the host.
    """

    ends: tuple[str, str]
    kind: str
    bandwidths: tuple[int, int]
    latency_ns: int = 0
    duplex: Duplex = Duplex.FULL
    copy_engines: int = 2
    over_gpu_link: bool = False

    @property
    def name(self) -> str:
        """The names of both ends, such as ``host-ssd``."""
        return "-".join(self.ends)


@dataclass(frozen=True, slots=True)
class MetadataCacheSpec:
    """The cache of compression metadata (Buddy Compression, section 3.2).

    size: bytes of each slice.
    slices: number of slices.
    ways: lines of a set.
    line: bytes of a line, which a miss reads.
    entries: memory-entries that a line describes.
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
    """Purpose of compression: more memory, extended by a buddy memory, or only faster transfers to the L2 cache."""

    CAPACITY = "capacity"
    BANDWIDTH_ONLY = "bandwidth-only"


class Granularity(StrEnum):
    """Whether a target ratio applies to an allocation, or to the program (the naive choice of section 3.4)."""

    ALLOCATION = "allocation"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class BuddySpec:
    """Compressed device memory with a buddy memory (Buddy Compression, sections 3 and 4.1).

    link: link to the buddy memory; None for the GPU's own link to the host, which it then shares with copies.
    carve_out: size of the buddy memory, as a multiple of the device memory.
    cache: metadata cache.
    decompression_ns: additional latency of an access to a compressed entry.
    memory_latency_ns: latency of an access to device memory.
    in_flight: requested bytes that the GPU can have outstanding at once.
    overlap: fraction of a kernel's time on the device that its buddy memory traffic may overlap.
    packet_header: bytes that cross the link with each sector of 32 bytes, and as much the other way to ask for it or to
        confirm it.
    mode: purpose of compression.
    granularity: whether target ratios apply to allocations or to the program.
    threshold: largest fraction of an allocation's entries that may overflow.
    mostly_zero: whether allocations that stay almost all zero are compressed 16x.
    """

    link: LinkSpec | None
    carve_out: int
    cache: MetadataCacheSpec
    decompression_ns: int
    memory_latency_ns: int
    in_flight: int
    overlap: float = 0.0
    packet_header: int = 0
    mode: BuddyMode = BuddyMode.CAPACITY
    granularity: Granularity = Granularity.ALLOCATION
    threshold: float = 0.3
    mostly_zero: bool = True


@dataclass(frozen=True, slots=True)
class PowerSpec:
    """Power (mW) and energy per transferred byte (fJ) of the parts of a GPU's board.

    limit_mw: thermal design power of the board.
    idle_mw: constant power of a board with a loaded program but no running kernel.
    arithmetic_mw: additional power of arithmetic at the full rate.
    dram_fj: energy per byte to or from device memory.
    link_fj: energy per byte over the link.
    """

    limit_mw: int
    idle_mw: int
    arithmetic_mw: int
    dram_fj: int
    link_fj: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU.

    memory: device memory in bytes.
    copy_engines: 1 (one for both directions) or 2 (one per direction).
    alignment: every allocation is rounded up to a multiple of this many bytes.
    reserved: bytes of the memory that no program may use.
    context_memory: bytes that the CUDA context takes before any allocator; None if not known. Only PyTorch's allocator
    (pool caching) counts them.
    dram_bandwidth: peak bytes per second of device memory; None if not stated.
    fp32_rate: peak single-precision operations per second without matrix units; None if not stated.
    tensor_rate: peak operations per second of the matrix units on half-precision inputs; None if not stated or missing.
    sustained_tensor_rate: operations per second that large half-precision matrix products sustain on this board; None
    for the architecture's share of `tensor_rate`.
    architecture: name in lower case, such as ``volta``; None if not stated.
    multiprocessors: number of streaming multiprocessors; None if not stated.
    cdma: compressing DMA engine; None for none.
    buddy: compressed memory; None for none.
    power: power of the board's parts; None if not stated.
    reported_as: other names that the driver reports, because boards of several sizes may share a chip's rates.
    instant_codecs: whether codecs take no time on the GPU and its host; only for what-if runs.
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
    context_memory: int | None = None
    sustained_tensor_rate: int | None = None

    @property
    def allocatable(self) -> int:
        """Bytes that PyTorch's allocator can have: without `reserved`, and without the CUDA context if it is known."""
        return self.memory - self.reserved - (self.context_memory or 0)

    def is_called(self, device: str) -> bool:
        """Returns whether a recording on `device` was made on this GPU.

        >>> GpuSpec("Tesla V100 PCIe", 1, reported_as=("Tesla V100-PCIE-32GB",)).is_called("Tesla V100-PCIE-32GB")
        True
        """
        return device == self.name or device in self.reported_as


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """A switch between some GPUs and the host, with the bandwidths (bytes/s) that they share per direction.

    gpus: numbers of the GPUs behind it, from 0. Their copies pass the GPU's own link and the switch. links: names of
    links between the host and other memories that pass it too; their copies to the host share `d2h_bandwidth`. With
    `half` duplex, both directions share the larger of the two bandwidths.
    """

    gpus: tuple[int, ...]
    d2h_bandwidth: int
    h2d_bandwidth: int
    duplex: Duplex = Duplex.FULL
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host.

    pinned_memory: bytes that may be pinned for copies; None for no limit.
    memory: bytes of host memory; None if not stated.
    cores: cores of all processors together; None if not stated.
    processors: intel, amd or arm, by which NCCL chooses latencies across nodes; None (as intel) if not stated.
    codec_bandwidth: uncompressed bytes per second that all cores encode or decode; None if not stated.
    accumulate_bandwidth: bytes per second that one core reads and writes while it sums gradients; None if not stated.
    accumulate_limit: limit of that rate for all cores together, set by their memory; None for no limit.
    memory_bandwidth: bytes per second that the host's memory reads and writes at most; None if not stated.
    pageable_bandwidth: bytes per second of a copy between a GPU and memory that is not pinned; None if not stated.
    launch_ns: time in which a GPU's thread launches one operator; 0 for none.
    waits_for_copies: whether that thread waits wherever a compute stream waits for another stream, as for copies of
        memory that is not pinned; a policy says so.
    """

    pinned_memory: int | None = None
    memory: int | None = None
    cores: int | None = None
    codec_bandwidth: int | None = None
    accumulate_bandwidth: int | None = None
    accumulate_limit: int | None = None
    memory_bandwidth: int | None = None
    pageable_bandwidth: int | None = None
    launch_ns: int = 0
    waits_for_copies: bool = False
    processors: Literal["intel", "amd", "arm"] | None = None

    def accumulating(self, cores: int) -> int | None:
        """Returns the bytes per second that `cores` cores read and write to sum gradients; None if not stated.

        >>> HostSpec(accumulate_bandwidth=10, accumulate_limit=25).accumulating(20)
        25
        """
        if self.accumulate_bandwidth is None:
            return None
        rate = cores * self.accumulate_bandwidth
        return rate if self.accumulate_limit is None else min(rate, self.accumulate_limit)


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """What GPUs exchange data with each other over, in a node or between nodes.

    wire: what a step of a ring passes, which decides its latency. bandwidth: bytes per second that each GPU sends while
    it receives as many, in a ring of all and for large buffers: the bus bandwidth of NCCL's tests. switch_bandwidth:
    bytes of a buffer per second that the switch adds up for all (NVLink SHARP), in an all-reduce; None where it cannot.
    """

    kind: str
    wire: Literal["nvlink", "pcie", "network"]
    bandwidth: int
    switch_bandwidth: int | None = None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Identical GPUs with identical links, the switches that some of them share, their host, and further memories.

    A program for one GPU uses only GPU 0 and its link, without other GPUs and the switches between them. more_memories:
    others than each GPU's and the host's; all GPUs share them. more_links: others than the GPUs' own. peers: what its
    GPUs exchange data over; network: of each GPU to those of other nodes; None if not stated.

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
    more_memories: tuple[MemorySpec, ...] = ()
    more_links: tuple[MemoryLink, ...] = ()
    peers: PeerSpec | None = None
    network: PeerSpec | None = None

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        """Every memory that a program can name: a GPU's own, the host's pinned memory, then others.

        >>> node = NodeSpec("bench", GpuSpec("small", memory=1000), LinkSpec("bus", 10**9, 10**9))
        >>> [memory.name for memory in node.memories]
        ['device', 'host']
        """
        device = MemorySpec(DEVICE, "device memory", self.budget, self.gpu.alignment)
        return (device, MemorySpec(HOST, "pinned memory", self.host.pinned_memory), *self.more_memories)

    @property
    def links(self) -> tuple[MemoryLink, ...]:
        """Every link between memories: a GPU's own first."""
        link = self.link
        rates = link.d2h_bandwidth, link.h2d_bandwidth
        own = MemoryLink((DEVICE, HOST), link.kind, rates, link.latency_ns, link.duplex, self.gpu.copy_engines)
        return (own, *self.more_links)

    def link_between(self, first: str, second: str) -> MemoryLink | None:
        """The link between two memories in either direction, None without one."""
        return next((link for link in self.links if {*link.ends} == {first, second}), None)

    @property
    def next_to_device(self) -> tuple[str, ...]:
        """The memories with a link to the GPU, the host's first."""
        return tuple(end for link in self.links if DEVICE in link.ends for end in link.ends if end != DEVICE)

    @property
    def behind_host(self) -> tuple[str, ...]:
        """The memories with a link to the host and none to the GPU, such as an SSD without GPUDirect Storage."""
        others = (end for link in self.links if HOST in link.ends for end in link.ends if end != HOST)
        return tuple(memory for memory in others if memory != DEVICE and memory not in self.next_to_device)

    def way_to(self, memory: str) -> tuple[str, ...]:
        """The memories that a copy from the GPU passes until it is in one of `next_to_device` or `behind_host`.

        >>> ssd = MemoryLink(("host", "ssd"), "NVMe", (10**9, 10**9))
        >>> gpu, link = GpuSpec("small", memory=1000), LinkSpec("bus", 10**9, 10**9)
        >>> node = NodeSpec("bench", gpu, link, more_memories=(MemorySpec("ssd", "SSD"),), more_links=(ssd,))
        >>> node.way_to("host"), node.way_to("ssd")
        (('device', 'host'), ('device', 'host', 'ssd'))
        """
        return (DEVICE, HOST, memory) if memory in self.behind_host else (DEVICE, memory)

    @property
    def with_own_link(self) -> tuple[str, ...]:
        """The memories that have a link to the GPU of their own, whose copies do not pass the GPU's link."""
        own = (link for link in self.more_links if DEVICE in link.ends and not link.over_gpu_link)
        return tuple(end for link in own for end in link.ends if end != DEVICE)

    @property
    def budget(self) -> int:
        """Bytes of device memory that a program may use."""
        return self.gpu.memory - self.gpu.reserved

    def to_dict(self, *, context: bool) -> dict[str, Any]:
        """Plain values for JSON. context: whether with the context memory, which only PyTorch's allocator counts."""
        values = asdict(self)
        if not context:
            del values["gpu"]["context_memory"]
        if self.gpu.sustained_tensor_rate is None:
            del values["gpu"]["sustained_tensor_rate"]
        for key in ("memory_bandwidth", "pageable_bandwidth", "launch_ns", "waits_for_copies"):
            if not values["host"][key]:
                del values["host"][key]
        for key in ("peers", "network"):
            if not values[key]:
                del values[key]
        return values
