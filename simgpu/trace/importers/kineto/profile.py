"""What is kept of a PyTorch profiler recording: operators, kernels, their launches, memory events, modules, steps.

Lives here: the kept records and reading them from the stream of events. Everything else (Python functions, flow
arrows, runtime calls that launch nothing, names of threads) is dropped as it is read. Does not live here: what the
records mean (`attribution`, `allocations`) or which iteration they belong to (`iteration`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from simgpu.errors import InputError
from simgpu.trace.columns import LARGEST
from simgpu.trace.importers.json_stream import items, members_before
from simgpu.trace.importers.memory_budget import BYTES_PER_EVENT, MemoryBudget
from simgpu.trace.importers.pytorch_operators import samples
from simgpu.trace.importers.quantities import nanoseconds, shown

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
    """Something that ran on a GPU; start and duration in ns. number: its place among the events of the file."""

    number: int
    name: str
    start: int
    duration: int
    device: int
    stream: int
    correlation: int
    external: int

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

    left_out: GPU work that is no kernel, by kind: how many and how long (ns).
    """

    path: Path
    ops: list[Op] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    launches: dict[int, tuple[Thread, int]] = field(default_factory=dict)
    memory: list[MemoryEvent] = field(default_factory=list)
    modules: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    left_out: list[Kernel] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    base_ns: int = 0


_STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_AGAIN = "record it again"
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")

#: Whole microseconds below which no check in nanoseconds is needed, and what 64 bits can hold.
_CLOCK_US = LARGEST // 1000
_WORD = 2**64


def read_profile(path: Path) -> Profile:
    """The kept records of a recording. Raises `InputError` for the first event that cannot be read."""
    head = members_before(path, "traceEvents")
    version = head.get("schemaVersion")
    if version != 1:
        what = (
            f"has schemaVersion {shown(version)}, known is 1" if version else "has no schemaVersion before its events"
        )
        raise InputError.single(path, "schemaVersion", what, "export it with torch.profiler's export_chrome_trace")
    profile = Profile(path)
    profile.devices = _devices(path, head.get("deviceProperties") or [])
    profile.base_ns = base = head.get("baseTimeNanoseconds") or 0
    if type(base) is not int or not -LARGEST <= base <= LARGEST:
        raise InputError.single(path, "baseTimeNanoseconds", f"{shown(base)} is not a time in nanoseconds", _AGAIN)
    budget = MemoryBudget(path, BYTES_PER_EVENT)
    for number, raw in items(path, "traceEvents"):
        if not isinstance(raw, dict):
            continue
        event = _Event(path, number, raw)
        keep = _KEEP.get(event.category)
        if keep is not None and keep(event, profile):
            budget.take()
    return profile


def _devices(path: Path, listed: object) -> dict[int, str]:
    """The names of the GPUs by their number."""
    place = "deviceProperties"
    if not isinstance(listed, list):
        raise InputError.single(path, place, f"{shown(listed)} is not a list of GPUs", _AGAIN)
    found: dict[int, str] = {}
    for properties in listed:
        if isinstance(properties, dict) and isinstance(name := properties.get("name"), str):
            number = properties.get("id", len(found))
            if type(number) is not int:
                raise InputError.single(path, place, f"the id of {name[:60]!r} is {shown(number)}, no number", _AGAIN)
            found[number] = name
    return found


