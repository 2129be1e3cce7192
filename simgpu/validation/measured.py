"""Measurements of a real device: the machine, and each model's training step under each memory management method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from simgpu.timeline.streams import track_order
from simgpu.trace.model import Trace

if TYPE_CHECKING:
    from simgpu.torch.plan import Plan


class Method(StrEnum):
    """A method of memory management in PyTorch; each has a counterpart in the simulation."""

    PLAIN = "plain"
    CHECKPOINT = "checkpoint"
    SAVE_ON_CPU = "save_on_cpu"
    ASYNC_OFFLOAD = "async_offload"
    PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Copies:
    """Speed of copies between the device and pinned host memory.

    d2h, h2d: bytes per second of large copies, one direction at a time.
    bidirectional_d2h, bidirectional_h2d: the same with both directions busy.
    latency_ns: of an asynchronous copy.
    blocking_ns: duration of a blocking copy of 4 bytes.
    """

    d2h: int
    h2d: int
    bidirectional_d2h: int
    bidirectional_h2d: int
    latency_ns: int
    blocking_ns: int


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """The machine that a recording was made on.

    device: its name.
    kind: ``cuda`` or ``cpu``.
    memory: bytes of device memory.
    alignment: bytes to which the framework's allocator rounds up.
    copy_engines: 2 if the driver does not report it.
    launch_ns: host time from one kernel launch to the next.
    host: its processor.
    date: ISO 8601 day.
    versions: of driver, CUDA, PyTorch, Python and simgpu.
    settings: of the framework that affect speed, such as threads and TF32.
    blocking_save_on_cpu: whether the host waits for each device-to-host copy of PyTorch's `save_on_cpu`, as in older
        versions.
    """

    device: str
    kind: str
    memory: int
    alignment: int
    copy_engines: int
    copies: Copies
    launch_ns: int
    host: str
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    blocking_save_on_cpu: bool = True


class MeasuredKind(StrEnum):
    """The kind of a measured span."""

    KERNEL = "kernel"
    COPY_D2H = "copy_d2h"
    COPY_H2D = "copy_h2d"


class MeasuredSpan(NamedTuple):
    """A kernel or copy of one step; ns from the start of the step's first span.

    stream: ``compute``, ``d2h`` or ``h2d``, by role as in a simulated timeline.
    name: of the device's kernel or copy.
    op: the operator as a trace names it (``aten::convolution``), empty for a copy.
    call: number of the operator call in the step, from 0; -1 for a copy.
    bytes: copied.
    """

    stream: str
    kind: MeasuredKind
    name: str
    op: str
    call: int
    start_ns: int
    end_ns: int
    bytes: int = 0


#: The stream of each kind of span.
STREAMS = {MeasuredKind.KERNEL: "compute", MeasuredKind.COPY_D2H: "d2h", MeasuredKind.COPY_H2D: "h2d"}


def copy_span(kind: MeasuredKind, name: str, start_ns: int, end_ns: int, size: int) -> MeasuredSpan:
    """A copy over the link.

    >>> copy_span(MeasuredKind.COPY_D2H, "copy", 5, 9, 64).stream
    'd2h'
    """
    return MeasuredSpan(STREAMS[kind], kind, name, "", -1, start_ns, end_ns, size)


def from_first_start(spans: Iterable[MeasuredSpan]) -> tuple[MeasuredSpan, ...]:
    """Spans sorted by start, then by stream; times relative to the first start.

    >>> [span.start_ns for span in from_first_start([copy_span(MeasuredKind.COPY_H2D, "copy", 5, 9, 64)])]
    [0]
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, track_order(span.stream), span.end_ns))
    begin = ordered[0].start_ns if ordered else 0
    return tuple(span._replace(start_ns=span.start_ns - begin, end_ns=span.end_ns - begin) for span in ordered)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One model's training step under one method.

    settings: the parameters of the counterpart policy.
    step_ns: every timed step, after warm-up.
    peak_bytes: peak memory allocated by the framework in a step.
    initial_bytes: memory allocated at the start of a step.
    d2h_bytes, h2d_bytes: copied to and from the host in one step.
    spans: kernels and copies of one more, profiled step.
    plan: the plan that the steps ran by; None under the other methods.
    """

    method: Method
    settings: Mapping[str, Any]
    step_ns: tuple[int, ...]
    peak_bytes: int
    initial_bytes: int
    d2h_bytes: int
    h2d_bytes: int
    spans: tuple[MeasuredSpan, ...] = ()
    plan: Plan | None = None

    @property
    def median_ns(self) -> int:
        """The median step time, nanoseconds."""
        return median_low(self.step_ns)


@dataclass(frozen=True, slots=True)
class Case:
    """One model at one batch size: its trace, and its runs by method, the plain one first.

    absent: methods that were not run, with the reason, such as out of memory.
    setup: keyword arguments of the model's factory (``size``), ``optimizer``, ``seed``, and ``warmup``, the number of
        steps before the timed ones.
    """

    model: str
    batch: int
    trace: Trace
    runs: Mapping[Method, MeasuredRun]
    absent: Mapping[Method, str] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Model and batch, as in folders and tables."""
        return f"{self.model}-b{self.batch}"


@dataclass(frozen=True, slots=True)
class Recording:
    """All cases of one machine; `name` is the folder's name."""

    name: str
    machine: MeasuredMachine
    cases: tuple[Case, ...]
