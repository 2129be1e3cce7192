"""Aligns two recordings of the same events: which event of the one is which of the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Numbers = NDArray[np.int64]

#: Equal events in a row that make an alignment, in the largest piece and in the gaps around it.
_RUN = 4
#: Keys that occur more often than this do not choose an alignment: nearly every one has them.
_OFTEN = 500
#: Gaps within gaps that are aligned too.
_DEPTH = 6
#: Offsets that are compared by time.
_COMPARED = 64


class Alignment(NamedTuple):
    """pairs: (position in the one, position in the other), both ascending. choices: offsets that fit as well."""

    pairs: list[tuple[int, int]]
    choices: int


def aligned(
    left: Sequence[Hashable],
    right: Sequence[Hashable],
    left_ns: Sequence[int] | None = None,
    right_ns: Sequence[int] | None = None,
) -> Alignment:
    """The longest stretches of equal events, in order, and those in the gaps around them.

    left_ns, right_ns: when the events were, by one clock; None if not known. Of several offsets that fit, it takes the
    one nearest in time, or without times the last.

    >>> aligned("xabcdefz", "abcdyyyefabcdefz").pairs
    [(1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)]
    """
    numbers: dict[Hashable, int] = {}
    one = np.array([numbers.setdefault(key, len(numbers)) for key in left], dtype=np.int64)
    other = np.array([numbers.setdefault(key, len(numbers)) for key in right], dtype=np.int64)
    times = (
        None
        if left_ns is None or right_ns is None
        else (np.array(left_ns, dtype=np.int64), np.array(right_ns, dtype=np.int64))
    )
    pairs: list[tuple[int, int]] = []
    choices = 1
    pieces = [(0, len(one), 0, len(other), 0)]
    while pieces:
        low, high, first, last, depth = pieces.pop()
        if high - low < 1 or last - first < 1 or depth > _DEPTH:
            continue
        offset, count = _offset(one[low:high], other[first:last], times, low, first)
        if offset is None:
            continue
        choices = count if depth == 0 else choices
        runs = _runs(one[low:high], other[first:last], offset, _RUN if depth == 0 else 1)
        at, behind = low, first
        for begin, end in runs:
            pairs += [(low + place, first + place + offset) for place in range(begin, end)]
            pieces.append((at, low + begin, behind, first + begin + offset, depth + 1))
            at, behind = low + end, first + end + offset
        if runs:
            pieces.append((at, high, behind, last, depth + 1))
    return Alignment(sorted(pairs), choices)


def _offset(
    one: _Numbers, other: _Numbers, times: tuple[_Numbers, _Numbers] | None, low: int, first: int
) -> tuple[int | None, int]:
    """By how many positions `other` is behind `one` where most events are equal; and how many such offsets fit."""
    votes = np.zeros(len(one) + len(other), dtype=np.int64)
    order = np.argsort(other, kind="stable")
    ordered = other[order]
    for key in np.unique(one):
        begin, end = np.searchsorted(ordered, [key, key + 1])
        mine = np.flatnonzero(one == key) if 0 < end - begin <= _OFTEN else order[:0]
        if 0 < len(mine) <= _OFTEN:
            votes += np.bincount(np.subtract.outer(order[begin:end], mine).ravel() + len(one), minlength=len(votes))
    most = int(votes.max(initial=0))
    if not most:
        return None, 0
    offsets = np.flatnonzero(votes >= most - most // 20) - len(one)
    if times is None or len(offsets) == 1:
        return int(offsets[-1]), len(offsets)
    apart = [_apart(one, other, times, low, first, int(offset)) for offset in offsets[-_COMPARED:]]
    return int(offsets[-_COMPARED:][int(np.argmin(apart))]), len(offsets)


def _apart(
    one: _Numbers, other: _Numbers, times: tuple[_Numbers, _Numbers], low: int, first: int, offset: int
) -> float:
    """Median difference in time of the events that an offset makes equal, ns."""
    places = _equal(one, other, offset)
    return float(np.median(np.abs(times[0][low + places] - times[1][first + places + offset])))


def _equal(one: _Numbers, other: _Numbers, offset: int) -> _Numbers:
    begin, end = max(0, -offset), min(len(one), len(other) - offset)
    places: _Numbers = np.arange(begin, max(end, begin), dtype=np.int64)
    equal: _Numbers = places[one[places] == other[places + offset]]
    return equal


def _runs(one: _Numbers, other: _Numbers, offset: int, least: int) -> list[tuple[int, int]]:
    """Stretches of at least so many equal events in a row, or of all of them, as (begin, end)."""
    places = _equal(one, other, offset)
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    begins, ends = places[np.concatenate([[0], cuts])], places[np.concatenate([cuts - 1, [-1]])] + 1
    least = min(least, len(one))
    return [(int(begin), int(end)) for begin, end in zip(begins, ends, strict=True) if end - begin >= least]
