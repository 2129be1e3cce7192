"""Sections of a node's file that stand for themselves: links and engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from simgpu.hardware.spec import CdmaSpec, Duplex, LinkSpec, PowerSpec
from simgpu.io.schema import Bandwidth, EnergyPerByte, FileModel, Power, Size, TimeOrZero

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
    link_energy: EnergyPerByte = Field(description="for what moves over the link, beside its device memory's")

    @model_validator(mode="after")
    def _keeps_the_limit(self) -> PowerSection:
        if self.idle + self.arithmetic > self.limit:
            raise ValueError("idle and arithmetic together are more than limit: the board would slow down, lower one")
        return self

    def spec(self) -> PowerSpec:
        """The description that the rest of simgpu computes with."""
        return PowerSpec(self.limit, self.idle, self.arithmetic, self.dram_energy, self.link_energy)
