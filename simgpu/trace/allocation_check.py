"""What makes an allocation trace valid: the values of each row, and the order of what happens to an allocation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simgpu.errors import Problem
from simgpu.trace.allocations import ALLOCATION_ACTIONS, AllocationTrace, AllocatorAction, AllocatorSegment
from simgpu.trace.columns import LARGEST
from simgpu.trace.row_checks import Place, Problems, is_count, is_text, rows_of

#: 256 TiB: all addresses of a process.
MOST_BYTES = 2**48
_TEXTS = {"allocations": ("category", "label"), "frames": ("function", "file"), "marks": ("name",)}
_COUNTS = {
    "allocations": ("address", "stream", "private"),
    "events": ("address", "stream"),
    "before": ("address", "stream", "private"),
    "after": ("address", "stream", "private"),
    "frames": ("line",),
    "marks": ("event",),
}
_OPTIONAL = {"events": ("time_us",), "marks": ("time_us",)}
_SIZES = {"allocations": ("size", "block_bytes"), "events": ("size",), "before": ("size",), "after": ("size",)}


def check_allocations(trace: AllocationTrace, at: Place | None = None) -> list[Problem]:
    """All problems of an allocation trace. at: places a problem; by default by the names of its fields."""
    problems = Problems(at or _place)
    _head(trace, problems)
    tables = tables_of(trace)
    for table, rows in tables.items():
        _values(problems, table, rows)
    if not problems.problems:
        _references(trace, problems)
    if not problems.problems:
        _order(trace, problems)
        for table in ("before", "after"):
            _segments(tables[table], table, problems)
    return problems.problems


def tables_of(trace: AllocationTrace) -> dict[str, Sequence[object]]:
    """The rows of each table of an allocation trace; frames of several stacks are one row."""
    frames = tuple(dict.fromkeys(frame for stack in trace.stacks for frame in stack))
    return {
        "allocations": trace.allocations,
        "events": trace.events,
        "before": trace.before,
        "after": trace.after,
        "frames": frames,
        "marks": trace.marks,
    }


def _place(table: str, index: int, column: str) -> tuple[str, str]:
    return "", f"{table}[{index}].{column}" if index >= 0 else column


def _head(trace: AllocationTrace, problems: Problems) -> None:
    for field in ("name", "tool"):
        if not is_text(getattr(trace, field)):
            what = f"{getattr(trace, field)!r} is not a name"
            problems.add("head", -1, field, what, "give a printable text without spaces around it")
    for field in ("gpu", "capacity"):
        value = getattr(trace, field)
        if not (is_count(value) or (field == "capacity" and value is None)):
            problems.add("head", -1, field, f"{value!r} is not a whole number >= 0", f"give one up to {LARGEST}")


def _values(problems: Problems, table: str, rows: Sequence[object]) -> None:
    for row in rows_of(problems, table, rows):
        for column in _TEXTS.get(table, ()):
            if getattr(row.values, column) != "":
                row.texts(column)
        row.counts(*_COUNTS[table])
        row.counts(*_OPTIONAL.get(table, ()), optional=True)
        for column in _SIZES.get(table, ()):
            size = getattr(row.values, column)
            if size is None and column == "block_bytes":
                continue
            if not is_count(size) or size > MOST_BYTES:
                row.add(column, f"{size!r} B is not a size that a device can have", f"give bytes up to {MOST_BYTES}")
            elif row.values.address + size > LARGEST:
                row.add("address", f"{row.values.address} is too large", f"give one up to {LARGEST} - {column}")


def _references(trace: AllocationTrace, problems: Problems) -> None:
    """Numbers of rows in other tables."""

    def known(table: str, index: int, column: str, number: int | None, of: str, count: int) -> None:
        if number is not None and not (type(number) is int and 0 <= number < count):
            remedy = f"number the {of} from 0" if count else f"there are no {of}"
            problems.add(table, index, column, f"{number} is not the number of one of the {count} {of}", remedy)

    for index, allocation in enumerate(trace.allocations):
        known("allocations", index, "stack", allocation.stack, "stacks", len(trace.stacks))
    for index, event in enumerate(trace.events):
        known("events", index, "stack", event.stack, "stacks", len(trace.stacks))
        known("events", index, "allocation", event.allocation, "allocations", len(trace.allocations))
        if (event.action in ALLOCATION_ACTIONS) != (event.allocation is not None):
            what = f"{event.action} has {'no' if event.allocation is None else 'an'} allocation"
            remedy = f"give one for {', '.join(sorted(ALLOCATION_ACTIONS))}, and for nothing else"
            problems.add("events", index, "allocation", what, remedy)
    for index, mark in enumerate(trace.marks):
        known("marks", index, "event", mark.event, "events, or their end", len(trace.events) + 1)
    for index, (left, right) in enumerate(pairwise(trace.marks), start=1):
        if left.event > right.event:
            problems.add("marks", index, "event", f"{right.event} is before that of the mark above", "sort the marks")


def _order(trace: AllocationTrace, problems: Problems) -> None:
    """Each allocation is allocated once at most, then freed once at most; no two are at an address at one time."""
    state = dict.fromkeys(trace.begun_before, "allocated")
    at: dict[int, int] = {}
    for index in state:
        other = at.setdefault(trace.allocations[index].address, index)
        if other != index:
            what = f"is where allocation {other} is, which also exists when the recording begins"
            problems.add("allocations", index, "address", what, "keep one of them")
    for number, event in enumerate(trace.events):
        if event.allocation is None:
            continue
        index, address = event.allocation, trace.allocations[event.allocation].address
        if event.action == AllocatorAction.ALLOC:
            if index in state or address in at:
                what = f"allocates allocation {index} at address {address}, which is allocated"
                problems.add("events", number, "allocation", what, "free it first, or give it another address")
                return
            state[index], at[address] = "allocated", index
        elif state.get(index) != "allocated":
            problems.add(
                "events",
                number,
                "allocation",
                f"{event.action} of allocation {index}, which is {state.get(index, 'not allocated yet')}",
                "put its events in order",
            )
            return
        elif event.action == AllocatorAction.FREE_COMPLETED:
            state[index] = "freed"
            at.pop(address, None)


def _segments(rows: Sequence[object], table: str, problems: Problems) -> None:
    segments = list(_typed(rows))
    for index, (left, right) in enumerate(pairwise(segments), start=1):
        if left.address + left.size > right.address:
            what = f"{right.address} is not behind the end of the segment above, {left.address + left.size}"
            problems.add(table, index, "address", what, "sort the segments; no two overlap")


def _typed(rows: Sequence[object]) -> Iterator[AllocatorSegment]:
    return (row for row in rows if isinstance(row, AllocatorSegment))
