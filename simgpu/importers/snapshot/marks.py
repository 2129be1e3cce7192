"""Marks of a snapshot: where the program said what it does, in the order of the allocator's events.

PyTorch 2.4 writes them among the events (`user_defined`), with the name in place of a stack. Later versions list them
apart (`external_annotations`), and their time says between which events they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from simgpu.importers.snapshot.fields import Record
from simgpu.trace.allocations import AllocatorAction, AllocatorEvent, AllocatorMark, Frame, MarkStage

_STAGES = {"START": MarkStage.BEGIN, "END": MarkStage.END}


def marks(
    snapshot: Record, gpu: int, events: Sequence[AllocatorEvent], stacks: Sequence[Sequence[Frame]]
) -> tuple[AllocatorMark, ...]:
    """The marks of one GPU's recording, in the order of their events."""
    result = [*_among_events(events, stacks), *_listed(snapshot, gpu, events)]
    return tuple(sorted(result, key=lambda mark: mark.event))


def _among_events(events: Sequence[AllocatorEvent], stacks: Sequence[Sequence[Frame]]) -> Iterator[AllocatorMark]:
    for number, event in enumerate(events):
        if event.action != AllocatorAction.USER_DEFINED:
            continue
        frame = stacks[event.stack][0] if event.stack is not None else Frame("", "", 0)
        stage = _STAGES.get(frame.function, MarkStage.MOMENT)
        name = frame.file if stage is not MarkStage.MOMENT else str(frame)
        yield AllocatorMark(number, name.strip() or "unnamed", stage, event.time_us)


def _listed(snapshot: Record, gpu: int, events: Sequence[AllocatorEvent]) -> Iterator[AllocatorMark]:
    """Without times of events, these marks have no place and are left out."""
    if any(event.time_us is None for event in events):
        return
    # The clocks of threads may differ a little: an event counts as no earlier than those before it.
    times = list(accumulate((event.time_us or 0 for event in events), max))
    for number, values in enumerate(snapshot.items("external_annotations")):
        record = Record(values, snapshot.path, f"external_annotations, entry {number}")
        if record.number("device", 0) != gpu:
            continue
        stage = _STAGES.get(record.text("stage"), MarkStage.MOMENT)
        time = record.number("time_us")
        event = (bisect_right if stage is MarkStage.END else bisect_left)(times, time)
        yield AllocatorMark(event, record.line("name") or "unnamed", stage, time)
