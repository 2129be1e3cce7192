"""Streams the records of a PyTorch profile: all of them, or only those of one step.

Memory use is that of one step, for any file size. A step contains the operators, annotations and memory events that
begin in it; the modules that run at any time in it; the calls in it; and the GPU work launched in it or, if the launch
was not recorded, started in it. Everything else (Python functions, flow arrows, other runtime calls, thread names) is
dropped while reading.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from simgpu.errors import InputError
from simgpu.importers.json_stream import MemoryBudget, Piece, items, members_before
from simgpu.importers.pytorch_operators import samples
from simgpu.importers.quantities import nanoseconds, shown
from simgpu.trace.columns import LARGEST

#: Measured peak, as counted by Python: 585 bytes per event for a VGG-13 iteration on an H100 (a test checks this).
EVENTS = Piece(
    "events",
    600,
    "record a single iteration (schedule=torch.profiler.schedule(..., active=1)), or mark iterations with the "
    "profiler's step(), so that one is taken",
)

AGAIN = "record it again"

#: Prefix of the names of the profiler's steps.
STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")

#: Limits: whole microseconds below which no check in nanoseconds is needed, and the range of 64 bits.
_CLOCK_US = LARGEST // 1000
_WORD = 2**64

#: A thread: process and thread ids from the profile.
Thread = tuple[Any, Any]


class Op(NamedTuple):
    """An operator or an annotation (of a step, or by the user) on a CPU thread.

    start, end: ns.
    external, function: External id and Record function id; 0 if not recorded.
    sequence: sequence number in the autograd graph; -1 if there is none.
    is_backward: whether it is the backward of an earlier forward operator.
    samples: first dimension of its data argument; None if it has none, or if shapes were not recorded.
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


class GpuWork(NamedTuple):
    """A kernel, copy or fill on a GPU.

    number: number of its event in the file.
    start, duration: ns.
    is_kernel: whether it is a kernel, or a copy within the device, which counts as one.
    bytes: bytes copied or filled.
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
    """Memory allocated (positive bytes) or freed (negative bytes) on a device.

    number: number of its event in the file.
    thread, at: CPU thread, and time in ns.
    total: bytes allocated after the event; -1 if not recorded.
    """

    number: int
    thread: Thread
    at: int
    address: int
    bytes: int
    total: int
    device: int


class Span(NamedTuple):
    """A named time interval of a CPU thread, in ns: a module's forward, or a step of the profiler."""

    thread: Thread
    start: int
    end: int
    name: str


@dataclass(slots=True)
class Profile:
    """The retained records, in file order.

    launches: (thread, time in ns) of the launching call, by correlation id.
    steps: all steps that the file marks, not only the retained one.
    left_out: copies over the link and memory fills.
    gpus: GPUs that ran a kernel at any time in the file.
    before: last launch of GPU work (or its start, if the launch is not recorded) before the retained step, ns; or None.
    devices: names of the GPUs by number.
    base_ns: offset of the profile's clock, ns since 1970.
    """

    path: Path
    ops: list[Op] = field(default_factory=list)
    kernels: list[GpuWork] = field(default_factory=list)
    launches: dict[int, tuple[Thread, int]] = field(default_factory=dict)
    memory: list[MemoryEvent] = field(default_factory=list)
    modules: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    left_out: list[GpuWork] = field(default_factory=list)
    gpus: set[int] = field(default_factory=set)
    before: int | None = None
    devices: dict[int, str] = field(default_factory=dict)
    base_ns: int = 0


