"""Positions of ratios on small scales around 1 (the published number), with bands of 10% and 25%."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import NamedTuple

#: A scale covers at least this factor around 1.
_LEAST = 1.45
#: Free space at both ends, as a share of the scale's length.
_SPARE = 0.06


class Place(NamedTuple):
    """A position on a scale.

    at: distance from the left end, percent.
    beyond: ``low`` or ``high`` if the ratio is outside the scale and therefore drawn at its end; else empty.
    """

    at: float
    beyond: str = ""


class Band(NamedTuple):
    """A band of a scale: left end and width, percent."""

    left: float
    width: float


class Scale(NamedTuple):
    """Ratios from `low` to `high` on a logarithmic axis: 2 is as far from 1 as 0.5."""

    low: float
    high: float

    def place(self, ratio: float | None) -> Place | None:
        """The position of a ratio; None if there is no ratio or it is not positive.

        >>> Scale(0.5, 2.0).place(1.0), Scale(0.5, 2.0).place(3.0)
        (Place(at=50.0, beyond=''), Place(at=100.0, beyond='high'))
        """
        if ratio is None or ratio <= 0:
            return None
        at = 100 * log(ratio / self.low) / log(self.high / self.low)
        return Place(round(min(max(at, 0.0), 100.0), 2), "low" if at < 0 else "high" if at > 100 else "")

    def band(self, share: float) -> Band:
        """The band from ``1 - share`` to ``1 + share``."""
        left, right = self.place(1 - share), self.place(1 + share)
        assert left is not None and right is not None
        return Band(left.at, round(right.at - left.at, 2))


#: The common scale of all claims.
COMMON = Scale(0.5, 2.0)


def scale_of(ratios: Iterable[float | None]) -> Scale | None:
    """A scale that covers all ratios and 1; None without ratios.

    >>> scale = scale_of([0.5, None, 0.9])
    >>> scale.place(0.5).beyond, scale.place(1.25).beyond, scale_of([None])
    ('', '', None)
    """
    known = [ratio for ratio in ratios if ratio is not None and ratio > 0]
    if not known:
        return None
    low, high = min(*known, 1 / _LEAST), max(*known, _LEAST)
    spare = (high / low) ** _SPARE
    return Scale(low / spare, high * spare)
