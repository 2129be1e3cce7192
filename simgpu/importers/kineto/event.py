"""One event of a profile while it is read: its fields checked, mistakes told with its number and name."""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.kineto.profile import Kernel, MemoryEvent, Op, Span, Thread
from simgpu.importers.pytorch_operators import samples
from simgpu.importers.quantities import nanoseconds, shown
from simgpu.trace.columns import LARGEST

AGAIN = "record it again"

#: What the names of the profiler's steps begin with.
STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")

#: Whole microseconds below which no check in nanoseconds is needed, and what 64 bits can hold.
_CLOCK_US = LARGEST // 1000
_WORD = 2**64


class Event:
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

    @property
    def is_op(self) -> bool:
        """Whether it is an operator or an annotation, with begin and end."""
        return self.category in ("cpu_op", "user_annotation") and self.raw.get("ph") == "X"

    def wrong(self, what: str, remedy: str = AGAIN) -> InputError:
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

    def op(self) -> Op:
        """An operator or an annotation."""
        start, duration = self.span()
        name = self.name
        return Op(
            self.thread,
            start,
            start + duration,
            name,
            self.whole("External id", 0),
            self.whole("Record function id", 0),
            self.whole("Sequence number", -1),
            self.whole("Fwd thread id", 0) > 0,
            self.raw["cat"] == "user_annotation",
            samples(name, self.arguments.get("Input Dims")),
        )

    def step(self) -> Span | None:
        """The step of the profiler that an annotation marks, if it does."""
        if not self.name.startswith(STEP):
            return None
        start, duration = self.span()
        return Span(self.thread, start, start + duration, self.name)

    def kernel(self) -> Kernel:
        """Something that ran on a GPU."""
        start, duration = self.span()
        correlation = self.whole("correlation")
        device, stream = self.whole("device"), self.whole("stream", 0)
        external = self.whole("External id", 0)
        is_kernel = self.category == "kernel" or "DtoD" in self.name
        size = self.whole("bytes", 0)
        return Kernel(self.number, self.name, start, duration, device, stream, correlation, external, is_kernel, size)

    def launch(self) -> tuple[int, tuple[Thread, int]] | None:
        """The correlation, thread and moment of a call that starts work on a GPU; None for another call."""
        if "correlation" not in self.arguments or _LAUNCH.search(self.name) is None:
            return None
        return self.whole("correlation"), (self.thread, self.nanoseconds("ts"))

    def memory(self) -> MemoryEvent | None:
        """What came or went on a GPU; None for another instant."""
        if self.raw.get("name") != "[memory]" or self.whole("Device Type", 0) == 0:
            return None
        at, address, size = self.nanoseconds("ts"), self.whole("Addr"), self.whole("Bytes")
        total, device = self.whole("Total Allocated", -1), self.whole("Device Id", 0)
        return MemoryEvent(self.number, self.thread, at, address, size, total, device)

    def module(self) -> Span | None:
        """A module's forward; None for another function."""
        if not self.name.startswith(_MODULE):
            return None
        start, duration = self.span()
        return Span(self.thread, start, start + duration, sys.intern(self.name.removeprefix(_MODULE)))
