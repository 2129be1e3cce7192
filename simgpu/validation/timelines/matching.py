"""Which call of an operator on the device is which kernel that was expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from simgpu.validation.measured import MeasuredSpan
from simgpu.validation.timelines.alignment import aligned
from simgpu.validation.timelines.calls import Call, calls_of, same_work


@dataclass(frozen=True)
class Matching:
    """Calls of the device in the order they began, the operators expected, and which is which.

    pairs: (place among the calls, expected position), ascending in both, of operators that do the same work
    (`same_work`); as many as there can be.
    """

    calls: tuple[Call, ...]
    expected: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]

    @cached_property
    def unmatched_calls(self) -> tuple[int, ...]:
        """Places of calls that nobody expected."""
        matched = {call for call, _ in self.pairs}
        return tuple(place for place in range(len(self.calls)) if place not in matched)

    @cached_property
    def unmatched_positions(self) -> tuple[int, ...]:
        """Expected positions for which the device has no call."""
        matched = {position for _, position in self.pairs}
        return tuple(position for position in range(len(self.expected)) if position not in matched)

    @property
    def is_complete(self) -> bool:
        """Whether each call is one expected operator, in order, and the other way round."""
        return self.parting is None

    @cached_property
    def parting(self) -> int | None:
        """The first place at which the two orders differ; None where they do not."""
        shorter = min(len(self.calls), len(self.expected))
        found = (place for place in range(shorter) if not self._agrees(place))
        return next(found, None if len(self.calls) == len(self.expected) else shorter)

    def _agrees(self, place: int) -> bool:
        return same_work(self.calls[place].op) == same_work(self.expected[place])


def match(spans: Iterable[MeasuredSpan], expected: Sequence[str]) -> Matching:
    """What the compute stream did beside the operators expected of it, in order.

    expected: operators of a trace's kernels, or of a simulated run's, recomputations among them.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> ops = ("aten::mm", "aten::copy_", "aten::relu")
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", op, n, n, n + 1) for n, op in enumerate(ops)]
    >>> found = match(spans, ["aten::mm", "aten::relu", "aten::sum"])
    >>> found.pairs, found.unmatched_calls, found.unmatched_positions, found.parting
    (((0, 0), (2, 1)), (1,), (2,), 1)
    """
    calls = calls_of(spans)
    pairs = aligned([same_work(call.op) for call in calls], [same_work(op) for op in expected])
    return Matching(calls, tuple(expected), pairs)
