"""Reading a profile as a stream: the whole of it, or only what belongs to one of its steps.

So a file of any size takes the memory of one step. What belongs to a step, from its begin to its end: operators,
annotations and memory events by their begin; modules that run at any moment of it; calls by their moment; GPU work
by the moment of the call that launched it, or, where that is not recorded, its own. Everything else (Python functions,
flow arrows, runtime calls that launch nothing, names of threads) is dropped as it is read.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.json_stream import items, members_before
from simgpu.importers.kineto.event import AGAIN, Event
from simgpu.importers.kineto.profile import Kernel, Profile, Span
from simgpu.importers.memory_budget import MemoryBudget, Piece
from simgpu.importers.quantities import shown
from simgpu.trace.columns import LARGEST

#: Measured on a VGG-13 iteration on an H100: 585 bytes at the peak of Python's own count (tests hold it to that).
EVENTS = Piece(
    "events",
    600,
    "record a single iteration (schedule=torch.profiler.schedule(..., active=1)), or mark iterations with the "
    "profiler's step(), so that one is taken",
)


def read_profile(path: Path, step: Span | None = None) -> Profile:
    """What a recording holds of a step, or of all time. Raises `InputError` for the first event that cannot be read."""
    profile = _begun(path)
    keeper = _Keeper(profile, step)
    for number, raw in items(path, "traceEvents"):
        if isinstance(raw, dict):
            keeper.take(Event(path, number, raw))
    keeper.finish()
    return profile


def _begun(path: Path) -> Profile:
    """A profile without events: what stands before them."""
    head = members_before(path, "traceEvents")
    version = head.get("schemaVersion")
    if "schemaVersion" not in head:
        what = "has no schemaVersion before its events, where a file that is read as a stream needs it"
        remedy = "put it first, for example with jq '{schemaVersion} + .', or export it again with torch.profiler"
        raise InputError.single(path, "schemaVersion", what, remedy)
    if version != 1:
        what = f"has schemaVersion {shown(version)}, known is 1"
        raise InputError.single(path, "schemaVersion", what, "export it with torch.profiler's export_chrome_trace")
    base: Any = head.get("baseTimeNanoseconds") or 0
    if type(base) is not int or not -LARGEST <= base <= LARGEST:
        raise InputError.single(path, "baseTimeNanoseconds", f"{shown(base)} is not a time in nanoseconds", AGAIN)
    return Profile(path, devices=_devices(path, head.get("deviceProperties") or []), base_ns=base)


def _devices(path: Path, listed: object) -> dict[int, str]:
    """The names of the GPUs by their number."""
    place = "deviceProperties"
    if not isinstance(listed, list):
        raise InputError.single(path, place, f"{shown(listed)} is not a list of GPUs", AGAIN)
    found: dict[int, str] = {}
    for properties in listed:
        if isinstance(properties, dict) and isinstance(name := properties.get("name"), str):
            number = properties.get("id", len(found))
            if type(number) is not int:
                raise InputError.single(path, place, f"the id of {name[:60]!r} is {shown(number)}, no number", AGAIN)
            found[number] = name
    return found


class _Keeper:
    """Keeps of the events, in whichever order they come, those that belong to a step.

    Work on a GPU whose call has not come yet waits for it; a profile has the two side by side.
    """

    def __init__(self, profile: Profile, step: Span | None) -> None:
        self.profile = profile
        self._begin: float = -inf if step is None else step.start
        self._end: float = inf if step is None else step.end
        self._budget = MemoryBudget(profile.path, EVENTS)
        self._launched_elsewhere = _Numbers()
        self._waiting: dict[int, list[Kernel]] = {}

    def take(self, event: Event) -> None:
        """Keep the next event of the file, if it belongs to the step."""
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
        """Nothing more comes: work that still waits has no recorded call and goes by its own begin."""
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
        if number in self._launched_elsewhere:
            return
        if number in self.profile.launches:
            self._keep_work(kernel)
        else:
            self._waiting.setdefault(number, []).append(kernel)
        self._budget.take()

    def _keep_work(self, kernel: Kernel) -> None:
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
            self._launched_elsewhere.add(number)
            self._budget.give_back(len(waiting))

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
    """A set of whole numbers most of which follow one another: a bit each."""

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, number: int) -> None:
        page, bit = divmod(number, 1024)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit

    def __contains__(self, number: int) -> bool:
        page, bit = divmod(number, 1024)
        return bool(self._pages.get(page, 0) >> bit & 1)
