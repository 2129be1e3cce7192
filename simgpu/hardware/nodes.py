"""Loads node configurations: YAML files of schema ``simgpu.node/1``, validated and converted to `NodeSpec`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.layering import read_layered
from simgpu.hardware.memories import MemoryLinkSection, MemorySection, mistakes_of_memories
from simgpu.hardware.sections import (
    BuddySection,
    CdmaSection,
    LinkSection,
    NetworkSection,
    PeerSection,
    PowerSection,
    Text,
    nothing_required,
)
from simgpu.hardware.spec import ArchitectureName, Duplex, GpuSpec, HostSpec, NodeSpec, SwitchSpec
from simgpu.io.input_files import read_text
from simgpu.io.schema import (
    Alignment,
    Bandwidth,
    FileModel,
    Rate,
    Size,
    SizeOrZero,
    TimeOrZero,
    Where,
    put,
    validate,
)
from simgpu.io.shipped import find, shipped_folder, shipped_names

SCHEMA = "simgpu.node/1"


def _known_architecture(value: object) -> object:
    known = get_args(ArchitectureName)
    if isinstance(value, str) and value not in known:
        what = f"kernel times cannot be modelled for {value!r}: {did_you_mean(value, known)}"
        raise ValueError(f"{what}; leave it out for other architectures, which can run recorded traces")
    return value


Architecture = Annotated[ArchitectureName, BeforeValidator(_known_architecture)]


class GpuSection(FileModel):
    """The GPU of a node."""

    model_config = ConfigDict(json_schema_extra=nothing_required)

    name: Text = Field(description="the product's name")
    memory: Size = Field(description="device memory")
    reserved: SizeOrZero = Field(default=0, description="part of the memory that no program may use")
    context_memory: Size | None = Field(
        default=None, description="memory that the CUDA context takes; counted with pool: caching; by default not known"
    )
    alignment: Alignment = Field(default=1, description="every allocation is rounded up to a multiple of this")
    copy_engines: Literal[1, 2] = Field(default=2, description="1: one for both directions; 2: one per direction")
    dram_bandwidth: Bandwidth | None = Field(default=None, description="peak bandwidth of the device memory")
    fp32_rate: Rate | None = Field(default=None, description="peak rate of single-precision arithmetic")
    tensor_rate: Rate | None = Field(default=None, description="peak rate of the matrix units on half-precision inputs")
    sustained_tensor_rate: Rate | None = Field(
        default=None,
        description="rate that large half-precision matrix products sustain, such as under the board's power limit; by "
        "default the architecture's share of tensor_rate",
    )
    architecture: Architecture | None = Field(default=None, description="name of the architecture in lower case")
    multiprocessors: int | None = Field(default=None, ge=1, description="number of streaming multiprocessors")
    cdma: CdmaSection | None = Field(default=None, description="compressing DMA engine; by default none")
    buddy: BuddySection | None = Field(default=None, description="compressed memory; by default none")
    power: PowerSection | None = Field(
        default=None, description="power of the board's parts; by default no energy is reported"
    )
    reported_as: tuple[Text, ...] = Field(
        default=(), strict=False, description="other names that the driver reports for this GPU"
    )

    @model_validator(mode="after")
    def _check_reserved(self) -> GpuSection:
        if self.reserved >= self.memory:
            raise ValueError("reserved is not smaller than memory: no memory remains for the program")
        if self.reserved + (self.context_memory or 0) >= self.memory:
            raise ValueError("context_memory takes all memory that is not reserved: no memory remains for the program")
        if self.cdma is not None and self.dram_bandwidth is None:
            raise ValueError("cdma needs dram_bandwidth: the engine reads with the bandwidth that kernels do not use")
        if self.cdma is not None and self.cdma.kernel_bandwidth > (self.dram_bandwidth or 0):
            raise ValueError("cdma.kernel_bandwidth exceeds dram_bandwidth: it must be at most as large")
        if self.buddy is not None and self.dram_bandwidth is None:
            raise ValueError("buddy needs dram_bandwidth: compression reduces the traffic to DRAM")
        if self.sustained_tensor_rate is not None and self.tensor_rate is None:
            raise ValueError("sustained_tensor_rate needs tensor_rate: only matrix units sustain such a rate")
        if self.power is not None and self.fp32_rate is None:
            raise ValueError("power needs fp32_rate: power.arithmetic is the power at that rate")
        if self.architecture == "blackwell" and "RTX" in self.name:
            raise ValueError(
                f"architecture blackwell is compute capability 10, of B200 and GB200; for a {self.name} it is "
                "blackwell-rtx"
            )
        return self

    def spec(self) -> GpuSpec:
        """Returns the section as a `GpuSpec`."""
        values = self.model_dump(exclude={"cdma", "buddy", "power"})
        return GpuSpec(
            **values,
            cdma=None if self.cdma is None else self.cdma.spec(),
            buddy=None if self.buddy is None else self.buddy.spec(),
            power=None if self.power is None else self.power.spec(),
        )


class SwitchSection(FileModel):
    """A switch between the host and some of the node's GPUs, which share its bandwidth."""

    gpus: list[Annotated[int, Field(ge=0)]] = Field(min_length=1, description="numbers of the GPUs behind it, from 0")
    d2h_bandwidth: Bandwidth = Field(description="device-to-host bandwidth of its GPUs together")
    h2d_bandwidth: Bandwidth = Field(description="host-to-device bandwidth of its GPUs together")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")
    links: list[Text] = Field(
        default_factory=list, description="links to the host that also pass it, such as host-ssd for [host, ssd]"
    )

    def spec(self) -> SwitchSpec:
        """Returns the section as a `SwitchSpec`."""
        rates = self.d2h_bandwidth, self.h2d_bandwidth
        return SwitchSpec(tuple(self.gpus), *rates, Duplex(self.duplex), tuple(self.links))


