"""Energy and power of a run, part by part: what GPUs draw while they compute, move data and wait.

Energies are whole numbers; powers are divisions at the end.

A board draws its idle power all the time. On top of it draw, while a span runs:

- arithmetic, in proportion to the share of the full rate that a kernel reaches, and at most what it draws at that rate:
  some algorithms need fewer operations than are counted;
- device memory, for every byte of a kernel, a codec or a copy;
- the link, for every byte that passes it, either way.

Each is spread evenly over its span. A span of no length draws nothing, and what the host encodes is not the GPU's.
Clocks are taken as fixed: a real board slows down where it would pass its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.work import WorkDone
from simgpu.hardware.spec import DEVICE, GpuSpec, PowerSpec
from simgpu.timeline.model import Column, SpanKind, Timeline
from simgpu.timeline.streams import StreamId, engine_ends
from simgpu.workloads.timemodel.formats import product_rate

#: A profiler cannot look closer than this: drivers update the reported power of a board that often (Lang and
#: Ruenger, Euro-Par 2013, who found 20 ms).
SAMPLE_NS = 20_000_000

_KERNELS = (SpanKind.COMPUTE, SpanKind.RECOMPUTE)
_CODECS = (SpanKind.ENCODE, SpanKind.DECODE)

Watts = NDArray[np.float64]


class _Parts(NamedTuple):
    """Picojoules of one span, in addition to idle power."""

    arithmetic: int
    dram: int
    link: int


@dataclass(frozen=True, slots=True)
class Power:
    """One iteration's energy by part, nanojoules, and its power.

    duration_ns: of the iteration. limit_mw: of all its GPUs together. largest_w: watts, the largest mean over
    `SAMPLE_NS` of iterations like this one after each other.
    """

    duration_ns: int
    limit_mw: int
    idle_nj: int
    arithmetic_nj: int
    dram_nj: int
    link_nj: int
    largest_w: float

    @property
    def energy_nj(self) -> int:
        """Energy of the iteration: its parts together."""
        return self.idle_nj + self.arithmetic_nj + self.dram_nj + self.link_nj

    @property
    def average_w(self) -> float:
        """Watts over the iteration; 0 for one that takes no time."""
        return self.energy_nj / self.duration_ns if self.duration_ns else 0.0

    @property
    def average_share(self) -> float:
        """Average power against the limit."""
        return self.average_w * 1000 / self.limit_mw

    @property
    def largest_share(self) -> float:
        """Largest power against the limit."""
        return self.largest_w * 1000 / self.limit_mw


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Power as a step function: the watts of each part from `time_ns[i]` to `time_ns[i + 1]`."""

    time_ns: Column
    idle: Watts
    arithmetic: Watts
    dram: Watts
    link: Watts

    @property
    def total(self) -> Watts:
        """Watts of all parts."""
        return self.idle + self.arithmetic + self.dram + self.link

    def means(self, watts: Watts, bounds: Column) -> Watts:
        """Means of `watts`, a column of this curve, between neighbouring `bounds` (ns of the run)."""
        return np.asarray(np.diff(self._energy(watts, bounds)) / np.diff(bounds), dtype=np.float64)

    def running_means(self, window_ns: int, at: Column) -> Watts:
        """Means of all parts over so long a time (ns, more than 0) before each of these instants.

        The curve is taken to repeat itself before its begin and after its end.
        """
        total = self.total
        return (self._energy(total, at) - self._energy(total, at - window_ns)) / window_ns

    def largest_mean(self, window_ns: int) -> float:
        """The largest of all `running_means`, watts; 0 for a curve of no length.

        As the instant moves, the mean grows or falls evenly until a step comes to the window's begin or to its end; so
        one with a step there is the largest.
        """
        steps = self.time_ns - self.time_ns[0]
        ends = self.time_ns[0] + np.concatenate([steps, (steps + window_ns) % max(1, steps[-1])])
        return float(self.running_means(window_ns, ends).max())

    def _energy(self, watts: Watts, at: Column) -> Watts:
        """Nanojoules from the curve's begin to each of these times, beyond its end with those of its repetitions."""
        steps = np.concatenate([[0.0], np.cumsum(watts * np.diff(self.time_ns))])
        times = self.time_ns - self.time_ns[0]
        cycles, remainder = np.divmod(at - self.time_ns[0], max(1, times[-1]))
        return np.asarray(cycles * steps[-1] + np.interp(remainder, times, steps), dtype=np.float64)


def measure_power(timeline: Timeline, work: WorkDone, gpu: GpuSpec, dtype: str, iteration: int = -1) -> Power:
    """Energy and power of an iteration (the last one by default), of all GPUs in the timeline.

    gpu: one whose power is stated. dtype: number format of the products. What begins or ends outside the iteration
    counts with its part inside. `IndexError` when there is no such iteration, `ValueError` where the GPU's power is not
    stated.

    >>> from simgpu.timeline.model import MemoryCurve
    >>> from simgpu.graph.work import KernelWork
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> empty = MemoryCurve(column(), column(), column(), None)
    >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
    ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(1000), bytes=column(0), cause=column(-1),
    ...     iteration=column(0), resource=column(-1), resources=(), memories=(), iteration_ends_ns=(1000,))
    >>> gpu = GpuSpec("gpu", 1, fp32_rate=10**12, power=PowerSpec(200_000, 50_000, 120_000, dram_fj=100_000, link_fj=0))
    >>> half_of_the_rate = WorkDone({"conv1": KernelWork(500_000, dram_bytes=40_000)}, {}, {})
    >>> power = measure_power(timeline, half_of_the_rate, gpu, "float32")
    >>> power.idle_nj, power.arithmetic_nj, power.dram_nj, power.average_w
    (50000, 60000, 4000, 114.0)
    """
    drawing = _Drawing(timeline, work, gpu, dtype, iteration)
    arithmetic, dram, link = drawing.energy_pj()
    duration = drawing.end - drawing.start
    return Power(
        duration_ns=duration,
        limit_mw=drawing.gpus * drawing.power.limit_mw,
        idle_nj=drawing.gpus * drawing.power.idle_mw * duration // 1000,
        arithmetic_nj=arithmetic // 1000,
        dram_nj=dram // 1000,
        link_nj=link // 1000,
        largest_w=drawing.curve().largest_mean(SAMPLE_NS),
    )


