"""How long each expected kernel holds up its step, from what the device did in one.

A kernel's time is that of its call on the device and the gap behind it, until the next call that was expected begins.
A call that nobody expected is part of such a gap. What lies before the first expected call is part of the last one's
gap: steps follow one another. Where calls overlap, the common time is that of the one that began first.

The step whose timeline is known ran while it was watched, which makes the gaps longer. So the calls keep their times,
and the gaps are scaled until the whole is as long as a step that nobody watched; where even the calls alone are longer
than that, they are scaled and there are no gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from simgpu.errors import InputError
from simgpu.validation.measured import MeasuredSpan
from simgpu.validation.timelines.matching import Matching


def durations(spans: Iterable[MeasuredSpan], matching: Matching, step_ns: int) -> tuple[int, ...]:
    """Nanoseconds of each expected kernel, in order, that add up to `step_ns`; 0 for one without a call.

    spans: the timeline that was matched. step_ns: a step that nobody watched. Which kernels have no call, tells
    `Matching.unmatched_positions`. Raises `InputError` where none has one.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> from simgpu.validation.timelines.matching import match
    >>> ops = (("aten::mm", 0, 10), ("aten::relu", 14, 20), ("aten::sum", 26, 30))
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", op, n, *at) for n, (op, *at) in enumerate(ops)]
    >>> durations(spans, match(spans, [op for op, *_ in ops]), 25)  # 20 of calls, gaps of 4 and 6 become 2 and 3
    (12, 9, 4)
    """
    if not matching.pairs:
        what = "no call of an operator on the device is a kernel of the trace"
        raise InputError.single("", "kernel timeline", what, "record trace and timeline of the same model and device")
    busy, gaps = _busy_and_gaps(tuple(spans), matching)
    rest = step_ns - sum(busy)
    if rest < 0:
        busy, gaps, rest = [0] * len(busy), busy, step_ns
    elif not any(gaps):
        gaps[-1] = 1  # what was not seen lies between two steps
    found = [0] * len(matching.expected)
    for (_, position), device, gap in zip(matching.pairs, busy, dealt(rest, gaps), strict=True):
        found[position] = device + gap
    return tuple(found)


def _busy_and_gaps(spans: Sequence[MeasuredSpan], matching: Matching) -> tuple[list[int], list[int]]:
    """Of each matched call, its time on the device and the gap behind it."""
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    matched = [matching.calls[place] for place, _ in matching.pairs]
    until = list(accumulate((call.end_ns for call in matched), max))
    free = [call.start_ns if not place else max(call.start_ns, until[place - 1]) for place, call in enumerate(matched)]
    following = [*free[1:], end + free[0] - begin]
    busy = [over - start for start, over in zip(free, until, strict=True)]
    return busy, [after - over for after, over in zip(following, until, strict=True)]


def dealt(total: int, weights: Sequence[int]) -> list[int]:
    """A whole number dealt out in proportion to weights, by largest remainder; of equal remainders the first is larger.

    >>> dealt(10, [1, 1, 1])
    [4, 3, 3]
    """
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [divmod(total * weight, whole) for weight in weights]
    left = total - sum(share for share, _ in shares)
    larger = set(sorted(range(len(weights)), key=lambda place: -shares[place][1])[:left])
    return [share + (place in larger) for place, (share, _) in enumerate(shares)]
