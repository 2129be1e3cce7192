"""Explains a run: its losses and its critical path, printed as tables.

The critical path is followed backwards from the end of the iteration: to the previous work of the same stream, or, if
the stream was waiting, to the work that ended the wait. Only shorter work on the path shortens the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simgpu.analysis.breakdown import Owner
from simgpu.analysis.tables import table_html, table_text
from simgpu.explain.losses import Loss, losses, overhead_parts
from simgpu.hardware.spec import DEVICE
from simgpu.simulation.config import check_kind
from simgpu.simulation.result import Result
from simgpu.timeline.model import SpanKind, Timeline, kind_of
from simgpu.timeline.streams import StreamId, engine_ends, engine_text, is_compute
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd


#: Losses in a printed explanation.
_SHOWN = 10
#: Layers listed by name.
_LAYERS = 4
LOSS_HEADINGS = ("lost", "share", "cause: tensor; engine, decision; reason")
PATH_HEADINGS = ("time", "share", "steps", "stream", "work")


@dataclass(frozen=True, repr=False)
class Explanation:
    """The losses and the critical path of a run's last iteration. Prints and displays as tables.

    losses: lost time of GPU 0 by cause, the largest first. Lost is all time except first runs of kernels.
    path: the steps of the critical path in order of time.

    See `explain_result`.
    """

    result: Result
    losses: tuple[Loss, ...]
    path: tuple[PathStep, ...]

    @property
    def parts(self) -> dict[str, int]:
        """Nanoseconds over the ideal iteration by part; their sum is the difference."""
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
        """Nanoseconds lost by engine, that is, the busy stream; largest first."""
        results: dict[str, int] = {}
        for loss in self.losses:
            results[loss.cause.engine] = results.get(loss.cause.engine, 0) + loss.ns
        return dict(sorted(results.items(), key=lambda item: (-item[1], item[0])))

    @property
    def layers(self) -> dict[str, int]:
        """Nanoseconds lost by the tensor's layer, largest first; without tensors that have no layer."""
        results: dict[str, int] = {}
        for loss in self.losses:
            if loss.layer:
                results[loss.layer] = results.get(loss.layer, 0) + loss.ns
        return dict(sorted(results.items(), key=lambda item: (-item[1], item[0])))

    @property
    def by_layer(self) -> str:
        """One line: time lost by layer, largest first; empty for fewer than two layers."""
        layers = list(self.layers.items())
        text = ", ".join(f"{layer} {format_time(ns)}" for layer, ns in layers[:_LAYERS])
        others = f", {len(layers) - _LAYERS} more" if len(layers) > _LAYERS else ""
        return f"lost by layer: {text}{others}" if len(layers) > 1 else ""

    @property
    def by_engine(self) -> str:
        """One line: time lost by engine; empty if no time was lost."""
        text = ", ".join(f"{engine or 'idle'} {format_time(ns)}" for engine, ns in self.engines.items())
        return f"lost by engine: {text}" if text else ""

    def loss_rows(self, count: int | None = None) -> list[tuple[str, str, str]]:
        """Rows of the table with `LOSS_HEADINGS`: the `count` largest losses (None: all), then one row for the rest."""
        total = sum(loss.ns for loss in self.losses)
        shown = self.losses[:count]
        rows = [(*_amount(loss.ns, total), "; ".join(loss_lines(loss))) for loss in shown]
        others = self.losses[len(shown) :]
        if others:
            rows.append((*_amount(sum(loss.ns for loss in others), total), f"{len(others)} more"))
        return rows

    def path_rows(self) -> list[tuple[str, ...]]:
        """Rows of the table with `PATH_HEADINGS`: the kinds of work on the critical path."""
        total = self.result.iteration_ns
        return [
            (*_amount(ns, total), str(count), stream, _work_text(kind))
            for (stream, kind), (ns, count) in by_kind(self.path).items()
        ]

    def frame(self) -> pd.DataFrame:
        """The losses as a pandas table: ns, owner, tensor, bytes, what, engine, decision, reason, kernel, waits."""
        import pandas as pd

        return pd.DataFrame(map(loss_dict, self.losses), columns=list(_LOSS_COLUMNS))

    def path_frame(self) -> pd.DataFrame:
        """The critical path as a pandas table: start_ns and end_ns (from the run's start), ns, stream, kind, name."""
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
    """Explains the time of a run's last iteration; raises `InputError` if `result` is not a `Result`.

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
    return Explanation(
        result, losses(result), critical_path(result.timeline, blocking=result.node.host.waits_for_copies)
    )


def loss_lines(loss: Loss) -> list[str]:
    """Tensor, decision and reason of a loss, a line each."""
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
    return dict(zip(_LOSS_COLUMNS, (loss.ns, _owner(loss), *text, loss.kernel, loss.waits), strict=True))


def _owner(loss: Loss) -> str:
    """In files: ``copy_d2h`` for time lost to the engine's copies, for example."""
    return SpanKind.COPY.label(loss.copy_engine) if loss.owner is Owner.COPY else loss.owner.name.lower()


