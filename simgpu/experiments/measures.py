"""Formats the metrics of several policies as a table, grouped by speed, transfers, memory and energy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simgpu.hardware.spec import DEVICE
from simgpu.timeline.streams import engine_ends, engine_text
from simgpu.units import format_bytes, format_energy, format_power, format_time

#: Table cell of a run that was out of memory.
OOM = "OOM"

_ABSENT = "-"
_Metrics = Mapping[str, Any]


class MeasureRow(NamedTuple):
    """A measure: its name, one text per policy, and whether it details the row above it."""

    name: str
    cells: tuple[str, ...]
    part: bool = False


class MeasureGroup(NamedTuple):
    """Measures under a common heading."""

    title: str
    lines: tuple[MeasureRow, ...]


def failure(entry: Mapping[str, Any]) -> str:
    """Why a policy's entry has no numbers; empty if it has numbers."""
    kinds = {"error": "error", "refused": "refused", "out_of_memory": OOM}
    return next((name for key, name in kinds.items() if key in entry), "")


def groups(entries: Sequence[Mapping[str, Any]]) -> list[MeasureGroup]:
    """The comparison table's groups of measures, without measures that no policy has.

    entries: each policy's entry in report.json.
    """
    metrics = [entry.get("metrics") for entry in entries]
    limits = [_limit_mw(entry) for entry in entries]
    speed = (MeasureRow("step time", tuple(_iteration(entry) for entry in entries)), *_speed(entries, metrics))
    results = [
        MeasureGroup("Speed", speed),
        MeasureGroup("Compute stream", tuple(_parts(metrics))),
        MeasureGroup("Transfers", tuple(_traffic(metrics))),
        MeasureGroup("Memory", tuple(_memory(metrics))),
        MeasureGroup("Energy", tuple(_energy(metrics, limits))),
    ]
    return [group for group in results if group.lines and (group.title == "Speed" or any(metrics))]


def _line(
    metrics: Sequence[_Metrics | None], name: str, key: str, text: Callable[[Any], str], part: bool = False
) -> MeasureRow:
    """The row of one metric, with a dash for policies without it."""
    return MeasureRow(name, tuple(_ABSENT if not m or m.get(key) is None else text(m[key]) for m in metrics), part)


def _has(metrics: Sequence[_Metrics | None], *keys: str) -> bool:
    return any(result and result.get(key) for result in metrics for key in keys)


def _engines(metrics: Sequence[_Metrics | None]) -> list[str]:
    """The copy engines that some policy has metrics of, in their order."""
    return engines_of(each for each in metrics if each)


def _shared_memories(metrics: Sequence[_Metrics | None]) -> list[str]:
    """The memories besides device and buddy memory that some policy has metrics of, in their order."""
    peaks = _named((each for each in metrics if each), "_peak_bytes")
    return [name for name in peaks if name not in (DEVICE, "run", "buddy")]


def engines_of(metrics: Iterable[_Metrics]) -> list[str]:
    """The copy engines that metrics name, in their order.

    >>> engines_of([{"d2h_utilisation": 0.5, "h2d_utilisation": 0.0, "iteration_ns": 7}])
    ['d2h', 'h2d']
    """
    return _named(metrics, "_utilisation")


def _named(metrics: Iterable[_Metrics], end: str) -> list[str]:
    keys = dict.fromkeys(key for each in metrics for key in each if key.endswith(end))
    return [key.removesuffix(end) for key in keys]


def _iteration(entry: Mapping[str, Any]) -> str:
    return failure(entry) or format_time(entry["metrics"]["iteration_ns"])


def _speed(entries: Sequence[Mapping[str, Any]], metrics: Sequence[_Metrics | None]) -> Iterator[MeasureRow]:
    if not any(metrics):
        return
    yield _line(metrics, "samples/s", "samples_per_s", _number)
    yield _line(metrics, "slowdown", "slowdown", _times)
    if _has(metrics, "speedup"):
        yield _line(metrics, "multi-GPU speedup", "speedup", _times)
        yield _line(metrics, "vs. one GPU alone", "together_ns", _signed, part=True)
    if any(entry.get("steady") is False for entry in entries):
        words: dict[object, str] = {True: "steady", False: "UNSTEADY"}
        yield MeasureRow("state", tuple(words.get(entry.get("steady"), "") for entry in entries))


def _parts(metrics: Sequence[_Metrics | None]) -> Iterator[MeasureRow]:
    stalls = ((f"stalled on {engine_text(name)}", f"stalled_{name}_ns", False) for name in _engines(metrics))
    for name, key, part in (
        ("compute", "compute_ns", False),
        ("overlapped", "overlap_ns", True),
        ("recompute", "recompute_ns", False),
        ("codec", "codec_ns", False),
        *stalls,
        ("stalled on memory", "stalled_memory_ns", False),
        ("stalled on host", "stalled_host_ns", False),
        ("waiting for launches", "stalled_launch_ns", False),
        ("stalled on collectives", "stalled_collectives_ns", False),
        ("stalled, other", "stalled_other_ns", False),
    ):
        if _has(metrics, key):
            cells = (_with_share(m.get(key, 0), m["iteration_ns"]) if m else _ABSENT for m in metrics)
            yield MeasureRow(name, tuple(cells), part)


