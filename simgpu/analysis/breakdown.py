"""Where the time of one iteration went, in nanoseconds that add up to the iteration exactly.

Each instant has one owner: running compute first, then recomputation, then a codec on a compute stream; only
when no compute stream is busy does the instant belong to what the first stalled compute stream waits for,
followed through the streams in between to a copy, to a memory, to the host, to a launch or to a collective. With
several GPUs it is asked of one of them; what its streams wait for may be on another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.timeline.model import Column, SpanKind, Timeline
from simgpu.timeline.streams import StreamId, engine_ends

#: Names of `Breakdown.parts`, in the order in which they are shown; the first four are those of HOME's figure 7.
PARTS = ("computation", "overlap", "swapping", "recomputation", "codec", "launches", "other")
#: Those that are always shown; the others where some run has any of it.
USUAL_PARTS = PARTS[:4]


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Nanoseconds of copies on one engine: overlapped with compute (hidden), and not (exposed)."""

    hidden: int
    exposed: int

    @property
    def busy(self) -> int:
        """All nanoseconds in which the engine copied something."""
        return self.hidden + self.exposed


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of one iteration by cause; the causes add up to `total`, the length of the iteration.

    compute: running kernels for the first time; overlap: how much of it was overlapped with a copy in either direction.
    codec: encoding or decoding on a compute stream. stalled_copies: by copy engine, waiting for its copies.
    stalled_memory: waiting for memory, of whichever kind. stalled_host: waiting for a codec or a kernel on the host.
    stalled_other: waiting for something that is none of these; 0 with one compute stream of one GPU. copies: by copy
    engine, how much copy time was hidden. Engines are those of `Timeline.engines`. stalled_launch: waiting for the host
    to launch the next work. stalled_collectives: waiting for what GPUs exchange.
    """

    compute: int
    recompute: int
    codec: int
    stalled_copies: Mapping[str, int]
    stalled_memory: int
    stalled_host: int
    stalled_other: int
    copies: Mapping[str, CopyTime]
    overlap: int
    stalled_launch: int = 0
    stalled_collectives: int = 0

    @property
    def stalled(self) -> int:
        """All nanoseconds in which no compute stream ran anything."""
        waited_for_copies = sum(self.stalled_copies.values())
        others = self.stalled_host + self.stalled_launch + self.stalled_collectives + self.stalled_other
        return waited_for_copies + self.stalled_memory + others

    @property
    def total(self) -> int:
        """Length of the iteration."""
        return self.compute + self.recompute + self.codec + self.stalled

    @property
    def parts(self) -> dict[str, int]:
        """Nanoseconds by the names of `PARTS`, which add up to `total` (HOME, section 4.3, figure 7).

        computation: a kernel runs for the first time, without any copy. overlap: the same, during a copy.
        swapping: no compute stream runs anything, and the first that is stalled waits for a copy, for memory or for the
        host. recomputation: nothing but kernels that run again. codec: nothing but encoding or decoding. launches:
        no compute stream runs anything, and the first that is stalled waits for the host to launch its next work.
        other: no compute stream runs anything, for another reason: it waits for a collective, or for another GPU.
        """
        return {
            "computation": self.compute - self.overlap,
            "overlap": self.overlap,
            "swapping": sum(self.stalled_copies.values()) + self.stalled_memory + self.stalled_host,
            "recomputation": self.recompute,
            "codec": self.codec,
            "launches": self.stalled_launch,
            "other": self.stalled_collectives + self.stalled_other,
        }


class Owner(IntEnum):
    """To whom an instant belongs; those up to CODEC are the ones with a compute stream busy."""

    COMPUTE = 0
    RECOMPUTE = 1
    CODEC = 2
    COPY = 3
    MEMORY = 4
    HOST = 5
    OTHER = 6
    LAUNCH = 7
    COLLECTIVE = 8


@dataclass(frozen=True, slots=True)
class Instants:
    """An iteration cut into intervals at every span boundary, and to whom each belongs.

    lengths: ns. owner: an `Owner` each. engine: for `Owner.COPY` the position in `engines`, else -1. row: of the span
    that owns the interval, -1 where there is none: what a compute stream runs, or what the chain of waits ends in.
    waiting: row of the wait that the first stalled compute stream stands in, -1 where a compute stream is busy. rows:
    (streams, intervals) of the spans that are under way, else -1.
    """

    lengths: Column
    owner: Column
    engine: Column
    row: Column
    waiting: Column
    rows: NDArray[np.int64]
    engines: tuple[str, ...]


_Instants = NDArray[np.int64]
_CODEC = (SpanKind.ENCODE, SpanKind.DECODE)
#: Owners of an interval with work, by its kind: compute, recompute, encode, decode.
_BUSY = (Owner.COMPUTE, Owner.RECOMPUTE, Owner.CODEC, Owner.CODEC)
_KERNELS = (SpanKind.COMPUTE, SpanKind.RECOMPUTE)
_NOTHING = -1


def shown_parts(runs: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """The parts to show for several runs: the usual ones, and any part that is not zero in some run.

    >>> shown_parts([{"computation": 7, "codec": 0}, {"computation": 7, "codec": 2}])
    ('computation', 'overlap', 'swapping', 'recomputation', 'codec')
    """
    had = {name for parts in runs for name, time_ns in parts.items() if time_ns}
    return tuple(name for name in PARTS if name in USUAL_PARTS or name in had)


def breakdown(timeline: Timeline, iteration: int = -1, gpu: int = 0) -> Breakdown:
    """Attribute every nanosecond of an iteration (the last one by default) as it passes on one GPU.

    Spans are cut at the iteration's window; all intervals are half-open. `IndexError` when there is no such
    iteration; `ValueError` for a stream that does two things at once.

    >>> from simgpu.timeline.model import SpanKind, Timeline
    >>> import numpy as np
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> timeline = Timeline(("compute", "d2h"), ("conv1", "x", "conv2"), gpu=column(0, 0, 0, 0),
    ...     stream=column(0, 1, 0, 0), name=column(0, 1, 1, 2),
    ...     start_ns=column(0, 0, 5, 8), end_ns=column(5, 8, 8, 10),
    ...     kind=column(SpanKind.COMPUTE, SpanKind.COPY, SpanKind.STALL_EVENT, SpanKind.COMPUTE),
    ...     bytes=column(0, 64, 0, 0), cause=column(-1, -1, 1, -1), iteration=column(0, 0, 0, 0),
    ...     resource=column(-1, 0, -1, -1), resources=("d2h",), memories=(), iteration_ends_ns=(10,))
    >>> parts = breakdown(timeline)
    >>> parts.compute, parts.stalled_copies["d2h"], parts.total, parts.copies["d2h"]
    (7, 3, 10, CopyTime(hidden=5, exposed=3))
    >>> parts.parts
    {'computation': 2, 'overlap': 5, 'swapping': 3, 'recomputation': 0, 'codec': 0, 'launches': 0, 'other': 0}
    """
    start, end = timeline.window(iteration)
    sweep = _Sweep(timeline, start, end, gpu)
    instants = _attributed(sweep)
    owner = instants.owner
    computing = owner <= Owner.CODEC
    of, by_engine = sweep.durations(owner, len(Owner)), sweep.durations(instants.engine, len(sweep.engines) + 1)
    result = Breakdown(
        compute=of[Owner.COMPUTE],
        recompute=of[Owner.RECOMPUTE],
        codec=of[Owner.CODEC],
        stalled_copies=dict(zip(sweep.engines, by_engine[:-1], strict=True)),
        stalled_memory=of[Owner.MEMORY],
        stalled_host=of[Owner.HOST],
        stalled_other=of[Owner.OTHER],
        copies={name: _copy_time(sweep.copying(at), sweep, computing) for at, name in enumerate(sweep.engines)},
        overlap=sweep.duration((owner == Owner.COMPUTE) & (sweep.kinds[sweep.own] == SpanKind.COPY).any(axis=0)),
        stalled_launch=of[Owner.LAUNCH],
        stalled_collectives=of[Owner.COLLECTIVE],
    )
    if result.total != end - start:
        raise AssertionError(f"breakdown of iteration {iteration} gives {result.total} ns, not {end - start} ns")
    return result


def attributed(timeline: Timeline, iteration: int = -1, gpu: int = 0) -> Instants:
    """The instants that `breakdown` adds up, each with the span that it belongs to. Errors as there."""
    sweep = _Sweep(timeline, *timeline.window(iteration), gpu)
    return Instants(sweep.lengths, *_attributed(sweep), sweep.rows, sweep.engines)


class _Sweep:
    """The window cut at every span boundary, and what each stream does in each of the resulting intervals.

    lengths: (intervals,) ns. spans: (streams, intervals) the place in `row`, `cause` and `resource` of the span that is
    under way, -1 where a stream does nothing; these columns hold -1 at their end. kinds, on: (streams, intervals) the
    kind of that span, and the position of the engine that it copies on, else -1. own: rows of the GPU's streams;
    compute: those of its compute streams in order; host, collectives: whether a stream is one, of any GPU. engines:
    their names. named: (streams,) the position of the engine that a stream is named by, -1 for others.
    """

    def __init__(self, timeline: Timeline, start: int, end: int, gpu: int) -> None:
        starts, ends = timeline.start_ns, timeline.end_ns
        inside = np.flatnonzero((ends > start) & (starts < end) & (ends > starts))
        starts, ends = np.maximum(starts[inside], start), np.minimum(ends[inside], end)
        bounds = _distinct(starts, ends, np.array([start, end], dtype=np.int64))
        self.lengths = np.diff(bounds)
        of_span, columns = timeline.stream[inside], (timeline.kind, timeline.cause, timeline.resource)
        self.row = np.append(inside, _NOTHING)
        kind, self.cause, resource = (np.append(column[inside], _NOTHING) for column in columns)
        self.spans = np.full((len(timeline.streams), len(self.lengths)), _NOTHING, dtype=np.int64)
        for stream, name in enumerate(timeline.streams):
            mine = np.flatnonzero(of_span == stream)
            if len(mine):
                last, active = _active(name, starts[mine], ends[mine], bounds[:-1])
                self.spans[stream] = np.where(active, mine[last], _NOTHING)
        self.engines = timeline.engines
        place = {name: at for at, name in enumerate(self.engines)}
        engine_of = np.array([*(place.get(name, _NOTHING) for name in timeline.resources), _NOTHING], dtype=np.int64)
        self.kinds, self.on = kind[self.spans], engine_of[resource][self.spans]
        streams = [StreamId.of(name) for name in timeline.streams]
        self.own = [i for i, stream in enumerate(streams) if stream.gpu == gpu]
        self.compute = [i for i in self.own if streams[i].role == "compute"]
        self.host, self.collectives = (
            np.array([stream.role == role for stream in streams], dtype=np.bool_) for role in ("host", "collectives")
        )
        self.named = np.array([place.get(s.role, _NOTHING) for s in streams], dtype=np.int64)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(streams, intervals) the timeline's row of the span that is under way, -1 where a stream does nothing."""
        return self.row[self.spans]

    def duration(self, where: NDArray[np.bool_]) -> int:
        """Nanoseconds of the intervals chosen by a mask."""
        return int(self.lengths[where].sum())

    def durations(self, places: Column, count: int) -> list[int]:
        """Nanoseconds of all intervals by a number below `count` that each has; -1 is that of the last."""
        result = np.zeros(count, dtype=np.int64)
        np.add.at(result, places, self.lengths)
        return [*map(int, result)]

    def link(self, engine: int) -> int:
        """A number that engines of one link share: the position of the first of them."""
        src, dst = engine_ends(self.engines[engine]) or ("", "")
        return min(at for at, name in enumerate(self.engines) if engine_ends(name) in ((src, dst), (dst, src)))

    def copying(self, engine: int) -> NDArray[np.bool_]:
        """In which intervals a stream of the GPU copies on an engine."""
        result: NDArray[np.bool_] = (self.on[self.own] == engine).any(axis=0)
        return result


