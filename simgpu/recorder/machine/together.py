"""Measures the rates of copies of one GPU, and of several GPUs at the same time, in each direction and in both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations
from statistics import median_low
from typing import Protocol

from simgpu.recorder.machine.bandwidth import CopyDirection
from simgpu.recorder.machine.shared_capacities import MODES, Mode, Rates, groups, pairs_fall_short, short_modes
from simgpu.units import TIME_UNITS

#: Copies of each stream that are run first, while others begin, and are not counted.
_WARM_UP = 3


class CopyGroup(Protocol):
    """GPUs, numbered from 0, whose copies can be timed while others copy too."""

    @property
    def count(self) -> int:
        """Number of GPUs."""

    def times_together(
        self, gpus: Sequence[int], directions: Sequence[CopyDirection], size: int, copies: int
    ) -> Sequence[Sequence[int]]:
        """Returns the nanoseconds of consecutive copies of `size` bytes, by GPU and then by direction.

        Each GPU copies in each of the directions at the same time; all of them begin at the same time.
        """


def measure_together(group: CopyGroup, size: int, repetitions: int) -> Rates:
    """Measures a group's rates in bytes per second: each GPU alone, and all of them at the same time.

    Where all of them together are slower than each alone, also each pair, all but one where no pair is slower, and
    those GPUs that share something without the others. `repetitions`: copies of each GPU in each direction.
    """
    rates: Rates = {mode: {} for mode in MODES}

    def measure(gpus: Sequence[int], modes: Sequence[Mode]) -> None:
        for mode in modes:
            if (key := tuple(gpus)) not in rates[mode]:
                times = group.times_together(gpus, mode.directions, size, _WARM_UP + repetitions)
                streams, ways = _rates(times, size), len(mode.directions)
                rates[mode][key] = tuple(sum(streams[start : start + ways]) for start in range(0, len(streams), ways))

    everyone = range(group.count)
    for gpu in everyone:
        measure([gpu], MODES)
    if group.count == 1:
        return rates
    measure(everyone, MODES)
    short = short_modes(rates, tuple(everyone))
    if short and group.count > 2:
        for pair in combinations(everyone, 2):
            measure(pair, short)
        if not groups(rates) and not pairs_fall_short(rates):
            for gpu in everyone:
                measure([other for other in everyone if other != gpu], short)
    for some in groups(rates):
        measure(some, MODES)
    return rates


def _rates(times: Sequence[Sequence[int]], size: int) -> list[int]:
    """Bytes per second of each stream of copies while all of them run: the median of copies that end before any stream
    is done, after the warm-up.

    The second of these streams has the link to itself from 400 ns on, and is faster then:

    >>> _rates([[100] * 4, [200, 200, 100, 100]], size=100)
    [1000000000, 500000000]
    """
    end = min(map(sum, times))
    result = []
    for each in times:
        counted = [time for time, at in zip(each, accumulate(each), strict=True) if at <= end]
        typical = median_low(counted[_WARM_UP:] or counted or each[:1])
        result.append(size * TIME_UNITS["s"] // max(1, typical))
    return result
