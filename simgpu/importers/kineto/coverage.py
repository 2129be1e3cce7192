"""Which steps of a profile an execution trace may cover, found in one reading that keeps nothing of them.

Without it, a trace of the first of many steps would cost a reading of the file for each of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from simgpu.importers.execution_trace import ExecutionTrace
from simgpu.importers.json_stream import items
from simgpu.importers.kineto.event import Event
from simgpu.importers.kineto.profile import Span, Thread


def may_cover(path: Path, steps: Sequence[Span], recorded: ExecutionTrace) -> list[Span]:
    """Of some steps those that may be joined, in their order.

    Those with an operator that has a node's name and, as either of its numbers, that node's; and those in which a
    thread ran as many operators as one of the execution trace. `join` refuses all others.
    """
    names = {node.function: node.name for node in recorded.nodes}
    lengths = set(Counter(node.thread for node in recorded.nodes).values())
    found: set[Span] = set()
    counts: Counter[tuple[Span, Thread]] = Counter()
    by_start = sorted(steps, key=lambda step: step.start)
    starts = [step.start for step in by_start]
    longest = max((step.end - step.start for step in steps), default=0)
    for number, raw in items(path, "traceEvents"):
        event = Event(path, number, raw) if isinstance(raw, dict) else None
        if event is None or not event.is_op:
            continue
        op = event.op()
        is_named = op.name in (names.get(op.function), names.get(op.external))
        around = by_start[bisect_right(starts, op.start - longest) : bisect_right(starts, op.start)]
        for step in around:
            if op.start < step.end:
                counts[step, op.thread] += 1
                if is_named:
                    found.add(step)
    found |= {step for (step, _), count in counts.items() if count in lengths}
    return [step for step in steps if step in found]