def _distinct(*times: Column) -> Column:
    """All times, ascending, each once: faster than `numpy.unique`."""
    ordered = np.sort(np.concatenate(times))
    result: Column = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return result


def _active(name: str, starts: Column, ends: Column, at: Column) -> tuple[Column, NDArray[np.bool_]]:
    """For each time: the position of the last span begun and whether it still runs; spans sorted by start."""
    clashes = starts[1:] < ends[:-1]
    if clashes.any():
        raise ValueError(f"stream {name!r} does two things at once at {int(starts[1:][clashes][0])} ns")
    row = np.searchsorted(starts, at, side="right") - 1
    return row, (row >= 0) & (at < ends[row])


class _Owners(NamedTuple):
    """Columns of `Instants`."""

    owner: Column
    engine: Column
    row: Column
    waiting: Column


def _attributed(sweep: _Sweep) -> _Owners:
    engine, row, wait = (np.full(len(sweep.lengths), _NOTHING, dtype=np.int64) for _ in range(3))
    compute, running = sweep.kinds[sweep.compute], sweep.row[sweep.spans[sweep.compute]]
    # Kinds of work come first and in the order of their owners: the smallest of an interval owns it.
    busy = np.where(compute == _NOTHING, len(_BUSY), np.minimum(compute, len(_BUSY)))
    least = busy.min(axis=0, initial=len(_BUSY))
    owner = np.array([*_BUSY, Owner.OTHER], dtype=np.int64)[least]
    working, idle = np.flatnonzero(least < len(_BUSY)), np.flatnonzero(least == len(_BUSY))
    if len(working):
        row[working] = running[busy[:, working].argmin(axis=0), working]
    stalled = compute[:, idle] >= SpanKind.STALL_EVENT
    waiting = stalled.any(axis=0)
    if waiting.any():
        at, which = idle[waiting], stalled[:, waiting].argmax(axis=0)
        wait[at] = running[which, at]
        owner[at], engine[at], row[at] = _follow(sweep, at, np.array(sweep.compute, dtype=np.int64)[which])
    return _Owners(owner, engine, row, wait)