class Event:
    """One event of the file; error messages contain its number and name."""

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
            raise self.wrong(f"its cat is {shown(category)}, not a string")
        return category or ""

    @property
    def is_op(self) -> bool:
        """Whether it is an operator or an annotation, with start and end."""
        return self.category in ("cpu_op", "user_annotation") and self.raw.get("ph") == "X"

    def wrong(self, what: str, remedy: str = AGAIN) -> InputError:
        return InputError.single(self.path, f"event {self.number} ({self.name[:60]})", what, remedy)

    def nanoseconds(self, key: str) -> int:
        """Converts a time in microseconds to integer ns, rounded, without using a float."""
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            what = f"has no {key}" if value is None else f"its {key} is {shown(value)}, not a number of microseconds"
            raise self.wrong(what)
        if type(value) is int and -_CLOCK_US < value < _CLOCK_US:
            return value * 1000
        try:
            return int(nanoseconds(value, "microseconds").to_integral_value())
        except ValueError:
            raise self.wrong(f"its {key} is {shown(value)} microseconds, out of range") from None

    def times(self) -> tuple[int, int]:
        """Start and duration, ns."""
        start, duration = self.nanoseconds("ts"), self.nanoseconds("dur")
        if duration < 0:
            raise self.wrong(f"its dur is {shown(self.raw['dur'])}, which is negative")
        return start, duration

    def _named_span(self, prefix: str, name: str) -> Span | None:
        if not self.name.startswith(prefix):
            return None
        start, duration = self.times()
        return Span(self.thread, start, start + duration, name)

    def integer(self, key: str, otherwise: int | None = None) -> int:
        value = self.arguments.get(key, otherwise)
        if type(value) is not int or not -_WORD < value < _WORD:
            what = f"its {key} is {shown(value)}, not a whole number" if key in self.arguments else f"has no {key}"
            raise self.wrong(what, "export the profile again with torch.profiler")
        return value

    def op(self) -> Op:
        """An operator or an annotation."""
        start, duration = self.times()
        name = self.name
        return Op(
            self.thread,
            start,
            start + duration,
            name,
            self.integer("External id", 0),
            self.integer("Record function id", 0),
            self.integer("Sequence number", -1),
            self.integer("Fwd thread id", 0) > 0,
            self.raw["cat"] == "user_annotation",
            samples(name, self.arguments.get("Input Dims")),
        )

    def step(self) -> Span | None:
        """The profiler step that an annotation marks; None if it marks no step."""
        return self._named_span(STEP, self.name)

    def kernel(self) -> GpuWork:
        """A kernel, copy or fill on a GPU."""
        start, duration = self.times()
        correlation = self.integer("correlation")
        device, stream = self.integer("device"), self.integer("stream", 0)
        external = self.integer("External id", 0)
        is_kernel = self.category == "kernel" or "DtoD" in self.name
        size = self.integer("bytes", 0)
        return GpuWork(self.number, self.name, start, duration, device, stream, correlation, external, is_kernel, size)

    def launch(self) -> tuple[int, tuple[Thread, int]] | None:
        """Correlation id, thread and time (ns) of a call that launches GPU work; None for another call."""
        if "correlation" not in self.arguments or _LAUNCH.search(self.name) is None:
            return None
        return self.integer("correlation"), (self.thread, self.nanoseconds("ts"))

    def memory(self) -> MemoryEvent | None:
        """An allocation or free on a GPU; None for another instant event."""
        if self.raw.get("name") != "[memory]" or self.integer("Device Type", 0) == 0:
            return None
        at, address, size = self.nanoseconds("ts"), self.integer("Addr"), self.integer("Bytes")
        total, device = self.integer("Total Allocated", -1), self.integer("Device Id", 0)
        return MemoryEvent(self.number, self.thread, at, address, size, total, device)

    def module(self) -> Span | None:
        """A module's forward; None for another Python function."""
        return self._named_span(_MODULE, sys.intern(self.name.removeprefix(_MODULE)))


def read_profile(path: Path, step: Span | None = None) -> Profile:
    """Reads one step of a recording, by default all of it. Raises `InputError` for the first invalid event."""
    profile = _begun(path)
    keeper = _Keeper(profile, step)
    for number, raw in items(path, "traceEvents"):
        if isinstance(raw, dict):
            keeper.take(Event(path, number, raw))
    keeper.finish()
    return profile


def _begun(path: Path) -> Profile:
    """A profile without events, from the members before them."""
    head = members_before(path, "traceEvents")
    version = head.get("schemaVersion")
    if "schemaVersion" not in head:
        what = "has no schemaVersion before its events, which reading it as a stream requires"
        remedy = "put it first, for example with jq '{schemaVersion} + .', or export it again with torch.profiler"
        raise InputError.single(path, "schemaVersion", what, remedy)
    if version != 1:
        what = f"has schemaVersion {shown(version)}; supported: 1"
        raise InputError.single(path, "schemaVersion", what, "export it with torch.profiler's export_chrome_trace")
    base: Any = head.get("baseTimeNanoseconds") or 0
    if type(base) is not int or not -LARGEST <= base <= LARGEST:
        raise InputError.single(path, "baseTimeNanoseconds", f"{shown(base)} is not a time in nanoseconds", AGAIN)
    return Profile(path, devices=_devices(path, head.get("deviceProperties") or []), base_ns=base)


