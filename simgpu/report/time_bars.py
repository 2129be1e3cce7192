"""What each policy's time went to, as the parts of a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simgpu.analysis.bars import (
    CODEC,
    PART_LOOKS,
    RECOMPUTE,
    WAIT_COPY_IN,
    WAIT_COPY_OUT,
    WAIT_MEMORY,
    WAIT_OTHER,
    Look,
)
from simgpu.experiments.measures import failure
from simgpu.units import format_time

#: In the order of a bar, by the key of the metrics.
_PARTS: Mapping[str, Look] = {
    "computation_ns": PART_LOOKS["computation"]._replace(label="compute"),
    "overlap_ns": PART_LOOKS["overlap"]._replace(label="compute beside copies"),
    "recompute_ns": RECOMPUTE,
    "codec_ns": CODEC,
    "stalled_copy_out_ns": WAIT_COPY_OUT._replace(label="stalled on copy-out"),
    "stalled_copy_in_ns": WAIT_COPY_IN._replace(label="stalled on copy-in"),
    "stalled_memory_ns": WAIT_MEMORY._replace(label="stalled on memory"),
    "stalled_host_ns": WAIT_OTHER._replace(label="stalled on host"),
    "stalled_other_ns": WAIT_OTHER._replace(label="stalled otherwise"),
}
#: A share is written into its part if the part is so much of the longest bar.
_LEAST_WRITTEN = 0.05


class Part(NamedTuple):
    """A part of a bar. width: of the longest bar, in percent; share: of its own bar, empty where there is no room."""

    look: Look
    time: str
    width: float
    share: str


class Bar(NamedTuple):
    """A policy's bar, as long as its iteration; no parts and `failure` where there is none."""

    label: str
    parts: tuple[Part, ...]
    time: str
    failure: str


def time_bars(entries: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """A bar for each policy of report.json, all on one axis from 0 to the longest iteration.

    >>> from simgpu.report.time_bars import _PARTS
    >>> empty = dict.fromkeys(_PARTS, 0) | {"compute_ns": 75, "stalled_memory_ns": 25, "iteration_ns": 100}
    >>> [bar] = time_bars([{"label": "vdnn", "metrics": empty}])
    >>> [(part.look.label, part.width, part.share) for part in bar.parts]
    [('compute', 75.0, '75%'), ('stalled on memory', 25.0, '25%')]
    """
    longest = max((entry["metrics"]["iteration_ns"] for entry in entries if "metrics" in entry), default=0) or 1
    return [_bar(entry, longest) for entry in entries]


def shown_looks(bars: Sequence[Bar]) -> list[Look]:
    """The looks that some bar has, for a legend."""
    used = {part.look for bar in bars for part in bar.parts}
    return [look for look in _PARTS.values() if look in used]


def _bar(entry: Mapping[str, Any], longest: int) -> Bar:
    if "metrics" not in entry:
        return Bar(entry["label"], (), "", failure(entry))
    metrics = entry["metrics"]
    times = {key: metrics.get(key, 0) for key in _PARTS} | {
        "computation_ns": metrics["compute_ns"] - metrics["overlap_ns"]
    }
    total = metrics["iteration_ns"] or 1
    parts = tuple(
        Part(
            look,
            format_time(times[key]),
            round(100 * times[key] / longest, 4),
            f"{times[key] / total:.0%}" if times[key] >= _LEAST_WRITTEN * longest else "",
        )
        for key, look in _PARTS.items()
        if times[key]
    )
    return Bar(entry["label"], parts, format_time(metrics["iteration_ns"]), "")
