"""Metrics as text for people: the comparison of policies in lines of at most 80 columns.

Lives here: which numbers stand side by side, and how they are rounded. Does not live here: the numbers
themselves (`simgpu.analysis.metrics`), or drawing on a terminal (the command line's).
"""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.analysis.metrics import Metrics
from simgpu.units import format_bytes, format_time

#: Headings of `comparison_rows`, in order.
COMPARISON_HEADINGS = ("policy", "time", "samples/s", "slowdown", "stalled", "moved", "peak", "note")

_ABSENT = "-"


def comparison_rows(results: Iterable[tuple[str, Metrics | None, str]]) -> list[tuple[str, ...]]:
    """One row of texts per (policy, metrics, note), under `COMPARISON_HEADINGS`; dashes where a run gave no metrics.

    time: of the iteration. slowdown: against ideal. stalled: share of the iteration without running compute.
    moved: GB (1e9 bytes) over the link, both ways together. peak: live device memory in the iteration.

    >>> comparison_rows([("none", None, "out of memory")])
    [('none', '-', '-', '-', '-', '-', '-', 'out of memory')]
    """
    return [
        (policy, *(_cells(metrics) if metrics else [_ABSENT] * (len(COMPARISON_HEADINGS) - 2)), note)
        for policy, metrics, note in results
    ]


def _cells(metrics: Metrics) -> list[str]:
    stalled = metrics.breakdown.stalled / metrics.iteration_ns if metrics.iteration_ns else 0.0
    return [
        format_time(metrics.iteration_ns),
        _number(metrics.samples_per_s),
        f"{metrics.slowdown:.3f}x",
        f"{stalled:.1%}",
        f"{(metrics.bytes_out + metrics.bytes_in) / 1e9:.2f} GB",
        format_bytes(metrics.device_peak_bytes),
    ]


def _number(value: float) -> str:
    """At least four digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
