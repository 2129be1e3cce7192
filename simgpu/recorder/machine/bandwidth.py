"""Copy bandwidth and latency of a device, from measured copies of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Protocol

import numpy as np

from simgpu.units import BYTE_UNITS, TIME_UNITS

#: Sizes that are copied: from where the latency shows to where it does not.
DEFAULT_SIZES = tuple(2**power * BYTE_UNITS["KiB"] for power in range(6, 19, 2))


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """What a GPU tells about itself: memory in bytes; copy_engines None where the driver does not say."""

    name: str
    memory: int
    multiprocessors: int
    capability: tuple[int, int]
    copy_engines: int | None
    reported_by: str


class CopyDirection(StrEnum):
    """From where to where a copy goes."""

    OUT = "device to host"
    IN = "host to device"
    WITHIN = "device to device"


class CopyDevice(Protocol):
    """A device that can be asked to copy."""

    def copy_times(self, way: CopyDirection, size: int, repetitions: int) -> Sequence[int]:
        """Nanoseconds of each of several copies of `size` bytes, one after the other, after copies to warm up."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What copies of a device came to: bytes per second, and nanoseconds before the first byte of a copy.

    d2h, h2d: of the largest copies between device and host. latency_ns: shared by both ways. within: bytes read plus
    bytes written per second by the largest copy inside the device.
    """

    d2h: int
    h2d: int
    latency_ns: int
    within: int


def measure(device: CopyDevice, sizes: Sequence[int], repetitions: int) -> Speeds:
    """The speeds of a device, from the median of `repetitions` copies of each size, each way."""
    medians = {
        way: {size: max(1, median_low(device.copy_times(way, size, repetitions))) for size in sorted(set(sizes))}
        for way in (CopyDirection.OUT, CopyDirection.IN)
    }
    largest = max(sizes)
    within = max(1, median_low(device.copy_times(CopyDirection.WITHIN, largest, repetitions)))
    return Speeds(
        d2h=_per_second(largest, medians[CopyDirection.OUT][largest]),
        h2d=_per_second(largest, medians[CopyDirection.IN][largest]),
        latency_ns=fit_latency(medians),
        within=_per_second(2 * largest, within),
    )


def fit_latency(times: Mapping[CopyDirection, Mapping[int, int]]) -> int:
    """The latency, in nanoseconds, of the line ``time = latency + size / bandwidth`` through measured times.

    times: nanoseconds by way and size. Least squares over all ways together, with one latency for all and one
    bandwidth for each. Residuals count in proportion to the time, so that the largest copies do not drown the small
    ones, which alone tell the latency. 0 where the line starts below that.

    >>> offload, prefetch = {10_000: 6_000, 10_000_000: 1_005_000}, {10_000: 7_000, 10_000_000: 2_005_000}
    >>> fit_latency({CopyDirection.OUT: offload, CopyDirection.IN: prefetch})
    5000
    """
    ways = list(times)
    points = [(way, size, time) for way in ways for size, time in times[way].items()]
    largest = max(size for _, size, _ in points)
    rows = np.array([[1.0, *(size / largest * (way is other) for other in ways)] for way, size, _ in points])
    weights = 1.0 / np.array([time for _, _, time in points], dtype=float)
    solution, *_ = np.linalg.lstsq(rows * weights[:, None], np.ones(len(points)), rcond=None)
    return max(0, round(float(solution[0])))


def _per_second(size: int, time_ns: int) -> int:
    return size * TIME_UNITS["s"] // time_ns