def _follow(sweep: _Sweep, at: _Instants, stream: _Instants) -> tuple[_Instants, _Instants, _Instants]:
    """Owners and engines of the intervals `at`, in which the given stream is stalled, and the spans that cause it.

    An event is followed to the stream that will signal it. Where the chain ends in a stream that neither copies nor
    waits for memory, or does not end within one step per stream, the last stream on the way that is named by an engine
    gives the engine.
    """
    owner = np.full(len(at), Owner.OTHER, dtype=np.int64)
    engine, row = (np.full(len(at), _NOTHING, dtype=np.int64) for _ in range(2))
    stream = stream.copy()
    open_ = np.arange(len(at))
    for _ in sweep.named:
        here, now = stream[open_], at[open_]
        kind = sweep.kinds[here, now]
        busy = kind != _NOTHING
        span = sweep.spans[here, now]
        row[open_[busy]] = sweep.row[span[busy]]
        _assign(owner, engine, open_, sweep.named[here])
        for stall, of_stall in ((SpanKind.STALL_MEMORY, Owner.MEMORY), (SpanKind.STALL_LAUNCH, Owner.LAUNCH)):
            elsewhere = open_[kind == stall]
            owner[elsewhere], engine[elsewhere] = of_stall, _NOTHING
        kernel = _is_among(kind, _KERNELS)
        on_host, exchanges = _is_among(kind, _CODEC) | (kernel & sweep.host[here]), kernel & sweep.collectives[here]
        for where, of_work in ((on_host, Owner.HOST), (exchanges, Owner.COLLECTIVE)):
            owner[open_[where]], engine[open_[where]] = of_work, _NOTHING
        _assign(owner, engine, open_, sweep.on[here, now])
        queued = kind == SpanKind.STALL_ENGINE
        mine = open_[queued]
        holder, row[mine] = _engine_holder(sweep, here[queued], now[queued], row[mine])
        _assign(owner, engine, mine, holder)
        cause = sweep.cause[span]
        onward = (kind == SpanKind.STALL_EVENT) & (cause != _NOTHING)
        stream[open_[onward]] = cause[onward]
        open_ = open_[onward]
        if len(open_) == 0:
            break
    return owner, engine, row


