"""Node configurations: YAML files of schema ``simgpu.node/1``, checked and turned into `NodeSpec`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.layering import read_layered
from simgpu.hardware.sections import BuddySection, CdmaSection, LinkSection, PowerSection, Text, nothing_required
from simgpu.hardware.spec import ArchitectureName, Duplex, GpuSpec, HostSpec, NodeSpec, SwitchSpec
from simgpu.io.schema import (
    Alignment,
    Bandwidth,
    FileModel,
    Rate,
    Size,
    SizeOrZero,
    Where,
    put,
    validate,
)
from simgpu.io.shipped import find, shipped_names

SCHEMA = "simgpu.node/1"


def _known_architecture(value: object) -> object:
    known = get_args(ArchitectureName)
    if isinstance(value, str) and value not in known:
        what = f"kernel times cannot be modelled for {value!r}: {did_you_mean(value, known)}"
        raise ValueError(f"{what}; leave it out for a GPU of another one, whose node runs recorded traces")
    return value


Architecture = Annotated[ArchitectureName, BeforeValidator(_known_architecture)]


class GpuSection(FileModel):
    """The GPU of a node."""

    model_config = ConfigDict(json_schema_extra=nothing_required)

    name: Text = Field(description="the product's name")
    memory: Size = Field(description="device memory")
    reserved: SizeOrZero = Field(default=0, description="part of the memory that the framework keeps for its context")
    alignment: Alignment = Field(default=1, description="every allocation is rounded up to a multiple of this")
    copy_engines: Literal[1, 2] = Field(default=2, description="1 serves both directions in turn, 2 serve one each")
    dram_bandwidth: Bandwidth | None = Field(default=None, description="peak bandwidth of the device memory")
    fp32_rate: Rate | None = Field(default=None, description="peak rate of single-precision arithmetic")
    tensor_rate: Rate | None = Field(default=None, description="peak rate of the matrix units on half-precision inputs")
    architecture: Architecture | None = Field(default=None, description="the generation's name in lower case")
    multiprocessors: int | None = Field(default=None, ge=1, description="how many streaming multiprocessors it has")
    cdma: CdmaSection | None = Field(default=None, description="its compressing DMA engine; without: it has none")
    buddy: BuddySection | None = Field(default=None, description="its compressed memory; without: it has none")
    power: PowerSection | None = Field(default=None, description="what its parts draw; without: no energy is told")
    reported_as: tuple[Text, ...] = Field(
        default=(), strict=False, description="what its driver calls it, where that is not its name"
    )

    @model_validator(mode="after")
    def _check_reserved(self) -> GpuSection:
        if self.reserved >= self.memory:
            raise ValueError("reserved is not smaller than memory: nothing is left for the program")
        if self.cdma is not None and self.dram_bandwidth is None:
            raise ValueError("cdma needs dram_bandwidth: what kernels leave of it is what the engine can read")
        if self.cdma is not None and self.cdma.kernel_bandwidth > (self.dram_bandwidth or 0):
            raise ValueError("cdma.kernel_bandwidth is more than dram_bandwidth: kernels take a part of it")
        if self.buddy is not None and self.dram_bandwidth is None:
            raise ValueError("buddy needs dram_bandwidth: what passes there is what compression makes less")
        if self.power is not None and self.fp32_rate is None:
            raise ValueError("power needs fp32_rate: power.arithmetic is drawn at that rate")
        return self

    def spec(self) -> GpuSpec:
        """The description that the rest of simgpu computes with."""
        values = self.model_dump(exclude={"cdma", "buddy", "power"})
        return GpuSpec(
            **values,
            cdma=None if self.cdma is None else self.cdma.spec(),
            buddy=None if self.buddy is None else self.buddy.spec(),
            power=None if self.power is None else self.power.spec(),
        )


class SwitchSection(FileModel):
    """A switch that some of the node's GPUs share on their way to the host."""

    gpus: list[Annotated[int, Field(ge=0)]] = Field(min_length=1, description="numbers of the GPUs behind it, from 0")
    d2h_bandwidth: Bandwidth = Field(description="what its GPUs can copy out together")
    h2d_bandwidth: Bandwidth = Field(description="what its GPUs can copy in together")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")


class HostSection(FileModel):
    """The host of a node."""

    pinned_memory: Size | None = Field(
        default=None, description="memory that may be pinned for copies; without: no limit"
    )
    memory: Size | None = Field(default=None, description="memory of the host; does not limit a run")
    cores: int | None = Field(default=None, ge=1, description="cores of all its processors together")
    codec_bandwidth: Bandwidth | None = Field(
        default=None, description="uncompressed data that its cores together encode or decode"
    )
    accumulate_bandwidth: Bandwidth | None = Field(
        default=None, description="data that one core reads and writes while it adds up gradients of several GPUs"
    )
    accumulate_limit: Bandwidth | None = Field(
        default=None, description="what all cores together reach at that; without: as much as their number says"
    )

    @model_validator(mode="after")
    def _has_what_is_pinned(self) -> HostSection:
        if self.memory is not None and self.pinned_memory is not None and self.pinned_memory > self.memory:
            raise ValueError("pinned_memory is more than memory: it is a part of it")
        return self


