"""Matches operator calls on the device with the kernels of a trace, in order."""

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
    """Calls on the device, expected operators, and the pairs of both.

    calls: in the order of their starts.
    expected: operators of the trace's kernels, in order.
    pairs: (index of a call, expected position) of operators that do the same work (`same_work`); ascending in both, and
        the maximum number of pairs.
    """

    calls: tuple[Call, ...]
    expected: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]

    @cached_property
    def unmatched_calls(self) -> tuple[int, ...]:
        """Indices of calls without an expected operator."""
        matched = {call for call, _ in self.pairs}
        return tuple(place for place in range(len(self.calls)) if place not in matched)

    @cached_property
    def unmatched_positions(self) -> tuple[int, ...]:
        """Expected positions without a call on the device."""
        matched = {position for _, position in self.pairs}
        return tuple(position for position in range(len(self.expected)) if position not in matched)

    @property
    def is_complete(self) -> bool:
        """Whether calls and expected operators match one to one, in order."""
        return self.divergence is None

    @cached_property
    def divergence(self) -> int | None:
        """The first index at which the two orders differ; None if they are equal."""
        shorter = min(len(self.calls), len(self.expected))
        result = (place for place in range(shorter) if not self._agrees(place))
        return next(result, None if len(self.calls) == len(self.expected) else shorter)

    def _agrees(self, place: int) -> bool:
        return same_work(self.calls[place].op) == same_work(self.expected[place])


def match(spans: Iterable[MeasuredSpan], expected: Sequence[str]) -> Matching:
    """Matches the kernels of the compute stream with the expected operators, in order.

    expected: operators of the kernels of a trace or of a simulated run (recomputations included).

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
    """States whether the device ran the kernels of the trace; if not, how many differ and the first difference.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", "aten::mm", 0, 0, 5)]
    >>> matching_text(match(spans, ["aten::mm"]))
    'All 1 kernels match a call on the device, in order.'
    >>> for sentence in matching_text(match(spans, ["aten::zero_", "aten::mm"])).split(". "):
    ...     print(sentence)
    1 of 2 kernels have no call on the device, and 0 of 1 calls have no kernel
    The first difference is at position 0: the device ran aten::mm, expected aten::zero_.
    """
    position, calls, expected = matching.divergence, matching.calls, matching.expected
    if position is None:
        return f"All {len(expected)} kernels match a call on the device, in order."
    ran = calls[position].op if position < len(calls) else "nothing more"
    wanted = expected[position] if position < len(expected) else "nothing more"
    return (
        f"{len(matching.unmatched_positions)} of {len(expected)} kernels have no call on the device, and "
        f"{len(matching.unmatched_calls)} of {len(calls)} calls have no kernel. The first difference is at position "
        f"{position}: the device ran {ran}, expected {wanted}."
    )


class Call(NamedTuple):
    """One operator call on the device, from its first kernel's start to its last kernel's end (ns), gaps included.

    number: the `MeasuredSpan.call` of its spans.
    name: of its first kernel.
    """

    number: int
    op: str
    name: str
    start_ns: int
    end_ns: int


def calls_of(spans: Iterable[MeasuredSpan]) -> tuple[Call, ...]:
    """The calls of a timeline in the order of their starts.

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
    """The operator's name without the in-place suffix; equal for operators that do the same work.

    PyTorch works in place where it can, for example to accumulate gradients, but not while a recorder intercepts
    operators. The kernel is the same.

    >>> same_work("aten::add_") == same_work("aten::add")
    True
    """
    return op.removesuffix("_")


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[tuple[int, int], ...]:
    """Index pairs of a longest common subsequence; with the earliest pairs if there are several.

    A common prefix and suffix cost little; for the rest, time and memory (two bytes) grow with the product of the
    lengths.

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
    """A table whose [i, j] is the length of the longest common subsequence of one[i:] and other[j:]."""
    width = np.uint16 if min(len(one), len(other)) < 1 << 16 else np.uint32
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=width)
    for i in range(len(one) - 1, -1, -1):
        behind = np.maximum(table[i + 1, :-1], table[i + 1, 1:] + (other == one[i]))
        table[i, :-1] = np.maximum.accumulate(behind[::-1])[::-1]
    return table