def _work_text(label: str) -> str:
    """A kind of work in a table, from its label in the timeline.

    >>> _work_text("copy_d2h"), _work_text("stall_ssd_memory"), _work_text("recompute")
    ('D2H copy', 'waits for ssd memory', 'recompute')
    """
    match kind_of(label):
        case (SpanKind.COPY, engine):
            return f"{engine_text(engine)} copy"
        case (SpanKind.STALL_MEMORY, memory):
            return f"waits for {memory} memory"
        case (SpanKind.STALL_EVENT, _):
            return "waits for another stream"
        case (SpanKind.STALL_ENGINE, _):
            return "waits for the copy engine"
        case (SpanKind.STALL_LAUNCH, _):
            return "launches by the host"
    return label.replace("_", " ")


def _amount(ns: int, total: int) -> tuple[str, str]:
    return format_time(ns), f"{ns / total:.1%}" if total else "-"


@dataclass(frozen=True, slots=True)
class PathStep:
    """A step of the critical path: work on a stream, clipped to the iteration's start; times in ns.

    row: of the timeline, -1 for idle time. resource: the engine of a copy.
    """

    start_ns: int
    end_ns: int
    stream: str
    kind: SpanKind | None
    name: str
    row: int
    resource: str = ""

    @property
    def ns(self) -> int:
        """The step's duration, nanoseconds."""
        return self.end_ns - self.start_ns

    @property
    def label(self) -> str:
        """The kind of work, or ``idle``."""
        return "idle" if self.kind is None else self.kind.label(self.resource)