def _base_fills_gaps(schema: dict[str, Any]) -> None:
    """JSON Schema of a node file: what may be left out in a file with a base must stand in one without."""
    sections: dict[str, type[BaseModel]] = {"gpu": GpuSection, "link": LinkSection}
    needed = {key: {"required": _required(model)} for key, model in sections.items()}
    schema["required"] = [key for key in schema["required"] if key not in sections]
    schema["if"] = {"not": {"required": ["base"]}}
    schema["then"] = {"required": list(sections), "properties": needed}


def _required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


class NodeFile(FileModel):
    """A node configuration as written in its file and its bases; `sources` says where each quantity comes from."""

    model_config = ConfigDict(json_schema_extra=_base_fills_gaps)

    schema_: Literal["simgpu.node/1"] = Field(alias="schema")
    name: Text
    description: str = ""
    base: Text | None = Field(
        default=None,
        description="another node, by its shipped name or by a path from this file's folder, that gives every value "
        "which this file leaves out, except name and description",
    )
    gpu: GpuSection
    gpus: int = Field(default=1, ge=1, description="how many such GPUs there are, each with its own link")
    link: LinkSection
    switches: list[SwitchSection] = Field(
        default_factory=list, description="switches between GPUs and host; a GPU is behind one of them at most"
    )
    host: HostSection = HostSection()
    sources: dict[str, Text] = Field(
        default_factory=dict,
        description="for a key of this file, such as 'gpu.memory': where its value comes from",
    )

    def spec(self) -> NodeSpec:
        """The description that the rest of simgpu computes with."""
        return NodeSpec(
            name=self.name,
            gpu=self.gpu.spec(),
            link=self.link.spec(),
            host=HostSpec(**self.host.model_dump()),
            description=self.description,
            gpus=self.gpus,
            switches=tuple(
                SwitchSpec(tuple(switch.gpus), switch.d2h_bandwidth, switch.h2d_bandwidth, Duplex(switch.duplex))
                for switch in self.switches
            ),
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
    return replace(node, name=f"{node.name}[{listed}]") if listed else node


def load_node_file(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None, base: Path | None = None
) -> NodeFile:
    """The file behind `load_node`, laid over its base, with the sources of its values.

    Sources of overridden values are dropped.

    >>> file = load_node_file("v100")
    >>> file.gpu.memory, "gpu.memory" in file.sources
    (34359738368, True)
    >>> "gpu.memory" in load_node_file("v100", {"gpu.memory": "8 GiB"}).sources
    False
    """
    document = read_layered(find("configs", name_or_path, base), SCHEMA)
    values, changes = copy.deepcopy(dict(document.values)), dict(overrides or {})
    for key, value in changes.items():
        put(values, key, value)

    def where(place: str) -> tuple[str, str]:
        if _changed(place, changes):
            return "override", f"node.{place}"
        return document.where(place)

    problems = document.source_problems()
    if "base" in changes:
        remedy = "choose another node instead, or write a file with another base"
        problems.append(Problem(*where("base"), "a base is laid under a file, not under a change", remedy))
    try:
        node = validate(NodeFile, values, where)
    except InputError as error:
        raise InputError([*error.problems, *problems]) from None
    problems += _switch_problems(node, where)
    if problems:
        raise InputError(problems)
    sources = {key: source for key, source in node.sources.items() if not _changed(key, changes)}
    return node.model_copy(update={"sources": sources})


def _changed(place: str, changes: Mapping[str, object]) -> bool:
    """Whether a place is one of the changed ones, or inside one."""
    return any(place == key or place.startswith((f"{key}.", f"{key}[")) for key in changes)


def _switch_problems(node: NodeFile, where: Where) -> list[Problem]:
    """GPUs behind switches that the node does not have, or has behind another switch already."""
    behind: dict[int, str] = {}
    problems = []
    for number, switch in enumerate(node.switches):
        place = f"switches[{number}].gpus"
        for gpu in switch.gpus:
            if gpu >= node.gpus:
                remedy = f"the node has {node.gpus}, counted from 0: name one of them, or raise gpus"
                problems.append(Problem(*where(place), f"there is no GPU {gpu}", remedy))
            elif gpu in behind:
                what = f"GPU {gpu} is named in {behind[gpu]} already"
                problems.append(Problem(*where(place), what, "name every GPU once at most"))
            behind.setdefault(gpu, place)
    return problems