def power_curve(timeline: Timeline, work: WorkDone, gpu: GpuSpec, dtype: str, iteration: int = -1) -> PowerCurve:
    """Power over an iteration; arguments and errors as in `measure_power`."""
    return _Drawing(timeline, work, gpu, dtype, iteration).curve()


class _Drawing:
    """The spans that draw power in an iteration, equal ones together.

    sort: (spans,) which of the equal ones each span is. parts: of each sort, for a whole span. starts, ends: (spans,)
    cut at the iteration; whole: whether nothing was cut off.
    """

    def __init__(self, timeline: Timeline, work: WorkDone, gpu: GpuSpec, dtype: str, iteration: int) -> None:
        rate = product_rate(gpu, dtype)
        if gpu.power is None or rate is None:
            raise ValueError(f"what {gpu.name} draws is not stated")
        self.power = gpu.power
        self.start, self.end = timeline.window(iteration)
        self.gpus = max(1, len(np.unique(timeline.gpu)))
        rows = np.flatnonzero(
            (timeline.end_ns > self.start)
            & (timeline.start_ns < self.end)
            & (timeline.end_ns > timeline.start_ns)
            & (timeline.kind < SpanKind.STALL_EVENT)
            & ~_beyond_the_board(timeline)
        )
        self.starts = np.maximum(timeline.start_ns[rows], self.start)
        self.ends = np.minimum(timeline.end_ns[rows], self.end)
        self.durations = timeline.end_ns[rows] - timeline.start_ns[rows]
        self.complete = self.ends - self.starts == self.durations
        facts = np.stack([timeline.kind[rows], timeline.name[rows], self.durations, timeline.bytes[rows]], axis=1)
        sorts, self.sort = np.unique(facts, axis=0, return_inverse=True)
        self.parts = [
            _parts(SpanKind(kind), timeline.names[name], duration, size, work, self.power, rate)
            for kind, name, duration, size in sorts.tolist()
        ]

    def energy_pj(self) -> _Parts:
        """Picojoules in the iteration, each part of a cut span rounded down."""
        counts = np.bincount(self.sort[self.complete], minlength=len(self.parts)).tolist()
        totals = [sum(count * part for count, part in zip(counts, of, strict=True)) for of in self._by_part()]
        for span in np.flatnonzero(~self.complete).tolist():
            inside, duration = int(self.ends[span] - self.starts[span]), int(self.durations[span])
            for place, part in enumerate(self.parts[self.sort[span]]):
                totals[place] += part * inside // duration
        return _Parts(*totals)

    def curve(self) -> PowerCurve:
        """Watts over the iteration."""
        edges = np.array([self.start, self.end], dtype=np.int64)
        bounds = np.unique(np.concatenate([edges, self.starts, self.ends]))
        begin, end = np.searchsorted(bounds, self.starts), np.searchsorted(bounds, self.ends)
        columns = []
        for of in self._by_part():
            # A picojoule each nanosecond is a milliwatt.
            watts = np.array([float(part) for part in of])[self.sort] / self.durations / 1000
            changes = np.zeros(len(bounds))
            np.add.at(changes, begin, watts)
            np.subtract.at(changes, end, watts)
            columns.append(np.maximum(np.cumsum(changes)[:-1], 0.0))
        idle = np.full(len(bounds) - 1, self.gpus * self.power.idle_mw / 1000)
        return PowerCurve(bounds, idle, *columns)

    def _by_part(self) -> list[tuple[int, ...]]:
        """Arithmetic, DRAM and link, each of all sorts."""
        return list(zip(*self.parts, strict=True)) if self.parts else [(), (), ()]


def _parts(
    kind: SpanKind, name: str, duration: int, link_bytes: int, work: WorkDone, power: PowerSpec, rate: int
) -> _Parts:
    """Picojoules of a span of that length (ns)."""
    if kind in _KERNELS or kind in _CODECS:
        flops, bytes_moved = (work.kernels if kind in _KERNELS else work.codecs)[name]
        # A milliwatt for a nanosecond is a picojoule.
        arithmetic = power.arithmetic_mw * min(duration * rate, flops * 10**9) // rate
        return _Parts(arithmetic, bytes_moved * power.dram_fj // 1000, 0)
    return _Parts(0, work.copies[name] * power.dram_fj // 1000, link_bytes * power.link_fj // 1000)


def _beyond_the_board(timeline: Timeline) -> NDArray[np.bool_]:
    """Which spans the host's processors work at, and copies between memories of which none is a GPU's."""
    hosts = [number for number, name in enumerate(timeline.streams) if StreamId.of(name).role == "host"]
    elsewhere = [name for name in timeline.engines if DEVICE not in (engine_ends(name) or ())]
    copies = (timeline.copies(name) for name in elsewhere)
    beyond: NDArray[np.bool_] = np.logical_or.reduce([np.isin(timeline.stream, hosts), *copies])
    return beyond