def critical_path(timeline: Timeline, iteration: int = -1, *, blocking: bool = False) -> tuple[PathStep, ...]:
    """The steps of an iteration's critical path in order of time; they cover it from start to end without a gap.

    Among paths of equal length, ties are resolved by the order of the streams. Before work that waits for its launch
    come the launches since the iteration began; if waits are `blocking`, since the stream last waited for another.

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
            stream = waiter  # copies outside the program (such as page faults) begin at the waiter's request
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
        if kind is SpanKind.STALL_LAUNCH:
            begin = walk.waited(stream, begin) if blocking else start
        steps.append(walk.step(row, max(begin, start), at))
        at = begin
    return tuple(reversed(steps))


class _Walk:
    """The spans of each stream, by their end times."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        lasting = timeline.end_ns > timeline.start_ns
        self.rows = [np.flatnonzero(lasting & (timeline.stream == n)) for n in range(len(timeline.streams))]
        self.ends = [timeline.end_ns[rows] for rows in self.rows]

    def last(self, end: int) -> int:
        """The compute stream that ends an iteration: the first that ends with work, else with a wait, else any."""
        computing = [n for n, name in enumerate(self.timeline.streams) if is_compute(name)]
        at_end = [n for n in computing if self.ending(n, end) is not None]
        working = [n for n in at_end if not SpanKind(int(self.timeline.kind[self.ending(n, end)])).is_stall]
        return next(iter((*working, *at_end, *computing)), 0)

    def ending(self, stream: int, at: int) -> int | None:
        """The span of a stream that ends at time `at`; None if there is none."""
        ends = self.ends[stream]
        index = int(ends.searchsorted(at, side="left"))
        return int(self.rows[stream][index]) if index < len(ends) and ends[index] == at else None

    def before(self, stream: int, at: int) -> int:
        """The end of a stream's last span before time `at`, 0 if there is none."""
        index = int(self.ends[stream].searchsorted(at, side="left")) - 1
        return int(self.ends[stream][index]) if index >= 0 else 0

    def waited(self, stream: int, at: int) -> int:
        """The end of a stream's last wait for another until time `at`, 0 if there is none."""
        rows, ends = self.rows[stream], self.ends[stream]
        waits = (self.timeline.kind[rows] == SpanKind.STALL_EVENT) & (ends <= at)
        return int(ends[waits].max(initial=0))

    def signaller(self, row: int, kind: SpanKind, at: int) -> int | None:
        """The stream that ended a wait; None if the timeline does not show it."""
        if kind is SpanKind.STALL_ENGINE:
            copies = (self._copying(n, at, row) for n in range(len(self.rows)))
            return next((n for n, copying in enumerate(copies) if copying), None)
        cause = int(self.timeline.cause[row])
        return cause if cause >= 0 and self.ending(cause, at) is not None else None

    def holder(self, row: int, at: int) -> int | None:
        """The copy stream that determines the end of a kernel with direct access to host memory; None for others.

        Such a kernel follows a wait that no span ends, and ends together with the copy that it overlaps.
        """
        begin = int(self.timeline.start_ns[row])
        wait = self.ending(int(self.timeline.stream[row]), begin)
        if wait is None or self.timeline.kind[wait] != SpanKind.STALL_EVENT:
            return None
        cause = int(self.timeline.cause[wait])
        ended = cause < 0 or self.ending(cause, begin) is not None
        return None if ended or self.ending(cause, at) is None else cause

    def _copying(self, stream: int, at: int, waiting: int) -> bool:
        """Whether a copy on a stream ended at time `at` that another, in row `waiting`, may have waited for.

        A stream that is named by an engine waits for a copy over the same link, any other for one of its GPU.
        """
        timeline, row = self.timeline, self.ending(stream, at)
        if row is None or timeline.kind[row] != SpanKind.COPY:
            return False
        wanted = engine_ends(StreamId.of(timeline.streams[int(timeline.stream[waiting])]).role) or ()
        used = engine_ends(timeline.resources[int(timeline.resource[row])]) or ()
        same_gpu = timeline.gpu[row] == timeline.gpu[waiting] or DEVICE not in used
        return bool(same_gpu) and (not wanted or {*wanted} == {*used})

    def step(self, row: int, start: int, end: int) -> PathStep:
        timeline = self.timeline
        number = int(timeline.name[row])
        name = timeline.names[number] if number >= 0 else ""
        stream = timeline.streams[int(timeline.stream[row])]
        resource = timeline.resources[int(timeline.resource[row])] if timeline.resource[row] >= 0 else ""
        return PathStep(start, end, stream, SpanKind(int(timeline.kind[row])), name, row, resource)


def by_kind(steps: Sequence[PathStep]) -> dict[tuple[str, str], tuple[int, int]]:
    """Nanoseconds and number of steps by stream and kind of work, longest first."""
    results: dict[tuple[str, str], tuple[int, int]] = {}
    for step in steps:
        ns, count = results.get((step.stream, step.label), (0, 0))
        results[step.stream, step.label] = ns + step.ns, count + 1
    return dict(sorted(results.items(), key=lambda item: (-item[1][0], item[0])))


def signed_time(ns: int) -> str:
    """Formats a time that may be negative."""
    return f"-{format_time(-ns)}" if ns < 0 else format_time(ns)
