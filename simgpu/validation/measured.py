"""What was measured on a real device: the machine, and each model's iteration under four ways to manage memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median_low
from typing import Any, NamedTuple

from simgpu.timeline.streams import track_order
from simgpu.trace.model import Trace


class Method(StrEnum):
    """A way to manage memory, as PyTorch runs it; each has a policy as its counterpart."""

    PLAIN = "plain"
    CHECKPOINT = "checkpoint"
    SAVE_ON_CPU = "save_on_cpu"
    ASYNC_OFFLOAD = "async_offload"


@dataclass(frozen=True, slots=True)
class Copies:
    """How fast copies between the device and pinned host memory are.

    d2h, h2d: bytes per second of large copies, one way at a time. both_d2h, both_h2d: the same while the other way is
    busy too. latency_ns: before the first byte of a copy that nobody waits for; blocking_ns: from the call of a copy of
    next to nothing that the host waits for to its return.
    """

    d2h: int
    h2d: int
    both_d2h: int
    both_h2d: int
    latency_ns: int
    blocking_ns: int


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """The machine as it told of itself and as it was measured.

    device: its name; kind: ``cuda`` or ``cpu``. memory: bytes of device memory. alignment: bytes to which the
    framework's allocator rounds up. copy_engines: how many, 2 where it does not tell. launch_ns: host time from one
    kernel launch to the next. versions: of driver, CUDA, PyTorch, Python and simgpu, as far as there are any.
    date: ISO 8601 day. host: its processor. settings: of the framework, where they decide how fast it is: threads,
    TF32. saving_waits: whether the host waits for each copy out of PyTorch's `save_on_cpu`; it does in older versions.
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
    saving_waits: bool = True


class MeasuredKind(StrEnum):
    """What a stream of the device did."""

    KERNEL = "kernel"
    COPY_D2H = "copy_d2h"
    COPY_H2D = "copy_h2d"


class MeasuredSpan(NamedTuple):
    """Something that a stream of the device did in one step; ns from the start of the step's first span.

    stream: ``compute``, ``d2h``, ``h2d`` as in a simulated timeline: by role, not by the device's number. name: of the
    device's kernel or copy. op: the operator behind it, in the words of a trace (``aten::convolution``), empty for a
    copy. call: which call of an operator it belongs to, counted from 0 over the step; -1 for a copy. bytes: copied.
    """

    stream: str
    kind: MeasuredKind
    name: str
    op: str
    call: int
    start_ns: int
    end_ns: int
    bytes: int = 0


#: The stream of each kind, whichever stream of the device it was: of a copy, by its way.
STREAMS = {MeasuredKind.KERNEL: "compute", MeasuredKind.COPY_D2H: "d2h", MeasuredKind.COPY_H2D: "h2d"}


def copy_span(kind: MeasuredKind, name: str, start_ns: int, end_ns: int, size: int) -> MeasuredSpan:
    """A copy over the link.

    >>> copy_span(MeasuredKind.COPY_D2H, "copy", 5, 9, 64).stream
    'd2h'
    """
    return MeasuredSpan(STREAMS[kind], kind, name, "", -1, start_ns, end_ns, size)


def from_first_start(spans: Iterable[MeasuredSpan]) -> tuple[MeasuredSpan, ...]:
    """Spans by their start, then by stream, with time from the first one's start.

    >>> [span.start_ns for span in from_first_start([copy_span(MeasuredKind.COPY_H2D, "copy", 5, 9, 64)])]
    [0]
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, track_order(span.stream), span.end_ns))
    begin = ordered[0].start_ns if ordered else 0
    return tuple(span._replace(start_ns=span.start_ns - begin, end_ns=span.end_ns - begin) for span in ordered)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One model's iteration under one method.

    settings: of the method, in the words of its counterpart's parameters. step_ns: every timed step, after warm-up.
    peak_bytes: the most device memory that the framework's allocator had handed out at once in a step; held_bytes: what
    it had handed out when the step began. d2h_bytes, h2d_bytes: copied to and from the host in one step. spans: what
    the device did in one more step.
    """

    method: Method
    settings: Mapping[str, Any]
    step_ns: tuple[int, ...]
    peak_bytes: int
    held_bytes: int
    d2h_bytes: int
    h2d_bytes: int
    spans: tuple[MeasuredSpan, ...] = ()

    @property
    def median_ns(self) -> int:
        """The step time that counts, nanoseconds."""
        return median_low(self.step_ns)


@dataclass(frozen=True, slots=True)
class Case:
    """One model at one batch size: its trace, and its runs by method, the plain one first.

    absent: methods under which it could not be run, with the reason, such as too little memory. setup: how it was run:
    keywords of the model's factory (``size``), ``optimizer``, ``seed``, and ``warmup``, the steps before those timed.
    """

    model: str
    batch: int
    trace: Trace
    runs: Mapping[Method, MeasuredRun]
    absent: Mapping[Method, str] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Model and batch, as folders and tables call it."""
        return f"{self.model}-b{self.batch}"


@dataclass(frozen=True, slots=True)
class Recording:
    """All cases of one machine; name: of the folder it was read from."""

    name: str
    machine: MeasuredMachine
    cases: tuple[Case, ...]
