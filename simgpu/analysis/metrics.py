"""How fast one iteration was and what it needed, as numbers.

Integers stay integers; each float is the result of one division at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.analysis.breakdown import Breakdown, CopyTime, breakdown
from simgpu.analysis.compression import Compression
from simgpu.analysis.power import Power
from simgpu.hardware.spec import DEVICE, Duplex, MemoryLink, NodeSpec
from simgpu.timeline.model import Column, MemoryCurve, SpanKind, Timeline
from simgpu.timeline.streams import engine, engine_ends


class MetricRow(NamedTuple):
    """One line of a table: a stable key, its value (None where it has none) and its unit (may be empty)."""

    key: str
    value: int | float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """One iteration in numbers: times in ns, sizes in bytes, shares between 0 and 1.

    With several GPUs the iteration lasts until all of them have their new weights, the breakdown is that of GPU 0,
    bytes are those of all together, link utilisation is the mean of theirs, and memory that of the GPU that holds most.

    samples_per_s: infinite for an iteration that takes no time (whose mean and utilisation are 0). slowdown: iteration
    over ideal, 1 or more, and less only where compressed memory makes kernels faster. copied_bytes: by copy engine, of
    the copies that start in the iteration's window. utilisation: by copy engine, those bytes over what its link could
    carry that way in the window; may pass 1 where the last copy ends after the window. device_peak_bytes,
    device_mean_bytes (rounded down): live bytes in the window. swapping_ns: copies and codecs that start in the window,
    hidden or not, each for as long as it took (the swapping latency of CSWAP, figure 3); codec_share: the codecs' part
    of it. device_peak_used_bytes: the peak with the allocator's padding. run_peak_bytes, shared_peak_bytes: live bytes
    of device memory, and by name of the memories that GPUs share, over the whole run, warm-up included. fragmentation:
    share of the memory needed from address 0 up to the highest byte ever used that peak use leaves in holes; None where
    the pool gives no addresses. reserved_bytes: the most that PyTorch's caching allocator had from the device at once,
    over the whole run; None for other pools. context_bytes: what the CUDA context takes of the device's memory besides
    the budget, 0 where a budget is given, None if not known; only with that allocator. power: energy and power, None
    where nothing is known of them. compression: of device memory, None where nothing is compressed. Of several GPUs
    only: speedup, against the ideal iteration of the whole batch on one GPU; together_ns, by how much the iteration is
    longer than that of one GPU alone on its share (the exchange of gradients, and links that are shared), negative
    where it is shorter.
    """

    iteration_ns: int
    samples_per_s: float
    slowdown: float
    breakdown: Breakdown
    copied_bytes: Mapping[str, int]
    utilisation: Mapping[str, float]
    device_peak_bytes: int
    device_mean_bytes: int
    device_peak_used_bytes: int
    run_peak_bytes: int
    shared_peak_bytes: Mapping[str, int]
    swapping_ns: int = 0
    codec_share: float | None = None
    fragmentation: float | None = None
    reserved_bytes: int | None = None
    context_bytes: int | None = None
    power: Power | None = None
    speedup: float | None = None
    together_ns: int | None = None
    compression: Compression | None = None

    @property
    def link_bytes(self) -> int:
        """Bytes that the GPUs copy to and from all other memories, both directions together."""
        ends = {name: engine_ends(name) or () for name in self.copied_bytes}
        return sum(size for name, size in self.copied_bytes.items() if DEVICE in ends[name])

    def rows(self) -> tuple[MetricRow, ...]:
        """All numbers in a fixed order, for tables and JSON; what is infinite or absent has the value None."""
        parts = self.breakdown
        rows: list[tuple[str, int | float | None, str]] = [
            ("iteration_ns", self.iteration_ns, "ns"),
            ("samples_per_s", self.samples_per_s, "samples/s"),
            ("slowdown", self.slowdown, ""),
            ("compute_ns", parts.compute, "ns"),
            ("overlap_ns", parts.overlap, "ns"),
            ("recompute_ns", parts.recompute, "ns"),
            ("codec_ns", parts.codec, "ns"),
            *((f"stalled_{engine}_ns", ns, "ns") for engine, ns in parts.stalled_copies.items()),
            ("stalled_memory_ns", parts.stalled_memory, "ns"),
            ("stalled_host_ns", parts.stalled_host, "ns"),
            *([("stalled_launch_ns", parts.stalled_launch, "ns")] if parts.stalled_launch else []),
            *([("stalled_collectives_ns", exchanged, "ns")] if (exchanged := parts.stalled_collectives) else []),
            ("stalled_other_ns", parts.stalled_other, "ns"),
            *(row for engine, copies in parts.copies.items() for row in _copy_rows(engine, copies)),
            *((f"{engine}_bytes", size, "B") for engine, size in self.copied_bytes.items()),
            *((f"{engine}_utilisation", share, "") for engine, share in self.utilisation.items()),
            ("device_peak_bytes", self.device_peak_bytes, "B"),
            ("device_mean_bytes", self.device_mean_bytes, "B"),
            ("device_peak_used_bytes", self.device_peak_used_bytes, "B"),
            ("run_peak_bytes", self.run_peak_bytes, "B"),
            *((f"{memory}_peak_bytes", size, "B") for memory, size in self.shared_peak_bytes.items()),
            ("swapping_ns", self.swapping_ns, "ns"),
            ("codec_share", self.codec_share, ""),
            ("fragmentation", self.fragmentation, ""),
            *self._allocator_rows(),
            *_power_rows(self.power),
            *([("speedup", self.speedup, "")] if self.speedup is not None else []),
            *([("together_ns", self.together_ns, "ns")] if self.together_ns is not None else []),
            *(self.compression.rows() if self.compression else []),
        ]
        return tuple(MetricRow(key, _finite(value), unit) for key, value, unit in rows)

    @property
    def by_key(self) -> dict[str, int | float | None]:
        """The values of all rows by their key."""
        return {row.key: row.value for row in self.rows()}

    def _allocator_rows(self) -> list[tuple[str, int | float | None, str]]:
        """What only PyTorch's allocator has."""
        if self.reserved_bytes is None:
            return []
        return [("device_reserved_bytes", self.reserved_bytes, "B"), ("device_context_bytes", self.context_bytes, "B")]


