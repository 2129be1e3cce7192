"""Keeping a CUDA stream busy for a given time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

#: Cycles of the loops that are timed, from what takes microseconds to what takes milliseconds.
_CYCLES = (0, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
#: Loops one behind the other in each timing, so that what lies between two of them counts as part of them.
_IN_A_ROW = 10
_ROUNDS = 5
#: Rounds of the longest that come first and do not count, some half a second: an idle GPU takes so long to clock up.
_WARM_UP = 30


@dataclass(frozen=True, slots=True)
class SpinRate:
    """How long a spinning kernel takes, with what lies between it and the next: ``fixed_ns + cycles / cycles_per_ns``.

    A least squares fit of times that were measured; the device's clock must not change after it.

    >>> SpinRate(fixed_ns=2000.0, cycles_per_ns=1.5).cycles(10_000), SpinRate(2000.0, 1.5).cycles(500)
    (12000, 0)
    """

    fixed_ns: float
    cycles_per_ns: float

    def cycles(self, ns: int) -> int:
        """How many to ask for, so that it takes so many nanoseconds; 0 where even an empty kernel takes longer."""
        return max(0, round((ns - self.fixed_ns) * self.cycles_per_ns))


def calibrate(spin_ns: Callable[[int, int], int]) -> SpinRate:
    """Measure the rate. spin_ns: nanoseconds that the device takes for kernels of so many cycles, so many in a row.

    Rounds that do not count come first, and then the longest, so that the clock is up when the others are timed. Of
    several rounds the median counts.

    >>> calibrate(lambda cycles, count: count * (2000 + cycles // 2))
    SpinRate(fixed_ns=2000.0, cycles_per_ns=2.0)
    """
    for _ in range(_WARM_UP):
        spin_ns(max(_CYCLES), _IN_A_ROW)
    points = []
    for cycles in sorted(_CYCLES, reverse=True):
        rounds = [spin_ns(cycles, _IN_A_ROW) for _ in range(_ROUNDS)]
        points.append((cycles, median(rounds) / _IN_A_ROW))
    cycles_of, ns_of = np.array(points, dtype=float).T
    weights = 1 / np.maximum(ns_of, 1.0)  # errors count relative to the length, else the longest alone would
    slope, fixed = np.polyfit(cycles_of, ns_of, 1, w=weights)
    return SpinRate(round(float(fixed), 3), round(1 / float(slope), 6))
