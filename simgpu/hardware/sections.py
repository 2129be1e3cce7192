"""Sections of a node file that describe links, engines, power and compressed memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import (
    BuddyMode,
    BuddySpec,
    Duplex,
    Granularity,
    LinkSpec,
    MetadataCacheSpec,
    PeerSpec,
    PowerSpec,
)
from simgpu.io.schema import Bandwidth, EnergyPerByte, FileModel, Power, Share, Size, SizeOrZero, TimeOrZero


class MetadataCacheSection(FileModel):
    """The cache of compression metadata (Buddy Compression, section 3.2)."""

    size: Size = Field(description="size of each slice")
    slices: int = Field(ge=1, description="number of slices, one per slice of the L2 cache")
    ways: int = Field(ge=1, description="lines in a set")
    line: Size = Field(description="line size, which a miss reads")
    entries: int = Field(ge=1, description="memory-entries that a line describes")

    @model_validator(mode="after")
    def _check_sets(self) -> MetadataCacheSection:
        if self.size % (self.line * self.ways):
            raise ValueError(f"size is not a multiple of {self.line * self.ways} B: a set is line times ways")
        if self.entries > 2 * self.line:
            raise ValueError(
                f"entries exceed the {2 * self.line} that a line of {self.line} B describes: each takes 4 bits"
            )
        return self

    def spec(self) -> MetadataCacheSpec:
        """Returns the section as a `MetadataCacheSpec`."""
        return MetadataCacheSpec(self.size, self.slices, self.ways, self.line, self.entries)


class BuddySection(FileModel):
    """Compressed device memory with a buddy memory (Buddy Compression, sections 3 and 4.1)."""

    mode: Literal["capacity", "bandwidth-only"] = Field(
        default="capacity",
        description="bandwidth-only: compresses transfers between memory and L2, without saving capacity",
    )
    link: LinkSection | None = Field(
        default=None, description="link to the buddy memory; by default the node's own link"
    )
    carve_out: int = Field(ge=1, description="size of the buddy memory, as a multiple of the device memory")
    granularity: Literal["allocation", "program"] = Field(
        default="allocation", description="one target ratio per allocation, or per program (the paper's naive choice)"
    )
    threshold: Share = Field(default=0.3, description="largest fraction of an allocation's entries that may overflow")
    mostly_zero: bool = Field(default=True, description="16x for allocations that stay almost all zero")
    metadata_cache: MetadataCacheSection = Field(description="cache of the metadata, which is in device memory")
    decompression: TimeOrZero = Field(description="additional latency of an access to a compressed entry")
    memory_latency: TimeOrZero = Field(description="latency of an access to device memory")
    in_flight: Size = Field(description="largest amount of requested data that the GPU can have outstanding")

    overlap: Share = Field(
        default=0.0,
        description="fraction of a kernel's time on the device that its buddy memory traffic may overlap",
    )
    packet_header: SizeOrZero = Field(
        default=0, description="bytes that cross the link with each sector of 32 B, and as much the other way"
    )

    def spec(self) -> BuddySpec:
        """Returns the section as a `BuddySpec`."""
        return BuddySpec(
            None if self.link is None else self.link.spec(),
            self.carve_out,
            self.metadata_cache.spec(),
            self.decompression,
            self.memory_latency,
            self.in_flight,
            self.overlap,
            self.packet_header,
            BuddyMode(self.mode),
            Granularity(self.granularity),
            self.threshold,
            self.mostly_zero,
        )


Text = Annotated[str, Field(min_length=1)]


def nothing_required(schema: dict[str, Any]) -> None:
    """Removes required keys from a section's JSON Schema, as a base may set them; `_base_fills_gaps` adds the rest."""
    del schema["required"]


class LinkSection(FileModel):
    """The link between the GPU and the host."""

    model_config = ConfigDict(json_schema_extra=nothing_required)

    kind: Text = Field(description="for example 'PCIe 3.0 x16'")
    d2h_bandwidth: Bandwidth = Field(description="effective device-to-host bandwidth")
    h2d_bandwidth: Bandwidth = Field(description="effective host-to-device bandwidth")
    latency: TimeOrZero = Field(default=0, description="time before the first byte of every copy")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")

    def spec(self) -> LinkSpec:
        """Returns the section as a `LinkSpec`."""
        return LinkSpec(self.kind, self.d2h_bandwidth, self.h2d_bandwidth, self.latency, Duplex(self.duplex))


class _ExchangeSection(FileModel):
    kind: Text = Field(description="for example 'NVLink 4 with NVSwitch', or 'InfiniBand NDR' between nodes")
    bandwidth: Bandwidth = Field(
        description="data that each GPU sends while it receives as much, in a ring of all and for large buffers: the "
        "bus bandwidth of NCCL's tests"
    )

    def spec(self) -> PeerSpec:
        """Returns the section as a `PeerSpec`."""
        return PeerSpec(**self.model_dump())


class NetworkSection(_ExchangeSection):
    """What each GPU exchanges data with those of other nodes over."""

    wire: Literal["network"] = Field(description="decides the latency of a step by NCCL's own table")


class PeerSection(_ExchangeSection):
    """What the GPUs of a node exchange data with each other over."""

    wire: Literal["nvlink", "pcie"] = Field(description="decides the latency of a step by NCCL's own table")
    switch_bandwidth: Bandwidth | None = Field(
        default=None,
        description="data of an all-reduce's buffer that the switch adds up (NVLink SHARP): the algorithm bandwidth of "
        "NCCL's tests; by default it cannot",
    )


class CdmaSection(FileModel):
    """A compressing DMA engine (cDMA, HPCA 2018, section V)."""

    codec: Literal["zvc", "rle", "zlib"] = Field(default="zvc", description="codec of its units")
    read_bandwidth: Bandwidth = Field(description="uncompressed data per second it can read or write (COMP_BW)")
    buffer: Size = Field(description="data in flight between memory and engine")
    latency: TimeOrZero = Field(description="time from the request of a byte to its arrival at the engine")
    kernel_bandwidth: Bandwidth = Field(description="DRAM bandwidth of kernels for which the trace has none")
    throttle: Bandwidth | None = Field(
        default=None,
        description="read limit of the bandwidth-aware policy; by default none (the performance-optimal policy)",
    )
    nominal_link: Bandwidth | None = Field(
        default=None,
        description="link bandwidth for which the read limits are stated; on a slower link they are lower",
    )

    def spec(self) -> CdmaSpec:
        """Returns the section as a `CdmaSpec`."""
        return CdmaSpec(
            self.codec,
            self.read_bandwidth,
            self.buffer,
            self.latency,
            self.kernel_bandwidth,
            self.throttle,
            self.nominal_link,
        )


class PowerSection(FileModel):
    """Power of the parts of the GPU's board, for energy and power of a run."""

    limit: Power = Field(description="thermal design power of the board")
    idle: Power = Field(description="constant power of a board with a loaded program but no running kernel")
    arithmetic: Power = Field(description="additional power of arithmetic at the full rate")
    dram_energy: EnergyPerByte = Field(description="energy per byte to or from device memory")
    link_energy: EnergyPerByte = Field(description="energy per byte over the link, in addition to dram_energy")

    @model_validator(mode="after")
    def _check_limit(self) -> PowerSection:
        if self.idle + self.arithmetic > self.limit:
            raise ValueError("idle plus arithmetic exceeds limit, so the board would throttle: lower one of them")
        return self

    def spec(self) -> PowerSpec:
        """Returns the section as a `PowerSpec`."""
        return PowerSpec(self.limit, self.idle, self.arithmetic, self.dram_energy, self.link_energy)