class HostSection(FileModel):
    """The host of a node."""

    pinned_memory: Size | None = Field(
        default=None, description="memory that may be pinned for copies; by default unlimited"
    )
    memory: Size | None = Field(default=None, description="memory of the host; does not limit a run")
    cores: int | None = Field(default=None, ge=1, description="number of cores of all processors together")
    processors: Literal["intel", "amd", "arm"] | None = Field(
        default=None, description="kind of its processors, for collectives across nodes; by default as intel"
    )
    codec_bandwidth: Bandwidth | None = Field(
        default=None, description="uncompressed data per second that all cores together encode or decode"
    )
    accumulate_bandwidth: Bandwidth | None = Field(
        default=None, description="data per second that one core reads and writes while it sums gradients of GPUs"
    )
    accumulate_limit: Bandwidth | None = Field(
        default=None, description="upper limit of accumulate_bandwidth for all cores together; by default none"
    )
    memory_bandwidth: Bandwidth | None = Field(
        default=None, description="data per second that the host's memory reads and writes at most"
    )
    pageable_bandwidth: Bandwidth | None = Field(
        default=None, description="data per second of a copy between a GPU and memory that is not pinned"
    )
    launch: TimeOrZero = Field(
        default=0, description="time in which the thread of a GPU launches one operator; by default none"
    )

    @model_validator(mode="after")
    def _has_what_is_pinned(self) -> HostSection:
        if self.memory is not None and self.pinned_memory is not None and self.pinned_memory > self.memory:
            raise ValueError("pinned_memory exceeds memory: it must be at most as large")
        return self

    def spec(self) -> HostSpec:
        """Returns the section as a `HostSpec`."""
        return HostSpec(**self.model_dump(exclude={"launch"}), launch_ns=self.launch)


