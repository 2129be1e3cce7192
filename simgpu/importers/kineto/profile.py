"""What is kept of a PyTorch profiler recording: operators, kernels, their launches, memory events, modules, steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: A thread: process and thread number, as the profiler writes them.
Thread = tuple[Any, Any]


class Op(NamedTuple):
    """An operator or an annotation (of a step, by a user) on a CPU thread; start and end in ns.

    external, function: its External id and Record function id, 0 where not recorded. sequence: its place in the
    autograd graph, -1 where none. is_backward: whether it answers a forward operator of another moment.
    samples: the first side of its data argument, None where shapes were not recorded or the operator has none.
    """

    thread: Thread
    start: int
    end: int
    name: str
    external: int
    function: int
    sequence: int
    is_backward: bool
    is_annotation: bool
    samples: int | None


class Kernel(NamedTuple):
    """Something that ran on a GPU; start and duration in ns. number: its place among the events of the file.

    is_kernel: whether it is one, or a copy within the device, which is work like a kernel's. bytes: copied or filled.
    """

    number: int
    name: str
    start: int
    duration: int
    device: int
    stream: int
    correlation: int
    external: int
    is_kernel: bool
    bytes: int = 0

    @property
    def end(self) -> int:
        return self.start + self.duration


class MemoryEvent(NamedTuple):
    """Memory allocated (positive bytes) or freed (negative) on a device at a moment of a CPU thread."""

    number: int
    thread: Thread
    at: int
    address: int
    bytes: int
    total: int
    device: int


class Span(NamedTuple):
    """A named stretch of a CPU thread: a module's forward, or a step of the profiler."""

    thread: Thread
    start: int
    end: int
    name: str


@dataclass(slots=True)
class Profile:
    """All that is kept, in the order of the file. launches: (thread, moment) of the call, by correlation.

    left_out: copies over the link and fills of memory. steps: all that the file marks, whichever of them is kept.
    gpus: those that ran a kernel at any time. before: the last moment before what is kept at which work was launched,
    or ran where its launch is not recorded; None where none.
    """

    path: Path
    ops: list[Op] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    launches: dict[int, tuple[Thread, int]] = field(default_factory=dict)
    memory: list[MemoryEvent] = field(default_factory=list)
    modules: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    left_out: list[Kernel] = field(default_factory=list)
    gpus: set[int] = field(default_factory=set)
    before: int | None = None
    devices: dict[int, str] = field(default_factory=dict)
    base_ns: int = 0
