"""The measures of a study: how each is computed from a run, or from a run and its baseline, and formatted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from simgpu.analysis.breakdown import PARTS
from simgpu.graph.bounds import all_at_once, memory_bounds, task_bytes
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.units import format_bytes

if TYPE_CHECKING:
    from simgpu.experiments.training import Training
    from simgpu.trace.model import Trace


@dataclass(frozen=True, slots=True)
class StudyCell:
    """The numbers of one run on one trace.

    samples_per_s: over all epochs, weighted equally; None if the run failed (see out_of_memory and refused)
    iteration_ns: step time of each epoch, ns
    compressed: number of blocks offloaded compressed, per epoch
    steady: whether the last two iterations were equal in every epoch
    limited: whether device memory is limited
    out_of_memory, refused: the error message; empty if there was no such error
    traffic_bytes: link traffic in both directions, sum over one iteration of each epoch
    energy_nj: energy of these iterations, nJ; None if the GPU's power is not known
    average_power, peak_power: shares of the GPU's power limit; None if not known
    batch: samples per iteration
    parts: ns by part of the step time (`simgpu.analysis.breakdown.PARTS`), sum over epochs, of GPU 0
    peak_bytes: peak device memory over all epochs
    ratio, overflow, metadata_hit_rate: of compressed memory (`simgpu.analysis.compression`), mean over epochs; None
    without compression
    drift: overflow shares of all epochs in order; empty without compression
    """

    samples_per_s: float | None
    iteration_ns: tuple[int, ...] = ()
    compressed: tuple[int, ...] = ()
    steady: bool | None = None
    limited: bool = True
    out_of_memory: str = ""
    refused: str = ""
    traffic_bytes: int | None = None
    energy_nj: int | None = None
    average_power: float | None = None
    peak_power: float | None = None
    batch: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    ratio: float | None = None
    overflow: float | None = None
    metadata_hit_rate: float | None = None
    drift: tuple[float, ...] = ()

    @property
    def failure(self) -> str:
        """Why there are no numbers: ``out of memory`` or ``refused``; empty if there are numbers."""
        if self.refused:
            return "refused"
        return "out of memory" if self.samples_per_s is None else ""

    @classmethod
    def of(cls, training: Training) -> StudyCell:
        """The numbers of a training."""
        results = [epoch.result for epoch in training.epochs]
        steady = [result.steady for result in results]
        metrics = [result.metrics for result in results]
        power = [each.power for each in metrics if each.power is not None]
        collected = [each.compression for each in metrics if each.compression is not None]
        compressed = collected if len(collected) == len(results) else []
        known = power if len(power) == len(results) else []
        drawn, time_ns = sum(each.energy_nj for each in known), sum(each.duration_ns for each in known)
        limit_w = known[0].limit_mw / 1000 if known else 0
        return cls(
            training.samples_per_s,
            tuple(result.iteration_ns for result in results),
            training.counts,
            None if None in steady else all(steady),
            not all(result.program.unlimited_memory for result in results),
            traffic_bytes=sum(each.link_bytes for each in metrics),
            energy_nj=drawn if known else None,
            average_power=drawn / time_ns / limit_w if limit_w and time_ns else None,
            peak_power=max(each.largest_w for each in known) / limit_w if limit_w else None,
            batch=training.trace.batch,
            peak_bytes=max(each.device_peak_bytes for each in metrics),
            ratio=_mean(each.ratio for each in compressed),
            overflow=_mean(each.overflow_share for each in compressed),
            metadata_hit_rate=_mean(each.hit_rate for each in compressed),
            drift=tuple(share for each in compressed for share in each.drift),
            parts={name: sum(each.breakdown.parts[name] for each in metrics) for name in PARTS},
        )


def _mean(values: Iterable[float]) -> float | None:
    results = list(values)
    return fmean(results) if results else None


def _over(value: float | None, baseline: float | None) -> float | None:
    """The quotient of two numbers; None if one is not known or the divisor is zero."""
    return value / baseline if value is not None and baseline else None


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _throughput(run: StudyCell, baseline: StudyCell) -> float | None:
    return _over(run.samples_per_s, baseline.samples_per_s)


def _time(run: StudyCell, baseline: StudyCell) -> float | None:
    return _over(baseline.samples_per_s, run.samples_per_s)


def _time_saved(run: StudyCell, baseline: StudyCell) -> float | None:
    ratio = _throughput(run, baseline)
    return 1 - 1 / ratio if ratio else None


def _share(part: str) -> Callable[[StudyCell, StudyCell], float | None]:
    return lambda cell, _: _over(cell.parts[part], sum(cell.parts.values())) if cell.parts else None


def _best_throughput(run: Sequence[StudyCell], baseline: Sequence[StudyCell]) -> float | None:
    return _over(
        *(max((each.samples_per_s or 0.0 for each in cells), default=0.0) or None for cells in (run, baseline))
    )


def _largest_batch(run: Sequence[StudyCell], _: Sequence[StudyCell]) -> float | None:
    return max((each.batch for each in run if each.samples_per_s is not None), default=None)


def _batch_gain(run: Sequence[StudyCell], baseline: Sequence[StudyCell]) -> float | None:
    return _over(_largest_batch(run, run), _largest_batch(baseline, baseline))


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a study.

    title: title of its table
    word: its name in the rows of published numbers
    of: computes the value from a run and its baseline; None if not known
    share: formatted in percent
    size: formatted as bytes
    alone: needs no baseline
    decimals: decimals of values that are neither shares nor sizes
    averaged: whether its mean over traces is meaningful
    of_sweep: replaces `of`: computes one value from all batches of a network
    quotient_of: the measure whose value for the run is divided by that of the baseline
    ratio: converts a value to a ratio, for geometric means, and back; None for arithmetic means
    """

    title: str
    word: str
    of: Callable[[StudyCell, StudyCell], float | None]
    share: bool = False
    size: bool = False
    alone: bool = False
    decimals: int = 3
    averaged: bool = True
    of_sweep: Callable[[Sequence[StudyCell], Sequence[StudyCell]], float | None] | None = None
    quotient_of: str = ""
    ratio: tuple[Callable[[float], float], Callable[[float], float]] | None = None

    def text(self, value: float | None) -> str:
        """The formatted value, or a dash; values of 1000 and more have no decimals."""
        if value is None:
            return "-"
        if self.size:
            return format_bytes(round(value))
        return f"{value:.1%}" if self.share else f"{value:.{self._digits(value)}f}"

    def difference(self, value: float | None, published: float) -> str:
        """The formatted difference from the published value, or a dash."""
        if value is None:
            return "-"
        if self.share:
            return f"{100 * value:+.1f} points"
        return f"{value:+.{self._digits(published)}f}"

    def _digits(self, value: float) -> int:
        return 0 if abs(value) >= 1000 else self.decimals