def _base_fills_gaps(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema of a node file: `gpu` and `link` are required only in a file without a base."""
    sections: dict[str, type[BaseModel]] = {"gpu": GpuSection, "link": LinkSection}
    needed = {key: {"required": _required(model)} for key, model in sections.items()}
    schema["required"] = [key for key in schema["required"] if key not in sections]
    schema["if"] = {"not": {"required": ["base"]}}
    schema["then"] = {"required": list(sections), "properties": needed}


def _required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


class NodeFile(FileModel):
    """A node configuration as in its file and its bases; `sources` gives the source of each quantity."""

    model_config = ConfigDict(json_schema_extra=_base_fills_gaps)

    schema_: Literal["simgpu.node/1"] = Field(alias="schema")
    name: Text
    description: str = ""
    base: Text | None = Field(
        default=None,
        description="another node, as a shipped name or a path from this file's folder; this file inherits every value "
        "that it does not set, except name and description",
    )
    gpu: GpuSection
    gpus: int = Field(default=1, ge=1, description="number of such GPUs, each with its own link")
    link: LinkSection
    switches: list[SwitchSection] = Field(
        default_factory=list, description="switches between GPUs and host; a GPU is behind at most one"
    )
    host: HostSection = HostSection()
    memories: list[MemorySection] = Field(
        default_factory=list, max_length=50, description="memories besides those of the GPUs and of the host"
    )
    links: list[MemoryLinkSection] = Field(default_factory=list, max_length=200, description="links of these memories")
    peers: PeerSection | None = Field(
        default=None, description="links between the node's GPUs, for collectives; by default not stated"
    )
    network: NetworkSection | None = Field(
        default=None, description="link of each GPU to other nodes, for collectives; by default not stated"
    )
    sources: dict[str, Text] = Field(
        default_factory=dict,
        description="source of the value of each key, such as 'gpu.memory'",
    )

    @model_validator(mode="after")
    def _has_peers(self) -> NodeFile:
        if self.peers is not None and self.gpus == 1:
            raise ValueError("peers are other GPUs of the node, which has one: set gpus, or leave peers out")
        return self

    def spec(self) -> NodeSpec:
        """Returns the file as a `NodeSpec`."""
        return NodeSpec(
            name=self.name,
            gpu=self.gpu.spec(),
            link=self.link.spec(),
            host=self.host.spec(),
            description=self.description,
            gpus=self.gpus,
            switches=tuple(switch.spec() for switch in self.switches),
            more_memories=tuple(memory.spec() for memory in self.memories),
            more_links=tuple(link.spec() for link in self.links),
            peers=None if self.peers is None else self.peers.spec(),
            network=None if self.network is None else self.network.spec(),
        )


def node_names() -> tuple[str, ...]:
    """Returns the names of the nodes that ship with simgpu.

    >>> "2080ti" in node_names()
    True
    """
    return shipped_names("configs")


def gpu_called(device: str) -> GpuSpec | None:
    """Returns the first shipped GPU with that device name and a known architecture; None if there is none.

    >>> gpu_called("NVIDIA H200").name
    'H200 SXM'
    """
    gpus = (load_node(name).gpu for name in _mentioning(device))
    return next((gpu for gpu in gpus if gpu.is_called(device) and gpu.architecture), None)


def nodes_with(gpu: str, count: int) -> list[str]:
    """Returns the names of the shipped nodes that have at least so many GPUs of this name.

    >>> nodes_with("GeForce RTX 4090", 2), nodes_with("GeForce RTX 4090", 9)
    (['rtx4090-x8'], [])
    """
    nodes = map(load_node, _mentioning(gpu))
    return [node.name for node in nodes if node.gpu.name == gpu and node.gpus >= count]


def _mentioning(text: str) -> list[str]:
    """Returns the shipped nodes whose file or base contains a text, without reading them as YAML, which is slow."""
    folder = shipped_folder("configs")
    files = {name: read_text(folder / f"{name}.yaml") for name in node_names()}
    mentioning = {name for name, content in files.items() if text in content}
    while derived := {
        name
        for name, content in files.items()
        if name not in mentioning and any(f"base: {base}" in content for base in mentioning)
    }:
        mentioning |= derived
    return sorted(mentioning)


def load_node(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None, base: Path | None = None
) -> NodeSpec:
    """Loads a node by its shipped name or its file.

    overrides: values by dotted key of the file, quantities as strings with units. They are appended to the node's name,
        because its results differ from those of the node in the file.
    base: folder for relative paths; by default the current one.

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
    """Loads the node file behind `load_node`, merged with its base, with the sources of its values.

    The sources of overridden values are dropped.

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
        problems.append(Problem(*where("base"), "the base cannot be overridden", remedy))
    try:
        node = validate(NodeFile, values, where)
    except InputError as error:
        raise InputError([*error.problems, *problems]) from None
    problems += _switch_problems(node, where)
    passed = [switch.links for switch in node.switches]
    problems += [
        Problem(*where(key), what, remedy)
        for key, what, remedy in mistakes_of_memories(node.memories, node.links, passed)
    ]
    if problems:
        raise InputError(problems)
    sources = {key: source for key, source in node.sources.items() if not _changed(key, changes)}
    return node.model_copy(update={"sources": sources})


def _changed(place: str, changes: Mapping[str, object]) -> bool:
    """Returns whether a dotted key is one of the changed keys, or inside one."""
    return any(place == key or place.startswith((f"{key}.", f"{key}[")) for key in changes)


def _switch_problems(node: NodeFile, where: Where) -> list[Problem]:
    """Returns the problems of switches with GPUs that the node does not have, or that are behind another switch."""
    behind: dict[int, str] = {}
    problems = []
    for number, switch in enumerate(node.switches):
        place = f"switches[{number}].gpus"
        for gpu in switch.gpus:
            if gpu >= node.gpus:
                remedy = f"use numbers below {node.gpus}, or increase gpus"
                problems.append(Problem(*where(place), f"there is no GPU {gpu}", remedy))
            elif gpu in behind:
                what = f"GPU {gpu} is already in {behind[gpu]}"
                problems.append(Problem(*where(place), what, "list every GPU at most once"))
            behind.setdefault(gpu, place)
    return problems
