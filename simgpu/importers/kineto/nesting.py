"""Which interval of a thread a moment lies in, innermost first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from simgpu.importers.kineto.profile import Thread


class Interval(Protocol):
    """A stretch of a thread, in ns."""

    @property
    def thread(self) -> Thread: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def parents(intervals: Sequence[Interval]) -> list[int]:
    """For each interval the position of the innermost one around it, -1 where none.

    >>> from simgpu.importers.kineto.profile import Span
    >>> parents([Span((1, 1), 0, 9, "outer"), Span((1, 1), 2, 4, "inner"), Span((1, 2), 2, 4, "elsewhere")])
    [-1, 0, -1]
    """
    found = [-1] * len(intervals)
    for order in _by_thread(intervals).values():
        stack: list[int] = []
        for position in order:
            _close(stack, intervals, intervals[position].start, intervals[position].end)
            found[position] = stack[-1] if stack else -1
            stack.append(position)
    return found


def innermost(intervals: Sequence[Interval], moments: Sequence[tuple[Thread, int]]) -> list[int]:
    """For each moment (thread, ns) the position of the innermost interval around it, -1 where none.

    A moment at which one interval ends and the next begins belongs to the next.

    >>> from simgpu.importers.kineto.profile import Span
    >>> innermost([Span((1, 1), 0, 4, "a"), Span((1, 1), 4, 9, "b")], [((1, 1), 4), ((1, 1), 2), ((1, 1), 10)])
    [1, 0, -1]
    """
    found = [-1] * len(moments)
    asked: dict[Thread, list[int]] = defaultdict(list)
    for position, (thread, _) in enumerate(moments):
        asked[thread].append(position)
    ordered = _by_thread(intervals)
    for thread, questions in asked.items():
        order, opened, stack = ordered.get(thread, []), 0, list[int]()
        for question in sorted(questions, key=lambda position: moments[position][1]):
            at = moments[question][1]
            while opened < len(order) and intervals[order[opened]].start <= at:
                interval = intervals[order[opened]]
                _close(stack, intervals, interval.start, interval.end)
                stack.append(order[opened])
                opened += 1
            while stack and intervals[stack[-1]].end < at:
                stack.pop()
            found[question] = stack[-1] if stack else -1
    return found


def _by_thread(intervals: Sequence[Interval]) -> dict[Thread, list[int]]:
    """Positions by thread, those that begin first and last longest first."""
    found: dict[Thread, list[int]] = defaultdict(list)
    for position, interval in enumerate(intervals):
        found[interval.thread].append(position)
    for order in found.values():
        order.sort(key=lambda position: (intervals[position].start, -intervals[position].end))
    return found


def _close(stack: list[int], intervals: Sequence[Interval], start: int, end: int) -> None:
    """Drop intervals that are over when one from start to end begins."""
    while stack:
        top = intervals[stack[-1]].end
        if top > start or (top == start and end <= start):
            return
        stack.pop()
