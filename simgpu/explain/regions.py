"""Marked regions of a recording: which part of the program ran between which events, and what it did to memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.allocations import AllocatorMark, MarkStage

#: Regions that are evaluated, the longest first.
MOST_REGIONS = 1000


@dataclass(frozen=True)
class MarkedRegion:
    """A region that the program marked.

    begin, end: numbers of its first event, and of the first one after it; equal for a moment. depth: how many regions
    are around it. peak: most bytes allocated within. before, after: bytes allocated when it began and ended.
    """

    name: str
    begin: int
    end: int
    depth: int
    peak: int
    before: int
    after: int


def marked_regions(
    marks: Sequence[AllocatorMark], allocated: NDArray[np.int64], first: int
) -> tuple[list[MarkedRegion], int]:
    """The regions and moments in order of their first event, of very many the longest; and how many there are.

    allocated: bytes after each event. first: bytes before the first event. A region without a beginning began before
    the recording, one without an end went on after it.

    >>> marks = [AllocatorMark(1, "step", MarkStage.BEGIN), AllocatorMark(3, "step", MarkStage.END)]
    >>> marked_regions(marks, np.array([1, 9, 4, 4]), 0)
    ([MarkedRegion(name='step', begin=1, end=3, depth=0, peak=9, before=1, after=4)], 1)
    """
    spans = _spans(marks, len(allocated))
    longest = sorted(spans, key=lambda span: (span[0] - span[1], span))[:MOST_REGIONS]
    at = np.concatenate([[first], allocated])
    regions, around = [], list[tuple[int, int, str]]()
    for begin, end, name in sorted(longest, key=lambda span: (span[0], -span[1])):
        while around and around[-1][1] < max(end, begin + 1):
            around.pop()
        peak = int(at[begin : end + 1].max())
        regions.append(MarkedRegion(name, begin, end, len(around), peak, int(at[begin]), int(at[end])))
        around.append((begin, end, name))
    return regions, len(spans)


def _spans(marks: Sequence[AllocatorMark], events: int) -> list[tuple[int, int, str]]:
    """First event, end, and name of each region; marks of one name are nested."""
    spans = []
    begun: defaultdict[str, list[int]] = defaultdict(list)
    for mark in marks:
        if mark.stage is MarkStage.BEGIN:
            begun[mark.name].append(mark.event)
        elif mark.stage is MarkStage.END:
            spans.append((begun[mark.name].pop() if begun[mark.name] else 0, mark.event, mark.name))
        else:
            spans.append((mark.event, mark.event, mark.name))
    spans += [(begin, events, name) for name, begins in begun.items() for begin in begins]
    return spans