def measure(
    timeline: Timeline,
    *,
    batch: int,
    ideal_ns: int,
    links: Sequence[MemoryLink],
    fragmentation: float | None = None,
    reserved_bytes: int | None = None,
    context_bytes: int | None = None,
    power: Power | None = None,
    single_ideal_ns: int | None = None,
    alone_ns: int | None = None,
    compression: Compression | None = None,
    iteration: int = -1,
) -> Metrics:
    """The numbers of one iteration (the last one by default).

    links: the node's, by which engines copy. batch: samples per iteration. ideal_ns: the iteration's time with
    unlimited memory and no transfers. power: of the same iteration, where it is known; likewise compression.
    single_ideal_ns, alone_ns: of several GPUs, the ideal iteration of the whole batch on one GPU, and one GPU's on its
    share without the others. A half-duplex link is measured against its one shared capacity. Errors as in `breakdown`.

    >>> from simgpu.timeline.model import MemoryCurve, SpanKind, Timeline
    >>> import numpy as np
    >>> column = lambda *values: np.array(values, dtype=np.int64)
    >>> curve = MemoryCurve(column(0, 600), column(100, 50), column(128, 64), None)
    >>> timeline = Timeline(("compute",), ("conv1",), gpu=column(0), stream=column(0), name=column(0),
    ...     kind=column(SpanKind.COMPUTE), start_ns=column(0), end_ns=column(1000), bytes=column(0), cause=column(-1),
    ...     iteration=column(0), resource=column(-1), resources=(), memories=(curve,), iteration_ends_ns=(1000,))
    >>> metrics = measure(timeline, batch=32, ideal_ns=800, links=[MemoryLink(("device", "host"), "pcie", (1, 1))])
    >>> metrics.slowdown, metrics.samples_per_s, metrics.device_peak_bytes, metrics.device_mean_bytes
    (1.25, 32000000.0, 100, 80)
    """
    start, end = timeline.window(iteration)
    started = (timeline.start_ns >= start) & (timeline.start_ns < end)
    copied = {name: int(timeline.bytes[started & timeline.copies(name)].sum()) for name in timeline.engines}
    last = range(len(timeline.iteration_ends_ns))[iteration] == len(timeline.iteration_ends_ns) - 1
    devices = timeline.device_memories
    codec_ns = _duration(timeline, started & ((timeline.kind == SpanKind.ENCODE) | (timeline.kind == SpanKind.DECODE)))
    swapping_ns = codec_ns + _duration(timeline, started & (timeline.kind == SpanKind.COPY))
    return Metrics(
        iteration_ns=end - start,
        samples_per_s=_ratio(batch * 10**9, end - start),
        slowdown=_ratio(end - start, ideal_ns),
        breakdown=breakdown(timeline, iteration),
        copied_bytes=copied,
        utilisation={
            name: _utilisation(size, end - start, *_capacity(name, links, len(devices)))
            for name, size in copied.items()
        },
        device_peak_bytes=max(_peak(device.time_ns, device.live, start, end, last) for device in devices),
        device_mean_bytes=max(_mean(device, start, end) for device in devices),
        device_peak_used_bytes=max(_peak(device.time_ns, device.used, start, end, last) for device in devices),
        run_peak_bytes=max(int(device.live.max(initial=0)) for device in devices),
        shared_peak_bytes={each.memory: int(each.live.max(initial=0)) for each in timeline.shared_memories},
        swapping_ns=swapping_ns,
        codec_share=codec_ns / swapping_ns if swapping_ns else None,
        fragmentation=fragmentation,
        reserved_bytes=reserved_bytes,
        context_bytes=context_bytes,
        power=power,
        speedup=None if single_ideal_ns is None else _ratio(single_ideal_ns, end - start),
        together_ns=None if alone_ns is None else end - start - alone_ns,
        compression=compression,
    )


