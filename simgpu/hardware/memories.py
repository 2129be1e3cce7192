"""Sections of a node file for memories and links besides those of every node, and the mistakes between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from simgpu.errors import did_you_mean
from simgpu.hardware.sections import Text
from simgpu.hardware.spec import DEVICE, HOST, Duplex, MemoryLink, MemorySpec, is_memory
from simgpu.io.schema import Alignment, Bandwidth, FileModel, Size, TimeOrZero


class MemorySection(FileModel):
    """A memory besides each GPU's own and the host's pinned memory; all GPUs share it."""

    name: Text = Field(description="two or more small letters, such as ssd")
    kind: Text = Field(description="for example 'NVMe SSD'")
    capacity: Size | None = Field(default=None, description="what programs may use; by default unlimited")
    alignment: Alignment = Field(default=1, description="every allocation is rounded up to a multiple of this")
    allocator: Literal["counting", "addressed"] = Field(
        default="counting", description="counting: counts bytes; addressed: also finds a place for each block"
    )
    endurance: Size | None = Field(
        default=None, description="bytes that may be written to it before it wears out; by default unlimited"
    )

    def spec(self) -> MemorySpec:
        """Returns the section as a `MemorySpec`."""
        return MemorySpec(self.name, self.kind, self.capacity, self.alignment, self.allocator, self.endurance)


class MemoryLinkSection(FileModel):
    """A link between two memories besides the GPUs' own links to the host."""

    between: Annotated[list[Text], Field(min_length=2, max_length=2)] = Field(description="the names of two memories")
    kind: Text = Field(description="for example 'PCIe 3.0 x4'")
    bandwidth: Bandwidth = Field(description="effective bandwidth from the first memory to the second")
    return_bandwidth: Bandwidth | None = Field(
        default=None, description="effective bandwidth from the second memory to the first; by default the same"
    )
    latency: TimeOrZero = Field(default=0, description="time before the first byte of every copy")
    duplex: Literal["full", "half"] = Field(default="full", description="half: both directions share one capacity")
    copy_engines: Literal[1, 2] = Field(default=2, description="1: one for both directions; 2: one per direction")
    queue_depth: int | None = Field(
        default=None, ge=1, description="requests under way at once, each of which takes latency; by default unlimited"
    )
    request: Size | None = Field(default=None, description="bytes of a request; with queue_depth")
    over_gpu_link: bool = Field(
        default=False, description="whether its copies pass the GPU's link too, as with GPUDirect Storage"
    )

    @model_validator(mode="after")
    def _check_requests(self) -> MemoryLinkSection:
        if (self.queue_depth is None) != (self.request is None):
            raise ValueError("queue_depth and request go together: give both, or neither")
        if self.queue_depth is not None and not self.latency:
            raise ValueError("queue_depth needs latency: the time that a request takes")
        return self

    def spec(self) -> MemoryLink:
        """The section as a `MemoryLink`. What is under way at once limits its bandwidth (Little's law).

        >>> ssd = {"between": ["host", "ssd"], "kind": "NVMe", "bandwidth": "3 GB/s", "latency": "10 us"}
        >>> MemoryLinkSection(**ssd, queue_depth=4, request="4 KiB").spec().bandwidths
        (1638400000, 1638400000)
        """
        first, second = self.between
        rates = self.bandwidth, self.bandwidth if self.return_bandwidth is None else self.return_bandwidth
        if self.queue_depth is not None and self.request is not None:
            most = self.queue_depth * self.request * 10**9 // self.latency
            rates = min(rates[0], most), min(rates[1], most)
        duplex = Duplex(self.duplex)
        return MemoryLink(
            (first, second), self.kind, rates, self.latency, duplex, self.copy_engines, self.over_gpu_link
        )


class Mistake(NamedTuple):
    """A mistake between sections: the key, what is wrong, and the remedy."""

    key: str
    what: str
    remedy: str


def mistakes_of_memories(
    memories: Sequence[MemorySection], links: Sequence[MemoryLinkSection], switches: Sequence[Sequence[str]]
) -> Iterator[Mistake]:
    """Yields every mistake between the sections. switches: for each switch, the names of links that pass it."""
    known = [DEVICE, HOST]
    for number, memory in enumerate(memories):
        key = f"memories[{number}].name"
        if not is_memory(memory.name):
            what = f"{memory.name!r} is not the name of a memory"
            yield Mistake(key, what, "write two or more small letters, such as ssd")
        elif memory.name in known:
            yield Mistake(key, f"there is already a memory {memory.name}", "choose another name")
        known.append(memory.name)
    names: list[str] = []
    for number, link in enumerate(links):
        yield from _mistakes_of_link(f"links[{number}].between", link.between, known, names)
        if link.over_gpu_link and DEVICE not in link.between:
            what = f"the link between {' and '.join(link.between)} does not end at the GPU"
            yield Mistake(f"links[{number}].over_gpu_link", what, "leave it out, or give between: [device, ssd]")
        names.append(link.spec().name)
    linked = {end for link in links for end in link.between}
    for number, memory in enumerate(memories):
        if memory.name not in linked:
            what = f"no link reaches memory {memory.name}"
            yield Mistake(f"memories[{number}].name", what, "add one under links, such as between: [host, ssd]")
    yield from _mistakes_of_switches(switches, names)


def _mistakes_of_link(key: str, ends: Sequence[str], known: Sequence[str], names: Sequence[str]) -> Iterator[Mistake]:
    first, second = ends
    for number, end in enumerate(ends):
        if end not in known:
            yield Mistake(f"{key}[{number}]", f"there is no memory {end!r}", did_you_mean(end, known))
    if first == second:
        yield Mistake(key, f"the link is between {first} and itself", "name two memories")
    elif {first, second} == {DEVICE, HOST}:
        yield Mistake(key, "this is the link of each GPU to the host", "describe it under link")
    elif f"{first}-{second}" in names or f"{second}-{first}" in names:
        yield Mistake(key, f"there is already a link between {first} and {second}", "describe each link once")


def _mistakes_of_switches(switches: Sequence[Sequence[str]], names: Sequence[str]) -> Iterator[Mistake]:
    behind: dict[str, str] = {}
    for number, switch in enumerate(switches):
        key = f"switches[{number}].links"
        for name in switch:
            if name not in names:
                yield Mistake(key, f"there is no link {name!r} under links", did_you_mean(name, names))
            elif HOST not in name.split("-"):
                remedy = f"list only links that end at {HOST}"
                yield Mistake(key, f"link {name} does not end at the host, so it passes no switch to the host", remedy)
            elif name in behind:
                yield Mistake(key, f"link {name} is already in {behind[name]}", "list every link at most once")
            behind.setdefault(name, key)
