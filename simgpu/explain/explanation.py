"""A run explained: its losses and its critical path, as one value that prints and shows as tables.

The path is followed backwards: from what ended the iteration to what its stream did before, and where its stream was
waiting, to what ended the wait. To shorten the iteration, something on the path has to become shorter; everything else
has slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simgpu.analysis.breakdown import Owner
from simgpu.analysis.tables import table_html, table_text
from simgpu.explain.losses import Loss, losses, overhead_parts
from simgpu.simulation.config import check_kind
from simgpu.simulation.result import Result
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import is_compute
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd


#: Rows that a printed explanation has of losses and of steps.
_SHOWN = 10
#: Layers that are named.
_LAYERS = 4
LOSS_HEADINGS = ("lost", "share", "cause: tensor; engine, decision; reason")
PATH_HEADINGS = ("time", "share", "steps", "stream", "work")
#: Kinds of work in a table, where the timeline's own word is not plain enough.
_WORK = {
    SpanKind.COPY_D2H.label: "D2H copy",
    SpanKind.COPY_H2D.label: "H2D copy",
    SpanKind.STALL_EVENT.label: "waits for another stream",
    SpanKind.STALL_ENGINE.label: "waits for the copy engine",
    SpanKind.STALL_DEVICE_MEMORY.label: "waits for device memory",
    SpanKind.STALL_HOST_MEMORY.label: "waits for host memory",
}


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why the last iteration of a run took as long as it did. Prints as tables; in a notebook it shows as tables.

    losses: everything that GPU 0 did besides running kernels for the first time, the largest first. path: the steps of
    the critical path in order of time. See `explain_result`.
    """

    result: Result
    losses: tuple[Loss, ...]
    path: tuple[PathStep, ...]

    @property
    def parts(self) -> dict[str, int]:
        """Nanoseconds over the ideal iteration, in parts that add up."""
        return dict(overhead_parts(self.result, self.losses))

    @property
    def headline(self) -> str:
        """One line: the step time, and its overhead over the ideal one."""
        result, over = self.result, self.result.iteration_ns - self.result.ideal_ns
        parts = ", ".join(f"{signed_time(ns)} {name}" for name, ns in self.parts.items() if ns)
        text = f"{format_time(result.iteration_ns)}, {format_time(abs(over))} {'under' if over < 0 else 'over'} ideal"
        return f"{result.label}: step time {text}" + (f" ({parts})" if parts else "")

    @property
    def engines(self) -> dict[str, int]:
        """Nanoseconds lost by the stream that was busy with it, the most first."""
        results: dict[str, int] = {}
        for loss in self.losses:
            results[loss.cause.engine] = results.get(loss.cause.engine, 0) + loss.ns
        return dict(sorted(results.items(), key=lambda each: (-each[1], each[0])))

    @property
    def layers(self) -> dict[str, int]:
        """Nanoseconds lost by the layer of the tensor, the most first; tensors of no layer are left out."""
        results: dict[str, int] = {}
        for loss in self.losses:
            if loss.layer:
                results[loss.layer] = results.get(loss.layer, 0) + loss.ns
        return dict(sorted(results.items(), key=lambda each: (-each[1], each[0])))

    @property
    def by_layer(self) -> str:
        """One line: time lost by layer, the most first; empty where there are not several."""
        layers = list(self.layers.items())
        text = ", ".join(f"{layer} {format_time(ns)}" for layer, ns in layers[:_LAYERS])
        others = f", {len(layers) - _LAYERS} more" if len(layers) > _LAYERS else ""
        return f"lost by layer: {text}{others}" if len(layers) > 1 else ""

    @property
    def by_engine(self) -> str:
        """One line: time lost by engine; empty where none was."""
        text = ", ".join(f"{engine or 'idle'} {format_time(ns)}" for engine, ns in self.engines.items())
        return f"lost by engine: {text}" if text else ""

    def loss_rows(self, count: int | None = None) -> list[tuple[str, str, str]]:
        """Texts under `LOSS_HEADINGS`, the largest losses first, what is left in one row."""
        total = sum(loss.ns for loss in self.losses)
        shown = self.losses[:count]
        rows = [(*_amount(loss.ns, total), "; ".join(loss_lines(loss))) for loss in shown]
        others = self.losses[len(shown) :]
        if others:
            rows.append((*_amount(sum(loss.ns for loss in others), total), f"{len(others)} more"))
        return rows

    def path_rows(self) -> list[tuple[str, ...]]:
        """Texts under `PATH_HEADINGS`: the kinds of work on the critical path."""
        total = self.result.iteration_ns
        return [
            (*_amount(ns, total), str(count), stream, _WORK.get(kind, kind.replace("_", " ")))
            for (stream, kind), (ns, count) in by_kind(self.path).items()
        ]

    def frame(self) -> pd.DataFrame:
        """The losses as a pandas table: ns, owner, tensor, bytes, what, engine, decision, reason, kernel, waits."""
        import pandas as pd

        return pd.DataFrame(map(loss_dict, self.losses), columns=list(_LOSS_COLUMNS))

    def path_frame(self) -> pd.DataFrame:
        """The critical path as a pandas table: start_ns and end_ns of the run's clock, ns, stream, kind, name."""
        import pandas as pd

        return pd.DataFrame(map(step_dict, self.path), columns=["start_ns", "end_ns", "ns", "stream", "kind", "name"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, all losses and steps."""
        return {
            "policy": self.result.label,
            "iteration_ns": self.result.iteration_ns,
            "ideal_ns": self.result.ideal_ns,
            "lost_ns": self.parts,
            "losses": [loss_dict(loss) for loss in self.losses],
            "critical_path": [step_dict(step) for step in self.path],
        }

    def __repr__(self) -> str:
        tables = [table_text(LOSS_HEADINGS, self.loss_rows(_SHOWN))] if self.losses else []
        tables.append("critical path\n" + table_text(PATH_HEADINGS, self.path_rows()))
        head = "\n".join(filter(None, (self.headline, self.by_engine, self.by_layer)))
        return "\n\n".join((head, *tables))

    def _repr_html_(self) -> str:
        tables = [table_html(LOSS_HEADINGS, self.loss_rows(_SHOWN), self.headline, left=(2,))] if self.losses else []
        return "".join((*tables, table_html(PATH_HEADINGS, self.path_rows(), "critical path", left=(3, 4))))


def explain_result(result: Result) -> Explanation:
    """Why the last iteration of a run took as long as it did; `InputError` for what is no `Result`.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.simulation.run import simulate
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> explanation = explain_result(simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn"))
    >>> explanation.headline
    'vdnn: step time 83 ns, 20 ns over ideal (20 ns stalled)'
    >>> explanation.frame()[["ns", "tensor", "decision"]].head(1).to_dict("records")
    [{'ns': 13, 'tensor': 'x2', 'decision': 'offload during F2 of L2'}]
    """
    check_kind("result", result, Result)
    return Explanation(result, losses(result), critical_path(result.timeline))


def loss_lines(loss: Loss) -> list[str]:
    """Tensor, decision and reason of a loss, as texts."""
    size = format_bytes(loss.tensor_bytes) if loss.tensor_bytes else ""
    tensor = ", ".join(filter(None, (loss.cause.tensor, size, loss.what)))
    decision = ", ".join(filter(None, (loss.cause.engine, loss.cause.decision)))
    return [line for line in (tensor, decision, loss.cause.reason) if line]


def step_dict(step: PathStep) -> dict[str, Any]:
    """A step of the critical path as plain data."""
    times = {"start_ns": step.start_ns, "end_ns": step.end_ns, "ns": step.ns}
    return {**times, "stream": step.stream, "kind": step.label, "name": step.name}


_LOSS_COLUMNS = ("ns", "owner", "tensor", "bytes", "what", "engine", "decision", "reason", "kernel", "waits")


def loss_dict(loss: Loss) -> dict[str, Any]:
    """A loss as plain data."""
    cause = loss.cause
    text = (cause.tensor, loss.tensor_bytes, loss.what, cause.engine, cause.decision, cause.reason)
    return dict(zip(_LOSS_COLUMNS, (loss.ns, _owner(loss.owner), *text, loss.kernel, loss.waits), strict=True))


def _owner(owner: Owner) -> str:
    return owner.name.lower()


def _amount(ns: int, total: int) -> tuple[str, str]:
    return format_time(ns), f"{ns / total:.1%}" if total else "-"


_COPIES = (SpanKind.COPY_D2H, SpanKind.COPY_H2D)
_MEMORY = (SpanKind.STALL_DEVICE_MEMORY, SpanKind.STALL_HOST_MEMORY)


@dataclass(frozen=True, slots=True)
class PathStep:
    """A piece of the critical path, nanoseconds: work on a stream, cut at the iteration's start.

    row: of the timeline, -1 where nothing is known to have been under way.
    """

    start_ns: int
    end_ns: int
    stream: str
    kind: SpanKind | None
    name: str
    row: int

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    @property
    def label(self) -> str:
        """The kind of work in a word."""
        return "idle" if self.kind is None else self.kind.label


def critical_path(timeline: Timeline, iteration: int = -1) -> tuple[PathStep, ...]:
    """The steps of an iteration's critical path in order of time, from its start to its end without a gap.

    Of several equally long paths, it is the one that the streams in order of their names waited for.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.simulation.run import simulate
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn")
    >>> [(step.stream, step.name, step.ns) for step in critical_path(result.timeline)]
    [('d2h', 'x1', 10), ('d2h', 'x2', 20), ('compute', 'F3', 9), ('h2d', 'x2', 20), ('compute', 'B2', 14), ...]
    """
    start, end = timeline.window(iteration)
    walk = _Walk(timeline)
    steps: list[PathStep] = []
    stream, at = walk.last(end), end
    waiter = stream
    while at > start:
        row = walk.ending(stream, at)
        if row is None and waiter != stream and walk.ending(waiter, at) is not None:
            stream = waiter  # bytes that no program moves begin when those who wait for them ask for them
            continue
        if row is None:
            before = max(walk.before(stream, at), start)
            steps.append(PathStep(before, at, timeline.streams[stream], None, "", -1))
            at = before
            continue
        kind = SpanKind(int(timeline.kind[row]))
        if kind.is_stall and (signaller := walk.signaller(row, kind, at)) is not None and signaller != stream:
            waiter, stream = stream, signaller
            continue
        if (holder := walk.holder(row, at)) is not None:
            waiter, stream = stream, holder
            continue
        begin = int(timeline.start_ns[row])
        steps.append(walk.step(row, max(begin, start), at))
        at = begin
    return tuple(reversed(steps))


class _Walk:
    """The spans of each stream by the moments at which they end."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        lasting = timeline.end_ns > timeline.start_ns
        self.rows = [np.flatnonzero(lasting & (timeline.stream == n)) for n in range(len(timeline.streams))]
        self.ends = [timeline.end_ns[rows] for rows in self.rows]

    def last(self, end: int) -> int:
        """The stream with which an iteration ends: the first that computes, with work if there is such a one."""
        computing = [n for n, name in enumerate(self.timeline.streams) if is_compute(name)]
        at_end = [n for n in computing if self.ending(n, end) is not None]
        working = [n for n in at_end if not SpanKind(int(self.timeline.kind[self.ending(n, end)])).is_stall]
        return next(iter((*working, *at_end, *computing)), 0)

    def ending(self, stream: int, at: int) -> int | None:
        """The span of a stream that ends at a moment."""
        place = int(self.ends[stream].searchsorted(at, side="left"))
        result = self.ends[stream]
        return int(self.rows[stream][place]) if place < len(result) and result[place] == at else None

    def before(self, stream: int, at: int) -> int:
        """When the last span of a stream before a moment ended, 0 where there is none."""
        place = int(self.ends[stream].searchsorted(at, side="left")) - 1
        return int(self.ends[stream][place]) if place >= 0 else 0

    def signaller(self, row: int, kind: SpanKind, at: int) -> int | None:
        """The stream that ended a wait; None where the timeline does not show it."""
        if kind is SpanKind.STALL_ENGINE:
            gpu = self.timeline.gpu[row]
            copies = (self._copying(n, at, gpu) for n in range(len(self.rows)))
            return next((n for n, copying in enumerate(copies) if copying), None)
        cause = int(self.timeline.cause[row])
        return cause if cause >= 0 and self.ending(cause, at) is not None else None

    def holder(self, row: int, at: int) -> int | None:
        """Of a kernel that reaches host memory and ends with the last of its bytes, the stream that they come by.

        It runs in parallel to them, after a wait that nothing ends.
        """
        begin = int(self.timeline.start_ns[row])
        wait = self.ending(int(self.timeline.stream[row]), begin)
        if wait is None or self.timeline.kind[wait] != SpanKind.STALL_EVENT:
            return None
        cause = int(self.timeline.cause[wait])
        ended = cause < 0 or self.ending(cause, begin) is not None
        return None if ended or self.ending(cause, at) is None else cause

    def _copying(self, stream: int, at: int, gpu: np.int64) -> bool:
        """Whether a copy of this GPU on a stream ended at a moment."""
        row = self.ending(stream, at)
        return row is not None and self.timeline.kind[row] in _COPIES and self.timeline.gpu[row] == gpu

    def step(self, row: int, start: int, end: int) -> PathStep:
        timeline = self.timeline
        number = int(timeline.name[row])
        name = timeline.names[number] if number >= 0 else ""
        stream = timeline.streams[int(timeline.stream[row])]
        return PathStep(start, end, stream, SpanKind(int(timeline.kind[row])), name, row)


def by_kind(steps: Sequence[PathStep]) -> dict[tuple[str, str], tuple[int, int]]:
    """Nanoseconds and number of steps by stream and kind of work, the longest first."""
    results: dict[tuple[str, str], tuple[int, int]] = {}
    for step in steps:
        ns, count = results.get((step.stream, step.label), (0, 0))
        results[step.stream, step.label] = ns + step.ns, count + 1
    return dict(sorted(results.items(), key=lambda each: (-each[1][0], each[0])))


def signed_time(ns: int) -> str:
    """A time that may be negative."""
    return f"-{format_time(-ns)}" if ns < 0 else format_time(ns)