def metric_keys(node: NodeSpec) -> tuple[str, ...]:
    """The keys of all metrics that an iteration on a node can have, also those that only some iterations have.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> keys = metric_keys(NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 1, 1)))
    >>> "iteration_ns" in keys, "stalled_h2d_ns" in keys, "host_peak_bytes" in keys, "ssd_peak_bytes" in keys
    (True, True, True, False)
    """
    engines = [engine(*ends) for link in node.links for ends in (link.ends, link.ends[::-1])]
    nothing = dict.fromkeys(engines, 0)
    parts = Breakdown(0, 0, 0, nothing, 0, 0, 0, dict.fromkeys(engines, CopyTime(0, 0)), 0)
    memories = {end: 0 for link in node.links for end in link.ends if end != DEVICE}
    every = Metrics(
        0,
        0.0,
        1.0,
        parts,
        nothing,
        dict.fromkeys(engines, 0.0),
        0,
        0,
        0,
        0,
        memories,
        reserved_bytes=0,
        speedup=1.0,
        together_ns=0,
        compression=Compression(1.0, 0.0, 0, 0, 0, 0.0),
    )
    return tuple(row.key for row in every.rows())


def _copy_rows(engine: str, copies: CopyTime) -> list[tuple[str, int, str]]:
    return [(f"{engine}_overlapped_ns", copies.hidden, "ns"), (f"{engine}_exposed_ns", copies.exposed, "ns")]


def _capacity(engine: str, links: Sequence[MemoryLink], gpus: int) -> tuple[int, int]:
    """Bytes per second that an engine's link carries in its direction, and how many such links the node's GPUs have."""
    ends = engine_ends(engine)
    for link in links:
        if ends is not None and {*ends} == {*link.ends}:
            rate = max(link.bandwidths) if link.duplex is Duplex.HALF else link.bandwidths[ends != link.ends]
            return rate, gpus if DEVICE in ends else 1
    raise ValueError(f"no link has the engine {engine}")


def _power_rows(power: Power | None) -> list[tuple[str, int | float | None, str]]:
    return [
        ("energy_nj", power.energy_nj if power else None, "nJ"),
        ("energy_idle_nj", power.idle_nj if power else None, "nJ"),
        ("energy_arithmetic_nj", power.arithmetic_nj if power else None, "nJ"),
        ("energy_dram_nj", power.dram_nj if power else None, "nJ"),
        ("energy_link_nj", power.link_nj if power else None, "nJ"),
        ("average_power_w", power.average_w if power else None, "W"),
        ("peak_power_w", power.largest_w if power else None, "W"),
    ]


def _finite(value: int | float | None) -> int | float | None:
    return None if value is None or not math.isfinite(value) else value


def _ratio(part: int, total: int) -> float:
    if total:
        return part / total
    return math.inf if part else 1.0


def _utilisation(size: int, window: int, bandwidth: int, links: int) -> float:
    return size * 10**9 / (bandwidth * window * links) if window else 0.0


def _duration(timeline: Timeline, chosen: NDArray[np.bool_]) -> int:
    return int((timeline.end_ns[chosen] - timeline.start_ns[chosen]).sum())


def _samples(times: Column, start: int, end: int, closed: bool) -> slice:
    """The samples that matter from start to end: what holds on entry, unless a sample at `start` replaces it, and
    all that follow. The last instant counts only where no other iteration begins in it (`closed`)."""
    first = int(times.searchsorted(start, side="left"))
    if first > 0 and (first == len(times) or times[first] > start):
        first -= 1
    return slice(first, int(times.searchsorted(end, side="right" if closed else "left")))


def _peak(times: Column, values: Column, start: int, end: int, closed: bool) -> int:
    return int(values[_samples(times, start, end, closed)].max(initial=0))


def _mean(curve: MemoryCurve, start: int, end: int) -> int:
    """Time-weighted mean of live bytes, rounded down."""
    if end == start:
        return 0
    chosen = _samples(curve.time_ns, start, end, closed=False)
    lengths = np.diff(np.maximum(curve.time_ns[chosen], start), append=end)
    return _weighted(curve.live[chosen], lengths, end - start) // (end - start)


def _weighted(values: Column, lengths: Column, total: int) -> int:
    """The sum of products, exact although bytes times ns pass 64 bits: by parts of the values that do not.

    total: at least the sum of the lengths. Nothing is negative.

    >>> _weighted(np.array([2**50, 3]), np.array([2**30, 2**29]), 2**31) == 2**80 + 3 * 2**29
    True
    """
    part, result, shift = max(1, 63 - total.bit_length()), 0, 0
    while len(values) and values.any():
        result += int(np.dot(values & ((1 << part) - 1), lengths)) << shift
        values, shift = values >> part, shift + part
    return result
