"""Counts of memory-entries by size, brought to another number of entries.

Lives here: `scaled_counts`. Does not live here: where counts come from, or what is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence


def scaled_counts(counts: Sequence[int], entries: int) -> tuple[int, ...]:
    """As many entries in the same shares, by largest remainder; ties go to the larger size.

    The counts as they are if they are of that many; all of the largest size where there are none.

    >>> scaled_counts((1, 0, 2), 10), scaled_counts((1, 1), 3), scaled_counts((0, 0), 4)
    ((3, 0, 7), (1, 2), (0, 4))
    """
    whole = sum(counts)
    if whole == entries:
        return tuple(counts)
    if whole == 0:
        return (*(0 for _ in counts[1:]), entries)
    shares = [divmod(count * entries, whole) for count in counts]
    found = [share for share, _ in shares]
    left = entries - sum(found)
    for place in sorted(range(len(found)), key=lambda place: (-shares[place][1], -place))[:left]:
        found[place] += 1
    return tuple(found)