def _same(value: float) -> float:
    return value


def _and_one(value: float) -> float:
    return 1 + value


def _less(value: float) -> float:
    return value - 1


def _of_one(value: float) -> float:
    return 1 - value


#: Conversions of a value that is a ratio, a ratio - 1, or 1 - a ratio.
_RATIO, _RATIO_LESS_ONE, _ONE_LESS_RATIO = (_same, _same), (_and_one, _less), (_of_one, _of_one)

#: The title of the table of each part of the step time.
_PARTS = {
    "computation": "compute without overlapped copies, share of the step time",
    "overlap": "compute overlapped with copies, share of the step time",
    "swapping": "stalls on swapping, share of the step time",
    "recomputation": "recomputation, share of the step time",
    "codec": "encoding and decoding, share of the step time",
    "launches": "waiting for launches, share of the step time",
}

#: Measures by their name in study files.
MEASURES: Mapping[str, Measure] = {
    "throughput": Measure("throughput over {over}", "", _throughput, ratio=_RATIO),
    "time": Measure("step time over {over}", "step time", _time, ratio=_RATIO),
    "time_increase": Measure(
        "overhead over {over}",
        "overhead",
        lambda a, b: _less_one(_time(a, b)),
        share=True,
        ratio=_RATIO_LESS_ONE,
    ),
    "time_saved": Measure("time saved vs. {over}", "time saved", _time_saved, share=True, ratio=_ONE_LESS_RATIO),
    "traffic": Measure("traffic, D2H and H2D", "traffic", lambda a, _: a.traffic_bytes, size=True, alone=True),
    "traffic_reduction": Measure(
        "traffic of {over} over that of the run",
        "traffic reduction",
        lambda a, b: _over(b.traffic_bytes, a.traffic_bytes),
        ratio=_RATIO,
    ),
    "energy": Measure("energy over {over}", "energy", lambda a, b: _over(a.energy_nj, b.energy_nj), ratio=_RATIO),
    "power_increase": Measure(
        "average power increase over {over}",
        "average power increase",
        lambda a, b: _less_one(_over(a.average_power, b.average_power)),
        share=True,
        ratio=_RATIO_LESS_ONE,
    ),
    "average_power": Measure(
        "average power, share of the GPU's limit", "average power", lambda a, _: a.average_power, share=True, alone=True
    ),
    "peak_power": Measure(
        "peak power, share of the GPU's limit", "peak power", lambda a, _: a.peak_power, share=True, alone=True
    ),
    "samples_per_s": Measure(
        "samples per second", "samples/s", lambda a, _: a.samples_per_s, alone=True, decimals=1, averaged=False
    ),
    "best_throughput": Measure(
        "highest throughput of all batches over {over}",
        "highest throughput",
        lambda a, b: None,
        of_sweep=_best_throughput,
        ratio=_RATIO,
    ),
    "largest_batch": Measure(
        "largest batch that fits",
        "largest batch",
        lambda a, b: None,
        alone=True,
        decimals=0,
        of_sweep=_largest_batch,
    ),
    "batch_ratio": Measure(
        "largest batch over {over}",
        "largest batch",
        lambda a, b: None,
        of_sweep=_batch_gain,
        quotient_of="largest_batch",
        ratio=_RATIO,
    ),
    **{name: Measure(title, name, _share(name), share=True, alone=True) for name, title in _PARTS.items()},
    "peak_memory": Measure("peak device memory", "peak memory", lambda a, _: a.peak_bytes, size=True, alone=True),
    "compression_ratio": Measure(
        "compression ratio", "compression ratio", lambda a, _: a.ratio, alone=True, ratio=_RATIO
    ),
    "overflow": Measure(
        "share of overflowing memory-entries", "overflowing entries", lambda a, _: a.overflow, share=True, alone=True
    ),
    "overflow_min": Measure(
        "share of overflowing live entries, minimum over the iteration",
        "minimum overflow",
        lambda a, _: min(a.drift, default=None),
        share=True,
        alone=True,
    ),
    "overflow_max": Measure(
        "share of overflowing live entries, maximum over the iteration",
        "maximum overflow",
        lambda a, _: max(a.drift, default=None),
        share=True,
        alone=True,
    ),
    "metadata_hit_rate": Measure(
        "hit rate of the metadata cache", "metadata hit rate", lambda a, _: a.metadata_hit_rate, share=True, alone=True
    ),
    "memory": Measure(
        "memory reduction over all tensors", "memory reduction", lambda a, b: None, alone=True, ratio=_RATIO
    ),
    "memory_saved": Measure(
        "memory saved of all tensors",
        "memory saved",
        lambda a, b: None,
        share=True,
        alone=True,
        ratio=_ONE_LESS_RATIO,
    ),
}

