"""Node configurations: YAML files of schema ``simgpu.node/1``, checked and turned into `NodeSpec`.

Lives here: the model of the file and its reading. Does not live here: the description that the rest of simgpu
computes with (`simgpu.hardware.spec`), or YAML and unit checks in general.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import Duplex, GpuSpec, HostSpec, LinkSpec, NodeSpec
from simgpu.shipped import find, shipped_names
from simgpu.validation import Alignment, Bandwidth, FileModel, Rate, Size, SizeOrZero, TimeOrZero, put, validate
from simgpu.yamlfile import YamlMapping, read_yaml_mapping

SCHEMA = "simgpu.node/1"
Text = Annotated[str, Field(min_length=1)]


class GpuSection(FileModel):
    """The GPU of a node."""

    name: Text = Field(description="the product's name")
    memory: Size = Field(description="device memory")
    reserved: SizeOrZero = Field(default=0, description="part of the memory that the framework keeps for its context")
    alignment: Alignment = Field(default=1, description="every allocation is rounded up to a multiple of this")
    copy_engines: Literal[1, 2] = Field(default=2, description="1 serves both directions in turn, 2 serve one each")
    dram_bandwidth: Bandwidth | None = Field(default=None, description="peak bandwidth of the device memory")
    fp32_rate: Rate | None = Field(default=None, description="peak rate of single-precision arithmetic")
    tensor_rate: Rate | None = Field(default=None, description="peak rate of the matrix units on half-precision inputs")
    architecture: Text | None = Field(default=None, description="the generation's name in lower case, such as volta")
    multiprocessors: int | None = Field(default=None, ge=1, description="how many streaming multiprocessors it has")

    @model_validator(mode="after")
    def _leaves_memory(self) -> GpuSection:
        if self.reserved >= self.memory:
            raise ValueError("reserved is not smaller than memory: nothing is left for the program")
        return self


class LinkSection(FileModel):
    """The link between the GPU and the host."""

    kind: Text = Field(description="for example 'PCIe 3.0 x16'")
    d2h_bandwidth: Bandwidth = Field(description="effective bandwidth from device to host (copy-out)")
    h2d_bandwidth: Bandwidth = Field(description="effective bandwidth from host to device (copy-in)")
    latency: TimeOrZero = Field(default=0, description="time before the first byte of every copy")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")


class HostSection(FileModel):
    """The host of a node."""

    pinned_memory: Size | None = Field(
        default=None, description="memory that may be pinned for copies; without: no limit"
    )


class NodeFile(FileModel):
    """A node configuration as written in its file; `sources` says where each quantity comes from."""

    schema_: Literal["simgpu.node/1"] = Field(alias="schema")
    name: Text
    description: str = ""
    gpu: GpuSection
    link: LinkSection
    host: HostSection = HostSection()
    sources: dict[str, Text] = Field(
        default_factory=dict,
        description="for a key of this file, such as 'gpu.memory': where its value comes from",
    )

    def spec(self) -> NodeSpec:
        """The description that the rest of simgpu computes with."""
        gpu, link = self.gpu, self.link
        return NodeSpec(
            name=self.name,
            gpu=GpuSpec(
                name=gpu.name,
                memory=gpu.memory,
                copy_engines=gpu.copy_engines,
                alignment=gpu.alignment,
                reserved=gpu.reserved,
                dram_bandwidth=gpu.dram_bandwidth,
                fp32_rate=gpu.fp32_rate,
                tensor_rate=gpu.tensor_rate,
                architecture=gpu.architecture,
                multiprocessors=gpu.multiprocessors,
            ),
            link=LinkSpec(
                kind=link.kind,
                d2h_bandwidth=link.d2h_bandwidth,
                h2d_bandwidth=link.h2d_bandwidth,
                latency_ns=link.latency,
                duplex=Duplex(link.duplex),
            ),
            host=HostSpec(pinned_memory=self.host.pinned_memory),
            description=self.description,
        )


def node_names() -> tuple[str, ...]:
    """Names of the nodes that ship with simgpu.

    >>> "2080ti" in node_names()
    True
    """
    return shipped_names("configs")


def load_node(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None, base: Path | None = None
) -> NodeSpec:
    """A node by its shipped name or its file.

    overrides: values by dotted key of the file, quantities as texts with units; a node changed so carries the
    changes in its name, because its results are no longer those of the node in the file.
    base: folder that a relative path starts at, the current one if not given.

    Raises `InputError` with every problem of the file and of the overrides.

    >>> node = load_node("2080ti", {"gpu.memory": "8 GiB"})
    >>> node.name, node.budget
    ('2080ti[gpu.memory=8 GiB]', 8589934592)
    """
    changes = dict(overrides or {})
    node = load_node_file(name_or_path, changes, base).spec()
    if not changes:
        return node
    listed = ", ".join(f"{key}={value}" for key, value in changes.items() if key != "name")
    return _renamed(node, f"{node.name}[{listed}]") if listed else node


def load_node_file(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None, base: Path | None = None
) -> NodeFile:
    """The file behind `load_node`, with the sources of its values. Sources of overridden values are dropped.

    >>> file = load_node_file("v100")
    >>> file.gpu.memory, "gpu.memory" in file.sources
    (34359738368, True)
    >>> "gpu.memory" in load_node_file("v100", {"gpu.memory": "8 GiB"}).sources
    False
    """
    path = find("configs", name_or_path, base)
    document = read_yaml_mapping(path, SCHEMA)
    values, changes = copy.deepcopy(dict(document.values)), dict(overrides or {})
    for key, value in changes.items():
        put(values, key, value)

    def where(place: str) -> tuple[str, str]:
        if any(place == key or place.startswith(f"{key}.") for key in changes):
            return "override", f"node.{place}"
        return document.file, document.place(place)

    problems = _source_problems(document)
    try:
        node = validate(NodeFile, values, where)
    except InputError as error:
        raise InputError([*error.problems, *problems]) from None
    if problems:
        raise InputError(problems)
    return node.model_copy(update={"sources": {k: v for k, v in node.sources.items() if k not in changes}})


def _source_problems(document: YamlMapping) -> list[Problem]:
    """Sources that speak of keys which the file does not have."""
    sources = document.values.get("sources")
    unknown = [key for key in sources if key not in document.lines] if isinstance(sources, dict) else []
    remedy = "name a key of this file, such as 'gpu.memory'"
    return [
        Problem(document.file, document.place(f"sources.{key}"), f"{key!r} is not in this file", remedy)
        for key in unknown
    ]


def _renamed(node: NodeSpec, name: str) -> NodeSpec:
    return NodeSpec(name, node.gpu, node.link, node.host, node.description)
