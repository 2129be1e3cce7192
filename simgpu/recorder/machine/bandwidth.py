"""Computes copy bandwidth and latency of a device from measured copies of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Protocol

import numpy as np

from simgpu.units import BYTE_UNITS, TIME_UNITS

#: Default copy sizes in bytes: from latency-bound to bandwidth-bound.
DEFAULT_SIZES = tuple(2**power * BYTE_UNITS["KiB"] for power in range(6, 19, 2))


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """Properties that a GPU reports: memory in bytes; copy_engines is None if the driver does not report it.

    context_memory: bytes in use after the CUDA context was created, without PyTorch's segments, but with the memory of
    other programs on the GPU; None if not measured. amd: an AMD GPU's architecture by AMD's name, such as gfx942; its
    `capability` is no compute capability of CUDA.
    """

    name: str
    memory: int
    multiprocessors: int
    capability: tuple[int, int]
    copy_engines: int | None
    reported_by: str
    context_memory: int | None = None
    amd: str = ""


class CopyDirection(StrEnum):
    """Source and target of a copy."""

    OUT = "device to host"
    IN = "host to device"
    WITHIN = "device to device"
    PAGEABLE_OUT = "device to pageable host"
    PAGEABLE_IN = "pageable host to device"


class CopyDevice(Protocol):
    """A device whose copies can be timed."""

    def copy_times(self, way: CopyDirection, size: int, repetitions: int) -> Sequence[int]:
        """Returns the nanoseconds of each of `repetitions` consecutive copies of `size` bytes, after warm-up copies."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured copy bandwidths and latency of a device.

    d2h, h2d: bytes per second of the largest copies between device and host.
    latency_ns: latency of a copy in nanoseconds, the same in both directions.
    within: bytes read plus bytes written per second by the largest copy inside the device.
    """

    d2h: int
    h2d: int
    latency_ns: int
    within: int


def measure(device: CopyDevice, sizes: Sequence[int], repetitions: int) -> Speeds:
    """Measures the speeds of a device, from the median of `repetitions` copies of each size in each direction."""
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


def measure_pageable(device: CopyDevice, size: int, repetitions: int) -> int:
    """Bytes per second of copies of `size` bytes of host memory that is not pinned, as much out as back."""
    both = (CopyDirection.PAGEABLE_OUT, CopyDirection.PAGEABLE_IN)
    return _per_second(2 * size, sum(max(1, median_low(device.copy_times(way, size, repetitions))) for way in both))


def fit_latency(times: Mapping[CopyDirection, Mapping[int, int]]) -> int:
    """Fits ``time = latency + size / bandwidth`` to measured times; returns the latency in nanoseconds, at least 0.

    times: nanoseconds by direction and size. Least squares over both directions, with one common latency and one
    bandwidth per direction. Residuals are relative to the time, so that large copies do not dominate the small ones,
    which determine the latency.

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