def _devices(path: Path, listed: object) -> dict[int, str]:
    """The names of the GPUs by number."""
    place = "deviceProperties"
    if not isinstance(listed, list):
        raise InputError.single(path, place, f"{shown(listed)} is not a list of GPUs", AGAIN)
    result: dict[int, str] = {}
    for properties in listed:
        if isinstance(properties, dict) and isinstance(name := properties.get("name"), str):
            number = properties.get("id", len(result))
            if type(number) is not int:
                raise InputError.single(path, place, f"the id of {name[:60]!r} is {shown(number)}, not a number", AGAIN)
            result[number] = name
    return result


class _Keeper:
    """Collects the events of a step, in any order.

    GPU work that precedes its launching call in the file waits for that call; the two are usually close together.
    """

    def __init__(self, profile: Profile, step: Span | None) -> None:
        self.profile = profile
        self._begin: float = -inf if step is None else step.start
        self._end: float = inf if step is None else step.end
        self._budget = MemoryBudget(profile.path, EVENTS)
        self._launched_outside_step = _Numbers()
        self._waiting: dict[int, list[GpuWork]] = {}

    def take(self, event: Event) -> None:
        """Store the next event of the file if it belongs to the step."""
        match event.category:
            case "cpu_op" | "user_annotation" if event.is_op:
                self._op(event)
            case "kernel" | "gpu_memcpy" | "gpu_memset":
                self._work(event)
            case "cuda_runtime" | "cuda_driver":
                self._launch(event)
            case "cpu_instant_event":
                self._memory(event)
            case "python_function":
                self._module(event)

    def finish(self) -> None:
        """After the last event: assign GPU work without a recorded launch to a step by its own start."""
        for kernels in self._waiting.values():
            for kernel in kernels:
                self._note(kernel.start)
                if self._contains(kernel.start):
                    self._keep_work(kernel)

    def _contains(self, moment: int) -> bool:
        return self._begin <= moment < self._end

    def _op(self, event: Event) -> None:
        if (step := event.step()) is not None:
            self.profile.steps.append(step)
        if self._contains(event.nanoseconds("ts")):
            self.profile.ops.append(event.op())
            self._budget.take()

    def _work(self, event: Event) -> None:
        kernel = event.kernel()
        if kernel.is_kernel:
            self.profile.gpus.add(kernel.device)
        number = kernel.correlation
        if number in self._launched_outside_step:
            return
        if number in self.profile.launches:
            self._keep_work(kernel)
        else:
            self._waiting.setdefault(number, []).append(kernel)
        self._budget.take()

    def _keep_work(self, kernel: GpuWork) -> None:
        (self.profile.kernels if kernel.is_kernel else self.profile.left_out).append(kernel)

    def _launch(self, event: Event) -> None:
        launch = event.launch()
        if launch is None:
            return
        number, (_, moment) = launch
        self._note(moment)
        waiting = self._waiting.pop(number, [])
        if self._contains(moment) or number in self.profile.launches:
            self.profile.launches[number] = launch[1]
            self._budget.take()
            for kernel in waiting:
                self._keep_work(kernel)
        else:
            self._launched_outside_step.add(number)
            self._budget.release(len(waiting))

    def _memory(self, event: Event) -> None:
        memory = event.memory()
        if memory is not None and self._contains(memory.at):
            self.profile.memory.append(memory)
            self._budget.take()

    def _module(self, event: Event) -> None:
        module = event.module()
        if module is not None and module.start < self._end and self._begin <= module.end:
            self.profile.modules.append(module)
            self._budget.take()

    def _note(self, moment: int) -> None:
        latest = self.profile.before
        if moment < self._begin and (latest is None or latest < moment):
            self.profile.before = moment


class _Numbers:
    """A set of mostly consecutive integers, one bit each."""

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, number: int) -> None:
        page, bit = divmod(number, 1024)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit

    def __contains__(self, number: int) -> bool:
        page, bit = divmod(number, 1024)
        return bool(self._pages.get(page, 0) >> bit & 1)