def _traffic(metrics: Sequence[_Metrics | None]) -> Iterator[MeasureRow]:
    if not any(metrics):
        return
    for link in _engines(metrics):
        src, dst = engine_ends(link) or (link, link)
        yield _line(metrics, f"{src}-to-{dst}", f"{link}_bytes", format_bytes)
        overlapped = (_overlapped(m, link) if m else _ABSENT for m in metrics)
        yield MeasureRow("overlapped", tuple(overlapped), part=True)
        yield _line(metrics, "link utilisation", f"{link}_utilisation", _share, part=True)
    if _has(metrics, "codec_share"):
        yield _line(metrics, "swapping latency", "swapping_ns", format_time)
        yield _line(metrics, "codec share", "codec_share", lambda share: _share(share) if share else _ABSENT, True)


def _memory(metrics: Sequence[_Metrics | None]) -> Iterator[MeasureRow]:
    if not any(metrics):
        return
    yield _line(metrics, "peak device memory", "device_peak_bytes", format_bytes)
    if any(m and m["device_peak_used_bytes"] != m["device_peak_bytes"] for m in metrics):
        yield _line(metrics, "peak with padding", "device_peak_used_bytes", format_bytes, part=True)
    if _has(metrics, "device_reserved_bytes"):
        yield _line(metrics, "peak reserved", "device_reserved_bytes", format_bytes, part=True)
    if _has(metrics, "device_context_bytes"):
        yield _line(metrics, "CUDA context", "device_context_bytes", format_bytes, part=True)
    if any(m and m["fragmentation"] is not None for m in metrics):
        yield _line(metrics, "fragmentation", "fragmentation", _share, part=True)
    yield _line(metrics, "mean device memory", "device_mean_bytes", format_bytes)
    compressed = any(m and "compression_ratio" in m for m in metrics)
    if compressed:
        yield _line(metrics, "compression ratio", "compression_ratio", lambda ratio: f"{ratio:.2f}x", part=True)
        yield _line(metrics, "metadata hit rate", "metadata_hit_rate", _share, part=True)
        yield _line(metrics, "peak buddy memory", "buddy_peak_bytes", format_bytes)
        yield _line(metrics, "overflow entries", "overflow_share", _share, part=True)
        yield _line(metrics, "read by kernels", "buddy_read_bytes", format_bytes, part=True)
        yield _line(metrics, "written", "buddy_written_bytes", format_bytes, part=True)
    for name in _shared_memories(metrics):
        yield _line(metrics, f"peak {name} memory", f"{name}_peak_bytes", format_bytes)


def _energy(metrics: Sequence[_Metrics | None], limits: Sequence[int]) -> Iterator[MeasureRow]:
    if not _has(metrics, "energy_nj"):
        return
    yield _line(metrics, "energy", "energy_nj", format_energy)
    for name, part in (
        ("idle", "idle"),
        ("arithmetic", "arithmetic"),
        ("device memory", "dram"),
        ("link", "link"),
    ):
        key = f"energy_{part}_nj"
        cells = (_share(m[key] / m["energy_nj"]) if m and m.get("energy_nj") else _ABSENT for m in metrics)
        yield MeasureRow(name, tuple(cells), part=True)
    for name, key in (("average power", "average_power_w"), ("peak (20 ms mean)", "peak_power_w")):
        known = [
            m if m and m.get(key) is not None and limit else None for m, limit in zip(metrics, limits, strict=True)
        ]
        text = tuple(format_power(1000 * m[key]) if m else _ABSENT for m in known)
        yield MeasureRow(name, text, part=key == "peak_power_w")
        shares = (_share(m[key] * 1000 / limit) if m else _ABSENT for m, limit in zip(known, limits, strict=True))
        yield MeasureRow("share of limit", tuple(shares), part=True)


def _limit_mw(entry: Mapping[str, Any]) -> int:
    """The power limit of all data-parallel GPUs together, in mW; 0 if not known."""
    power = entry.get("node", {}).get("gpu", {}).get("power")
    return power["limit_mw"] * entry.get("data_parallel", {}).get("gpus", 1) if power else 0


def _with_share(part: int, total: int) -> str:
    return f"{format_time(part)} {part / total:4.0%}" if part else _ABSENT


def _overlapped(metrics: _Metrics, link: str) -> str:
    overlapped, exposed = (metrics.get(f"{link}_{part}_ns", 0) for part in ("overlapped", "exposed"))
    return _share(overlapped / (overlapped + exposed)) if overlapped + exposed else _ABSENT


def _share(value: float) -> str:
    return f"{value:.1%}"


def _times(value: float) -> str:
    return f"{value:.3f}x"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _signed(nanoseconds: int) -> str:
    return f"-{format_time(-nanoseconds)}" if nanoseconds < 0 else format_time(nanoseconds)