class _Event:
    """One event while it is read; its fields checked, mistakes told with its number and name."""

    __slots__ = ("arguments", "number", "path", "raw")

    def __init__(self, path: Path, number: int, raw: dict[str, Any]) -> None:
        self.path, self.number, self.raw = path, number, raw
        arguments = raw.get("args")
        self.arguments: dict[str, Any] = arguments if isinstance(arguments, dict) else {}

    @property
    def name(self) -> str:
        return sys.intern(str(self.raw.get("name", "")))

    @property
    def thread(self) -> Thread:
        pid, tid = self.raw.get("pid"), self.raw.get("tid")
        for key, value in (("pid", pid), ("tid", tid)):
            if not isinstance(value, int | str | None):
                raise self.wrong(f"its {key} is {shown(value)}, neither a number nor a name")
        return pid, tid

    @property
    def category(self) -> str:
        category = self.raw.get("cat")
        if not isinstance(category, str | None):
            raise self.wrong(f"its cat is {shown(category)}, not a text")
        return category or ""

    def wrong(self, what: str, remedy: str = _AGAIN) -> InputError:
        return InputError.single(self.path, f"event {self.number} ({self.name[:60]})", what, remedy)

    def nanoseconds(self, key: str) -> int:
        """A time in microseconds as whole nanoseconds, without going through a float; finer is rounded."""
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            what = f"has no {key}" if value is None else f"its {key} is {shown(value)}, not a number of microseconds"
            raise self.wrong(what)
        if type(value) is int and -_CLOCK_US < value < _CLOCK_US:
            return value * 1000
        try:
            return int(nanoseconds(value, "microseconds").to_integral_value())
        except ValueError:
            raise self.wrong(f"its {key} is {shown(value)} microseconds, beyond any clock") from None

    def span(self) -> tuple[int, int]:
        start, duration = self.nanoseconds("ts"), self.nanoseconds("dur")
        if duration < 0:
            raise self.wrong(f"its dur is {shown(self.raw['dur'])}, less than nothing")
        return start, duration

    def whole(self, key: str, otherwise: int | None = None) -> int:
        value = self.arguments.get(key, otherwise)
        if type(value) is not int or not -_WORD < value < _WORD:
            what = f"its {key} is {shown(value)}, not a whole number" if key in self.arguments else f"has no {key}"
            raise self.wrong(what, "export it with torch.profiler, which writes it")
        return value


def _keep_op(event: _Event, profile: Profile) -> bool:
    if event.raw.get("ph") != "X":
        return False
    start, duration = event.span()
    name = event.name
    if name.startswith(_STEP):
        profile.steps.append(Span(event.thread, start, start + duration, name))
    profile.ops.append(
        Op(
            event.thread,
            start,
            start + duration,
            name,
            event.whole("External id", 0),
            event.whole("Record function id", 0),
            event.whole("Sequence number", -1),
            event.whole("Fwd thread id", 0) > 0,
            event.raw["cat"] == "user_annotation",
            samples(name, event.arguments.get("Input Dims")),
        )
    )
    return True


def _keep_kernel(event: _Event, profile: Profile) -> bool:
    profile.kernels.append(_kernel(event))
    return True


def _keep_copy(event: _Event, profile: Profile) -> bool:
    """A copy within the device is work like a kernel's; copies over the link and fills are not, and are counted."""
    copy = _kernel(event)
    (profile.kernels if "DtoD" in copy.name else profile.left_out).append(copy)
    return True


def _kernel(event: _Event) -> Kernel:
    start, duration = event.span()
    correlation = event.whole("correlation")
    device, stream = event.whole("device"), event.whole("stream", 0)
    external = event.whole("External id", 0)
    return Kernel(event.number, event.name, start, duration, device, stream, correlation, external)


def _keep_launch(event: _Event, profile: Profile) -> bool:
    if "correlation" not in event.arguments or _LAUNCH.search(event.name) is None:
        return False
    profile.launches[event.whole("correlation")] = (event.thread, event.nanoseconds("ts"))
    return True


def _keep_memory(event: _Event, profile: Profile) -> bool:
    if event.raw.get("name") != "[memory]" or event.whole("Device Type", 0) == 0:
        return False
    at, address, size = event.nanoseconds("ts"), event.whole("Addr"), event.whole("Bytes")
    total, device = event.whole("Total Allocated", -1), event.whole("Device Id", 0)
    profile.memory.append(MemoryEvent(event.number, event.thread, at, address, size, total, device))
    return True


def _keep_module(event: _Event, profile: Profile) -> bool:
    if not event.name.startswith(_MODULE):
        return False
    start, duration = event.span()
    name = sys.intern(event.name.removeprefix(_MODULE))
    profile.modules.append(Span(event.thread, start, start + duration, name))
    return True


#: How events of a category are kept; others are dropped.
_KEEP: dict[str, Callable[[_Event, Profile], bool]] = {
    "cpu_op": _keep_op,
    "user_annotation": _keep_op,
    "kernel": _keep_kernel,
    "gpu_memcpy": _keep_copy,
    "gpu_memset": _keep_copy,
    "cuda_runtime": _keep_launch,
    "cuda_driver": _keep_launch,
    "cpu_instant_event": _keep_memory,
    "python_function": _keep_module,
}