#: Column headings of the amounts of `memory_of`.
AMOUNTS: Mapping[str, str] = {
    "all_at_once": "all tensors",
    "bound": "lower bound",
    "weights_offloaded": "weights offloaded",
    "sub_batch": "sub-batch",
    "transfers": "transfers",
    "algorithms": "algorithms",
}


def memory_of(trace: Trace) -> dict[str, int]:
    """The bytes that an iteration needs, by the keys of `AMOUNTS`.

    all_at_once: all tensors resident, with the largest workspace of the fastest algorithms (moDNN's ideal memory,
    section 7)
    bound: memory lower bound, equation 7
    weights_offloaded: lower bound with weights offloaded too, without the optimizer's kernels, as published
    sub_batch: everything resident, one sample at a time (one technique alone, section 7.3)
    transfers: working set of the largest task of the full batch with its fastest algorithm (section 7.3)
    algorithms: everything resident, each convolution with its smallest workspace (section 7.3)

    If the iteration cannot be modelled at one sample, bound, weights_offloaded and sub_batch use the full batch.

    >>> from simgpu.trace.folder import load_trace
    >>> result = memory_of(load_trace("vgg16-b128-v100"))
    >>> result["bound"] < result["sub_batch"] < result["transfers"] < result["algorithms"] < result["all_at_once"]
    True
    """
    graph = TaskGraph.of(trace)
    bounds, batch_graph = memory_bounds(graph), Tdfg.of(graph)
    tasks = range(len(batch_graph.kinds))
    fastest, smallest = (max(way(k).workspace for k in tasks) for way in (batch_graph.fastest, batch_graph.smallest))
    return {
        "all_at_once": bounds.all_at_once.bytes,
        "bound": bounds.bound.bytes,
        "weights_offloaded": bounds.without_updates.bytes,
        "sub_batch": all_at_once(Tdfg.of(bounds.graph)).bytes,
        "transfers": batch_graph.resident_bytes
        + max(task_bytes(batch_graph, k, batch_graph.fastest(k)) for k in tasks),
        "algorithms": bounds.all_at_once.bytes - fastest + smallest,
    }
