"""`SizeSearch`: the largest batch, length or micro-batch of a candidate that fits, in few runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simgpu.errors import InputError
from simgpu.experiments.fit.growth import Growth
from simgpu.experiments.fit.rows import FitRun
from simgpu.planning.search.bisection import largest_by_guess

#: A size is at most so many times larger than the largest one that is known.
_FURTHEST = 512


@dataclass(slots=True)
class SizeSearch:
    """A search, in which the largest size that fits and the next one are both tried.

    places: the sizes, ascending. usable: bytes that a run may reserve. run: of the candidate at a size. growth: by its
    plan at a size. first: the size that is tried first where growth is not known. runs: by size. peaks: by size, of
    runs, or what a plan shows that every run needs, in bytes.
    """

    places: Sequence[int]
    usable: int
    run: Callable[[int], FitRun]
    first: int
    growth: Callable[[int], Growth] | None = None
    peaks: dict[int, int] = field(default_factory=dict)
    runs: dict[int, FitRun] = field(default_factory=dict)
    _grown: dict[int, Growth] = field(default_factory=dict)

    def largest(self) -> FitRun:
        """The run at the largest size that fits; at the smallest where none does."""
        if self.growth is not None:
            try:
                self._growth_at(self.places[0])
            except InputError:  # the smallest size may be too small for an option
                self.growth = None
        size = self.places[largest_by_guess(self._fits, len(self.places) - 1, self._guess) or 0]
        return self.runs[size] if size in self.runs else self.run(size)

    def _fits(self, place: int) -> bool:
        size = self.places[place]
        if place and self._is_refused(size):  # of the smallest size, the run is the answer all the same
            return False
        run = self.runs[size] = self.run(size)
        self.peaks[size] = run.peak
        return run.fits

    def _is_refused(self, size: int) -> bool:
        """Whether the plan at a size shows that no run of it fits, so that nothing has to be simulated."""
        if self.growth is None or self._growth_at(size).least <= self.usable:
            return False
        self.peaks[size] = self._growth_at(size).least
        return True

    def _growth_at(self, size: int) -> Growth:
        assert self.growth is not None
        if size not in self._grown:
            self._grown[size] = self.growth(size)
        return self._grown[size]

    def _guess(self, fit: int, over: int) -> int:
        """The place of the size at which the peak is likely to reach what is usable."""
        size = self._by_growth() if self.growth is not None else self._by_runs()
        return sum(each <= size for each in self.places) - 1

    def _by_growth(self) -> int:
        """From the known size whose peak is nearest to what is usable, or from the smallest one, which is planned."""
        near = min(self.peaks, key=lambda size: abs(self.peaks[size] - self.usable), default=self.places[0])
        growth = self._growth_at(near)
        off = growth.peak(near) - self.peaks[near] if self.peaks else 0
        largest, furthest = growth.largest(self.usable + off), _FURTHEST * max(self.peaks, default=near)
        return furthest if largest is None else min(largest, furthest)

    def _by_runs(self) -> int:
        return _where(self.runs, self.usable) if self.runs else self.first


def _where(known: Mapping[int, FitRun], budget: int) -> int:
    """The size at which the peak is likely to reach the budget: on the line through the two nearest peaks.

    With one known run, through what it needs at any size: weights, gradients and optimizer state.
    """
    points = sorted((abs(run.peak - budget), size, run.peak) for size, run in known.items())[:2]
    (_, x, y), *others = points
    other_x, other_y = others[0][1:] if others else (0, known[x].persistent.total)
    most = _FURTHEST * max(known)
    if (y - other_y) * (x - other_x) <= 0:
        return most if y < budget else x // 2
    return max(min(x + (budget - y) * (x - other_x) // (y - other_y), most), 0)