def _is_among(kinds: _Instants, wanted: tuple[SpanKind, ...]) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = np.logical_or.reduce([kinds == kind for kind in wanted])
    return result


def _assign(owner: _Instants, engine: _Instants, which: _Instants, engines: _Instants) -> None:
    """Attribute intervals to copies on engines, where there is one."""
    known = engines != _NOTHING
    owner[which[known]], engine[which[known]] = Owner.COPY, engines[known]


def _engine_holder(sweep: _Sweep, waiting: _Instants, at: _Instants, row: _Instants) -> tuple[_Instants, _Instants]:
    """Engine and span of the first stream that copies while another waits for its engine; -1 and `row` without one.

    A waiting stream that is named by an engine waits for a copy over the same link.
    """
    holder, span = np.full(len(at), _NOTHING, dtype=np.int64), row.copy()
    link = np.array([*map(sweep.link, range(len(sweep.engines))), _NOTHING], dtype=np.int64)
    wanted = link[sweep.named[waiting]]
    for other in reversed(range(len(sweep.named))):
        on = sweep.on[other, at]
        copying = (on != _NOTHING) & ((wanted == _NOTHING) | (link[on] == wanted))
        holder[copying] = on[copying]
        span[copying] = sweep.row[sweep.spans[other, at[copying]]]
    return holder, span


def _copy_time(copying: NDArray[np.bool_], sweep: _Sweep, computing: NDArray[np.bool_]) -> CopyTime:
    return CopyTime(sweep.duration(copying & computing), sweep.duration(copying & ~computing))
