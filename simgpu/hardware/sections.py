"""Sections of a node file that describe links, engines, power and compressed memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from simgpu.hardware.spec import (
    BuddyMode,
    BuddySpec,
    CdmaSpec,
    Duplex,
    Granularity,
    LinkSpec,
    MetadataCacheSpec,
    PowerSpec,
)
from simgpu.io.schema import Bandwidth, EnergyPerByte, FileModel, Power, Share, Size, TimeOrZero


class MetadataCacheSection(FileModel):
    """The cache of what memory-entries are like (Buddy Compression, section 3.2)."""

    size: Size = Field(description="of each slice")
    slices: int = Field(ge=1, description="how many, one for each slice of the L2 cache")
    ways: int = Field(ge=1, description="lines in a set")
    line: Size = Field(description="what a miss reads")
    entries: int = Field(ge=1, description="memory-entries that a line tells of")

    @model_validator(mode="after")
    def _check_sets(self) -> MetadataCacheSection:
        if self.size % (self.line * self.ways):
            raise ValueError(f"size is no multiple of line times ways, {self.line * self.ways} B: the size of a set")
        if self.entries > 2 * self.line:
            raise ValueError(
                f"entries are more than a line of {self.line} B describes: 4 bits for each, {2 * self.line}"
            )
        return self

    def spec(self) -> MetadataCacheSpec:
        """The description that the rest of simgpu computes with."""
        return MetadataCacheSpec(self.size, self.slices, self.ways, self.line, self.entries)


class BuddySection(FileModel):
    """Compressed device memory with a buddy memory (Buddy Compression, sections 3 and 4.1)."""

    mode: Literal["capacity", "bandwidth-only"] = Field(
        default="capacity",
        description="bandwidth-only: compresses what passes between memory and L2, and saves no room",
    )
    link: LinkSection | None = Field(default=None, description="to the buddy memory; without: the node's own link")
    carve_out: int = Field(ge=1, description="size of the buddy memory, in times the device memory")
    granularity: Literal["allocation", "program"] = Field(
        default="allocation", description="what a target ratio is chosen for; program is the paper's naive choice"
    )
    threshold: Share = Field(default=0.3, description="largest share of an allocation's entries that may overflow")
    mostly_zero: bool = Field(default=True, description="16x for allocations that stay almost all zero")
    metadata_cache: MetadataCacheSection = Field(description="in front of the metadata, which is in device memory")
    decompression: TimeOrZero = Field(description="that an access to a compressed entry takes longer")
    memory_latency: TimeOrZero = Field(description="of an access to device memory")
    in_flight: Size = Field(description="data asked for that the GPU can have under way at once")

    overlap: Share = Field(
        default=0.0,
        description="part of a kernel's time on the device next to which its bytes pass to and from buddy memory",
    )

    def spec(self) -> BuddySpec:
        """The description that the rest of simgpu computes with."""
        return BuddySpec(
            None if self.link is None else self.link.spec(),
            self.carve_out,
            self.metadata_cache.spec(),
            self.decompression,
            self.memory_latency,
            self.in_flight,
            self.overlap,
            BuddyMode(self.mode),
            Granularity(self.granularity),
            self.threshold,
            self.mostly_zero,
        )


Text = Annotated[str, Field(min_length=1)]


def nothing_required(schema: dict[str, Any]) -> None:
    """JSON Schema of a section that a base may complete; what is needed without one, `_base_fills_gaps` adds."""
    del schema["required"]


class LinkSection(FileModel):
    """The link between the GPU and the host."""

    model_config = ConfigDict(json_schema_extra=nothing_required)

    kind: Text = Field(description="for example 'PCIe 3.0 x16'")
    d2h_bandwidth: Bandwidth = Field(description="effective bandwidth from device to host (copy-out)")
    h2d_bandwidth: Bandwidth = Field(description="effective bandwidth from host to device (copy-in)")
    latency: TimeOrZero = Field(default=0, description="time before the first byte of every copy")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")

    def spec(self) -> LinkSpec:
        """The description that the rest of simgpu computes with."""
        return LinkSpec(self.kind, self.d2h_bandwidth, self.h2d_bandwidth, self.latency, Duplex(self.duplex))


class CdmaSection(FileModel):
    """A compressing DMA engine (cDMA, HPCA 2018, section V)."""

    codec: Literal["zvc", "rle", "zlib"] = Field(default="zvc", description="what its units encode by")
    read_bandwidth: Bandwidth = Field(description="uncompressed data it can read or write (COMP_BW)")
    buffer: Size = Field(description="data in flight between memory and engine")
    latency: TimeOrZero = Field(description="from the request of a byte to its arrival at the engine")
    kernel_bandwidth: Bandwidth = Field(description="DRAM bandwidth that kernels take where a trace does not say")
    throttle: Bandwidth | None = Field(
        default=None, description="the bandwidth-aware policy: reads no faster; without: the performance-optimal one"
    )

    def spec(self) -> CdmaSpec:
        """The description that the rest of simgpu computes with."""
        return CdmaSpec(
            self.codec, self.read_bandwidth, self.buffer, self.latency, self.kernel_bandwidth, self.throttle
        )


class PowerSection(FileModel):
    """What the parts of the GPU's board draw, for energy and power of a run."""

    limit: Power = Field(description="thermal design power of the board")
    idle: Power = Field(description="drawn all the time, by a board that holds a program and runs no kernel")
    arithmetic: Power = Field(description="what arithmetic at the full rate adds")
    dram_energy: EnergyPerByte = Field(description="for what moves to or from device memory")
    link_energy: EnergyPerByte = Field(description="for what moves over the link, next to its device memory's")

    @model_validator(mode="after")
    def _check_limit(self) -> PowerSection:
        if self.idle + self.arithmetic > self.limit:
            raise ValueError("idle and arithmetic together are more than limit: the board would slow down, lower one")
        return self

    def spec(self) -> PowerSpec:
        """The description that the rest of simgpu computes with."""
        return PowerSpec(self.limit, self.idle, self.arithmetic, self.dram_energy, self.link_energy)
