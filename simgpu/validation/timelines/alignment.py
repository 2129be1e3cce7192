"""The longest order that two sequences share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[tuple[int, int], ...]:
    """Pairs of places with equal values, ascending in both, as many as there can be (longest common subsequence).

    Of several such, the one that takes pairs earliest. What is equal at the begin and at the end costs nothing; of
    the rest, the time and two bytes of memory go with the product of the lengths.

    >>> aligned("abcd", "abxcd")
    ((0, 0), (1, 1), (2, 3), (3, 4))
    """
    shorter = min(len(first), len(second))
    begin = next((place for place in range(shorter) if first[place] != second[place]), shorter)
    room = shorter - begin
    end = next((back for back in range(room) if first[-1 - back] != second[-1 - back]), room)
    middle = _middle(first[begin : len(first) - end], second[begin : len(second) - end])
    return (
        *((place, place) for place in range(begin)),
        *((begin + one, begin + other) for one, other in middle),
        *((len(first) - back, len(second) - back) for back in range(end, 0, -1)),
    )


def _middle(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    if not first or not second:
        return []
    numbers: dict[Hashable, int] = {}
    one, other = (np.array([numbers.setdefault(value, len(numbers)) for value in row]) for row in (first, second))
    longest = _longest(one, other)
    pairs, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1, j] >= longest[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _longest(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
    """At [i, j], the length of the longest order that one[i:] and other[j:] share."""
    width = np.uint16 if min(len(one), len(other)) < 1 << 16 else np.uint32
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=width)
    for i in range(len(one) - 1, -1, -1):
        behind = np.maximum(table[i + 1, :-1], table[i + 1, 1:] + (other == one[i]))
        table[i, :-1] = np.maximum.accumulate(behind[::-1])[::-1]
    return table
