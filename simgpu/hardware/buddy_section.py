"""The section of a node's file about compressed memory: metadata cache, link to the buddy memory, choice of targets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from simgpu.hardware.sections import LinkSection
from simgpu.hardware.spec import BuddyMode, BuddySpec, Granularity, MetadataCacheSpec
from simgpu.io.schema import FileModel, Share, Size, TimeOrZero


class MetadataCacheSection(FileModel):
    """The cache of what memory-entries are like (Buddy Compression, section 3.2)."""

    size: Size = Field(description="of each slice")
    slices: int = Field(ge=1, description="how many, one for each slice of the L2 cache")
    ways: int = Field(ge=1, description="lines in a set")
    line: Size = Field(description="what a miss reads")
    entries: int = Field(ge=1, description="memory-entries that a line tells of")

    @model_validator(mode="after")
    def _is_made_of_sets(self) -> MetadataCacheSection:
        if self.size % (self.line * self.ways):
            raise ValueError(f"size is no multiple of line times ways, {self.line * self.ways} B: a set has so many")
        if self.entries > 2 * self.line:
            raise ValueError(
                f"entries are more than a line of {self.line} B tells of: 4 bits for each, {2 * self.line}"
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
        description="part of a kernel's time on the device beside which its bytes pass to and from buddy memory",
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
