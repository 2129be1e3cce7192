"""Streams of the recording: numbered from 0, and each in order.

Kernels on several streams may overlap: that is what streams are for. On one stream a kernel ends after the one before
it has ended; what overlaps there comes from recordings that were merged. Two things are allowed: times in whole
microseconds are cut off, so two of them may seem to overlap by up to 2 us; and with programmatic dependent launch, a
kernel begins while the tail of the one before it still runs. Since the trace lets kernels of a stream run one after
another, such overlap is counted twice, and more than a twentieth of it is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers.kineto.profile import Kernel
from simgpu.units import format_time

#: One part in so many of a stream's time may overlap.
_PARTS = 20

_MERGED = "record each process and GPU by itself and import one of them"


def number_streams(kernels: Sequence[Kernel], path: Path) -> tuple[dict[int, int], int]:
    """Streams in the order in which they first appear, and how long kernels overlap on their own stream (ns).

    kernels: in the order they ran. Raises `InputError` naming two that overlap on one stream and cannot.
    """
    numbers: dict[int, int] = {}
    by_stream: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        numbers.setdefault(kernel.stream, len(numbers))
        by_stream[kernel.stream].append(kernel)
    return numbers, sum(_overlap(row, path) for row in by_stream.values())


def _overlap(row: Sequence[Kernel], path: Path) -> int:
    """How long kernels of one stream overlap, ns."""
    grain = 2000 if all(kernel.start % 1000 == 0 and kernel.duration % 1000 == 0 for kernel in row) else 0
    total, worst = 0, (0, row[0], row[0])
    before = row[0]
    for kernel in row[1:]:
        shared = min(before.end, kernel.end) - kernel.start
        if shared > grain:
            total += shared
            worst = max(worst, (shared, before, kernel), key=lambda pair: pair[0])
        if kernel.end + grain < before.end:
            raise _refusal(path, before, kernel, f"the second ends {format_time(before.end - kernel.end)} before it")
        before = kernel
    if total * _PARTS > sum(kernel.duration for kernel in row):
        raise _refusal(path, worst[1], worst[2], f"kernels of the stream overlap by {format_time(total)} in all")
    return total


def _refusal(path: Path, first: Kernel, second: Kernel, why: str) -> InputError:
    place = f"event {second.number} ({second.name[:60]})"
    what = f"overlaps event {first.number} ({first.name[:60]}) on stream {first.stream}: {why}"
    return InputError.single(path, place, what, _MERGED)
