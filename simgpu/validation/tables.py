"""The words of a validation: where its numbers come from, rows of runs, and how far off they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from simgpu.hardware.spec import Duplex
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.calibration import at_once, duplex_of
from simgpu.validation.measured import MeasuredMachine, Method
from simgpu.validation.outcome import AIMS, STEADY, ComparedCase, ComparedRun, Quantity, Summary, Validation
from simgpu.validation.timelines.comparison import (
    TOLERANCE,
    Agreement,
    Event,
    Row,
    StreamComparison,
    TimelineComparison,
)

WIDTH = 80
STAND_IN = "the CPU stood in for a GPU: nothing here was measured on one, or tells how well one is simulated"
_NONE = "-"
_HEADINGS = ("", "measured", "spread", "counterpart", "error", "measured", "counterpart", "error")
_OVER = ("", "step time", "", "", "", "peak memory", "", "")
_BYTE_HEADINGS = ("", "measured", "counterpart", "error", "measured", "counterpart", "error")
_BYTES_OVER = ("", "copied out", "", "", "copied in", "", "")
_STREAMS = ("compute", "d2h", "h2d")
_PART_HEADINGS = ("", "watched", "compute", "copies out", "copies in")
_PARTS_OVER = ("", "", "where the timelines part", "", "")
_ROW_HEADINGS = ("", "measured", "simulated", "later", "")
#: Rows before and behind the one where timelines part.
_AROUND = 4
_WORDS = {
    Quantity.STEP: "step time",
    Quantity.PEAK: "peak memory",
    Quantity.OUT: "copied out",
    Quantity.IN: "copied in",
}
_PARTED = {
    Agreement.OTHER: "{0}, simulated {1}",
    Agreement.ONLY_REAL: "only measured: {0}",
    Agreement.ONLY_SIMULATED: "only simulated: {0}",
}
_WHAT = 42
_DUPLEX = {Duplex.FULL: "neither is in the other's way", Duplex.HALF: "both share the larger bandwidth"}


class Line(NamedTuple):
    """A line of a table. heading: whether it is of headings or the name of a case."""

    text: str
    heading: bool = False


def error_text(error: float | None) -> str:
    """A relative error with its sign; what is no error at all is ``equal``.

    >>> error_text(0.0123), error_text(-0.0004), error_text(0.0), error_text(-1e-6), error_text(None)
    ('+1.2%', '-0.04%', 'equal', '<0.01%', '-')
    >>> error_text(0.9994), error_text(-1.0), error_text(1.5234)
    ('+99.9%', '-100%', '+152%')
    """
    if error is None:
        return _NONE
    if error == 0:
        return "equal"
    if math.isinf(error):
        return "not 0"
    return _per_cent(error, "+")


def share_text(share: float | None) -> str:
    """A share or the size of an error, in per cent.

    >>> share_text(0.05), share_text(0.0004), share_text(0.0), share_text(None), share_text(math.inf)
    ('5.0%', '0.04%', '0%', '-', 'boundless')
    """
    if share is None:
        return _NONE
    if math.isinf(share):
        return "boundless"
    return "0%" if share == 0 else _per_cent(share, "")


def _per_cent(share: float, sign: str) -> str:
    if abs(share) < 0.00005:
        return "<0.01%"
    digits = 2 if abs(share) < 0.001 else 1 if abs(share) < 0.9995 else 0
    return f"{share:{sign}.{digits}%}"


def header_facts(validation: Validation) -> list[tuple[str, str]]:
    """What was measured, on what, and what was calibrated to what, as names and texts."""
    machine = validation.machine
    copies = machine.copies
    settings = ", ".join(f"{name} {value}" for name, value in machine.settings.items())
    outcome = [
        ("device", f"{machine.device}, {format_bytes(machine.memory)}, measured on {machine.date}"),
        ("host", machine.host),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
        ("settings", settings),
        ("link", _link(machine)),
        (
            "latency",
            f"{format_time(copies.latency_ns)} a copy, {format_time(copies.blocking_ns)} one that the host waits for; "
            f"{format_time(machine.launch_ns)} from one kernel launch to the next",
        ),
        ("steps", _steps(validation)),
        (
            "calibrated",
            "kernels to the plain run's timeline, with gaps scaled to its median step; copies to those measured alone "
            "and both ways at once; no managed run was fitted to",
        ),
    ]
    return [(name, text) for name, text in outcome if text]


def case_lines(cases: Iterable[ComparedCase]) -> list[Line]:
    """Step time and peak memory of all runs, case by case."""
    rows: list[tuple[str, ...]] = []
    for case in cases:
        rows.append((case.name,))
        rows += [_run_row(run) for run in case.runs]
        rows += [(f"  {method}", "not run", *[_NONE] * 6) for method in case.absent]
    return _lines(_OVER, _HEADINGS, rows, close=(2,))


def byte_lines(validation: Validation) -> list[Line]:
    """Bytes copied out and in, of the runs that copy any; no line where none does."""
    rows: list[tuple[str, ...]] = []
    for case in validation.cases:
        copying = [run for run in case.runs if run.counts(Quantity.OUT) or run.counts(Quantity.IN)]
        if copying:
            rows.append((case.name,))
            rows += [(f"  {run.method}", *_pair(run, Quantity.OUT), *_pair(run, Quantity.IN)) for run in copying]
    return _lines(_BYTES_OVER, _BYTE_HEADINGS, rows) if rows else []


def part_lines(validation: Validation) -> list[Line]:
    """Where the timelines of each run part first on each stream; no line where there are none."""
    rows: list[tuple[str, ...]] = []
    for case in validation.cases:
        text = [(run, run.comparison) for run in case.runs if run.comparison is not None]
        if text:
            rows.append((case.name,))
            rows += [
                (f"  {run.method}", _watched(run, comparison), *(_part(comparison.streams[name]) for name in _STREAMS))
                for run, comparison in text
            ]
    return _lines(_PARTS_OVER, _PART_HEADINGS, rows) if rows else []


def comparison_lines(comparison: TimelineComparison) -> list[Line]:
    """The rows around the places where each stream parts first, in time and in order; none of those that do not."""
    rows: list[tuple[str, ...]] = []
    for stream in comparison.streams.values():
        marked = [row.position for row in (stream.parting, stream.parting_in_order) if row is not None]
        near = [row for row in stream.rows if any(abs(row.position - at) <= _AROUND for at in marked)]
        if near:
            rows += [(stream.stream,), *(_comparison_row(row, mark=row.position in marked) for row in near)]
    return _lines(("",) * len(_ROW_HEADINGS), _ROW_HEADINGS, rows, left=(4,))[1:] if rows else []


def summary_facts(validation: Validation) -> list[tuple[str, str]]:
    """Mean and worst of each quantity next to the aims, and whether everything happened in the same order."""
    same, runs = validation.in_order
    text = [(_WORDS[quantity], summary_text(summary)) for quantity, summary in validation.summaries.items()]
    return [*text, *([("order", f"the same on every stream in {same} of {runs} runs")] if runs else [])]


def summary_text(summary: Summary) -> str:
    """Mean and worst, over how many runs, and whether that is what was aimed at."""
    if summary.worst_run is None:
        count = len(summary.failed)
        left_out = f": {count} measured {'run has' if count == 1 else 'runs have'} no counterpart" if count else ""
        return f"nothing to compare{left_out}"
    runs = f"{'managed ' if summary.quantity is Quantity.STEP else ''}run{'' if summary.compared == 1 else 's'}"
    where = "" if not summary.worst else f" ({summary.worst_run.case}, {summary.worst_run.method})"
    text = f"mean {share_text(summary.mean)}, worst {share_text(summary.worst)}{where}, of {summary.compared} {runs}"
    if summary.failed:
        text += f"; {len(summary.failed)} measured without a counterpart"
    if summary.as_plain is not None:
        text += f"; the plain run's in their place would miss by {share_text(summary.as_plain)}"
    return text if summary.aim is None else f"{text}; {aim_text(summary)}"


def aim_text(summary: Summary) -> str:
    """The aim, and whether it is met."""
    aim = AIMS[summary.quantity]
    requested = "" if aim.mean is None else f"mean {aim.mean:.0%}, "
    met = {True: "MET", False: "MISSED", None: "open"}[summary.met]
    return f"aim {requested}worst {aim.worst:.0%}: {met}"


def notes_on(validation: Validation) -> list[str]:
    """What there is to say next to the tables, a sentence or two each."""
    text = []
    if any(run.method is Method.PLAIN for run in validation.runs):
        text.append("The plain run's step is what kernels are calibrated to: it is no prediction, and counts nowhere.")
    if any(run.spread is not None for run in validation.runs):
        text.append("spread: of the measured steps, third less first quartile, over the median.")
    unsteady = sum(run.spread is not None and run.spread > STEADY for run in validation.runs)
    if unsteady:
        text.append(
            f"Steps of {unsteady} of {len(validation.runs)} runs vary by over {STEADY:.0%}: their errors mean less."
        )
    if any(run.comparison is not None for run in validation.runs):
        text.append(
            "Timelines part in order where the two do different things (order), and else where starts differ by over "
            f"{TOLERANCE:.0%} of the measured step. Measured is here the one step that was watched, which takes longer "
            "for it: watched, in times of the median step."
        )
    return [*text, *(note for case in validation.cases for note in _case_notes(case, alone=len(validation.cases) == 1))]


def validation_text(validation: Validation) -> str:
    """All of it, as plain text."""
    blocks = [
        [validation.name, *(wrap(f"NOTE: {STAND_IN}", WIDTH) if validation.stand_in else [])],
        list(_facts_lines(header_facts(validation))),
        [line.text for line in case_lines(validation.cases)],
        [line.text for line in byte_lines(validation)],
        [line.text for line in part_lines(validation)],
        list(_facts_lines(summary_facts(validation))),
        [line for note in notes_on(validation) for line in wrap(note, WIDTH)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _link(machine: MeasuredMachine) -> str:
    copies, duplex = machine.copies, duplex_of(machine.copies)
    alone = f"{format_bandwidth(copies.d2h)} out, {format_bandwidth(copies.h2d)} in"
    both = f"{format_bandwidth(copies.both_d2h)} and {format_bandwidth(copies.both_h2d)}"
    model = " and ".join(map(format_bandwidth, at_once(copies, duplex)))
    return f"{alone}; both at once {both}, simulated as if {_DUPLEX[duplex]}: {model}"


def _steps(validation: Validation) -> str:
    counts = sorted({len(run.run.step_ns) for run in validation.runs})
    if not counts:
        return ""
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"really trained and timed, medians of {count} after warm-up"


def _run_row(run: ComparedRun) -> tuple[str, ...]:
    _, counterpart, error = _pair(run, Quantity.STEP)
    fitted = run.method is Method.PLAIN and run.simulated is not None
    spread = share_text(run.spread)
    measured = format_time(run.measured.step_ns)
    return f"  {run.method}", measured, spread, counterpart, "fitted" if fitted else error, *_pair(run, Quantity.PEAK)


def _pair(run: ComparedRun, quantity: Quantity) -> tuple[str, str, str]:
    """Measured, simulated, and the error."""
    form = format_time if quantity is Quantity.STEP else format_bytes
    counterpart = _NONE if run.simulated is None else form(getattr(run.simulated, quantity))
    return form(getattr(run.measured, quantity)), counterpart, error_text(run.error(quantity))


def _case_notes(case: ComparedCase, alone: bool) -> Iterator[str]:
    result = case.calibration
    if result is None:
        yield f"{case.name}: {case.why}."
    elif alone or result.unmatched:
        yield f"{case.name}: kernels: {result.times_recorded}."
    if result is not None and alone:
        yield f"{case.name}: memory: {result.held_noted}."
    for run in case.runs if alone else ():
        if run.run.settings:
            settings = (f"{key} {_setting(value)}" for key, value in run.run.settings.items())
            yield f"{case.name}, {run.method}: {', '.join(settings)}."
    for note in dict.fromkeys(note for run in case.runs for note in run.notes):
        yield f"{case.name}: {note}."
    for run in case.runs:
        if run.counterpart is not None and run.counterpart.failure:
            yield f"{case.name}, {run.method}: no counterpart, {run.counterpart.failure}: {run.counterpart.why}"
        if (
            run.counterpart is not None
            and run.counterpart.result is not None
            and run.counterpart.result.steady is False
        ):
            yield f"{case.name}, {run.method}: the counterpart's last two iterations still differ."
    for method, why in case.absent.items():
        yield f"{case.name}, {method}: not run on the device: {why}"


def _setting(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _watched(run: ComparedRun, comparison: TimelineComparison) -> str:
    return f"{comparison.real_ns / run.measured.step_ns:.2f}x" if run.measured.step_ns else _NONE


def _part(stream: StreamComparison) -> str:
    """That it does not, or at which time: in what is done, or in when, by more than is tolerated.

    >>> _part(StreamComparison("d2h", (), 100))
    '-'
    """
    row = stream.parting_in_order or stream.parting
    if row is None:
        return "same" if stream.rows else _NONE
    return f"{format_time(row.at_ns)}{', order' if stream.parting_in_order else ''}"


def _comparison_row(row: Row, mark: bool) -> tuple[str, ...]:
    real, simulated = row.real, row.simulated
    starts = (_NONE if event is None else format_time(event.start_ns) for event in (real, simulated))
    later = _NONE if row.offset_ns is None else format_time(row.offset_ns)
    names = [_event(event) for event in (real, simulated) if event is not None]
    if row.agreement is Agreement.SAME:
        what = _shortened(names[-1], _WHAT)
    else:
        words = _PARTED[row.agreement]
        free = (_WHAT - len(words.format("", ""))) // len(names)
        what = words.format(*(_shortened(name, free) for name in names))
    return f"{'>' if mark else ' '} {row.position}", *starts, later, what


def _shortened(text: str, free: int) -> str:
    """Without its middle where it is too long: how many bytes a copy moves stands at the end.

    >>> _shortened("copy_h2d stage3.pool:max_pool2d:saved 512 KiB", 30)
    'copy_h2d stage3...saved 512 KiB'
    """
    if len(text) <= free:
        return text
    tail = (free - 3) // 2
    return f"{text[: free - 3 - tail]}...{text[-tail:]}"


def _event(event: Event) -> str:
    if event.op:
        return event.op if event.kind == "kernel" else f"{event.op} {event.name}"
    return f"{event.kind} {event.name} {format_bytes(event.bytes)}"


def _facts_lines(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    wide = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        first, *more = wrap(text, WIDTH - wide) or [""]
        yield f"{name:<{wide}}{first}"
        yield from (" " * wide + line for line in more)


def _lines(
    over: Sequence[str],
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    close: Sequence[int] = (),
    left: Sequence[int] = (),
) -> list[Line]:
    """Names to the left, numbers to the right; over: texts that begin above a column. close: columns one blank after
    the one before; left: of words. A row of one text is the name of a case."""
    table = [headings, *rows]
    full = [row for row in table if len(row) == len(headings)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    gaps = ["" if not at else " " if at in close else "  " for at in range(len(headings))]
    above = " " * widths[0]
    for at in range(1, len(headings)):
        above = f"{above.ljust(sum(widths[:at]) + sum(map(len, gaps[: at + 1])))}{over[at]}" if over[at] else above
    result = [Line(above.rstrip(), heading=True)]
    for number, row in enumerate(table):
        if len(row) == 1:
            result.append(Line(row[0], heading=True))
            continue
        cells = [
            text.ljust(width) if at in (0, *left) else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        result.append(Line("".join(gap + cell for gap, cell in zip(gaps, cells, strict=True)).rstrip(), not number))
    return result
