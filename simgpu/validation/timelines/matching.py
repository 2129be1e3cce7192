"""Matches the calls of operators on the device with the kernels of a trace, in order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.validation.measured import MeasuredKind, MeasuredSpan


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
        return self.divergence is None

    @cached_property
    def divergence(self) -> int | None:
        """The first place at which the two orders differ; None where they do not."""
        shorter = min(len(self.calls), len(self.expected))
        result = (place for place in range(shorter) if not self._agrees(place))
        return next(result, None if len(self.calls) == len(self.expected) else shorter)

    def _agrees(self, place: int) -> bool:
        return same_work(self.calls[place].op) == same_work(self.expected[place])


def match(spans: Iterable[MeasuredSpan], expected: Sequence[str]) -> Matching:
    """What the compute stream did next to the operators expected of it, in order.

    expected: operators of a trace's kernels, or of a simulated run's, recomputations among them.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> ops = ("aten::mm", "aten::copy_", "aten::relu")
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", op, n, n, n + 1) for n, op in enumerate(ops)]
    >>> result = match(spans, ["aten::mm", "aten::relu", "aten::sum"])
    >>> result.pairs, result.unmatched_calls, result.unmatched_positions, result.divergence
    (((0, 0), (2, 1)), (1,), (2,), 1)
    """
    calls = calls_of(spans)
    pairs = aligned([same_work(call.op) for call in calls], [same_work(op) for op in expected])
    return Matching(calls, tuple(expected), pairs)


def matching_text(matching: Matching) -> str:
    """Whether the device ran what the trace has, and if not, how much differs and where first.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", "aten::mm", 0, 0, 5)]
    >>> matching_text(match(spans, ["aten::mm"]))
    'Each of 1 kernels has its call on the device, in order.'
    >>> for sentence in matching_text(match(spans, ["aten::zero_", "aten::mm"])).split(". "):
    ...     print(sentence)
    1 of 2 kernels have no call on the device, and 0 of 1 calls no kernel
    They part at place 0: the device ran aten::mm, expected was aten::zero_.
    """
    place, calls, expected = matching.divergence, matching.calls, matching.expected
    if place is None:
        return f"Each of {len(expected)} kernels has its call on the device, in order."
    ran = calls[place].op if place < len(calls) else "nothing more"
    wanted = expected[place] if place < len(expected) else "nothing more"
    return (
        f"{len(matching.unmatched_positions)} of {len(expected)} kernels have no call on the device, and "
        f"{len(matching.unmatched_calls)} of {len(calls)} calls no kernel. They part at place {place}: the device ran "
        f"{ran}, expected was {wanted}."
    )


class Call(NamedTuple):
    """One call of an operator on the device: from its first kernel's start to its last one's end, ns.

    number: as its spans have it. name: of its first kernel. What the device waits for inside a call belongs to it.
    """

    number: int
    op: str
    name: str
    start_ns: int
    end_ns: int


def calls_of(spans: Iterable[MeasuredSpan]) -> tuple[Call, ...]:
    """The calls of a timeline in the order they began.

    >>> kernel = MeasuredKind.KERNEL
    >>> spans = [MeasuredSpan("compute", kernel, name, "aten::mm", 0, at, at + 2) for name, at in (("a", 0), ("b", 5))]
    >>> calls_of(spans)
    (Call(number=0, op='aten::mm', name='a', start_ns=0, end_ns=7),)
    """
    calls: dict[int, Call] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        if span.kind is not MeasuredKind.KERNEL:
            continue
        call = calls.setdefault(span.call, Call(span.call, span.op, span.name, span.start_ns, span.end_ns))
        calls[span.call] = call._replace(end_ns=max(call.end_ns, span.end_ns))
    return tuple(calls.values())


def same_work(op: str) -> str:
    """What is equal of two operators that do the same work: the name but for the mark of working in place.

    PyTorch works in place where it can, for example when it adds gradients up, and does not while operators are
    intercepted, as a recorder does. The kernel is the same.

    >>> same_work("aten::add_") == same_work("aten::add")
    True
    """
    return op.removesuffix("_")


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[tuple[int, int], ...]:
    """Pairs of places with equal values, ascending in both, as many as there can be (longest common subsequence).

    Of several such, the one that takes pairs earliest. What is equal at the begin and at the end costs nothing; of
    the rest, the time and two bytes of memory go with the product of the lengths.

    >>> aligned("abcd", "abxcd")
    ((0, 0), (1, 1), (2, 3), (3, 4))
    """
    shorter = min(len(first), len(second))
    begin = next((place for place in range(shorter) if first[place] != second[place]), shorter)
    free = shorter - begin
    end = next((back for back in range(free) if first[-1 - back] != second[-1 - back]), free)
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
