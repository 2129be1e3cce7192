"""A validation as text: sources of the numbers, a table per quantity, errors and targets, notes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from textwrap import fill
from typing import NamedTuple

from simgpu.analysis.tables import table_text
from simgpu.hardware.spec import Duplex
from simgpu.plans.summary import summary
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.calibration import bidirectional_bandwidths, duplex_of
from simgpu.validation.measured import MeasuredMachine, MeasuredRun, Method
from simgpu.validation.outcome import STEADY, TARGETS, ComparedCase, ComparedRun, Quantity, Summary, Validation
from simgpu.validation.timelines.comparison import (
    TOLERANCE,
    Agreement,
    Event,
    Row,
    StreamComparison,
    TimelineComparison,
)

CPU_NOTE = "measured on a CPU: worker threads act as copy engines, and no result is about a GPU"
NO_VALUE = "-"
QUANTITY_LABELS = {
    Quantity.STEP: "step time",
    Quantity.PEAK: "peak memory",
    Quantity.OUT: "device-to-host",
    Quantity.IN: "host-to-device",
}
#: Columns of the plain text.
WIDTH = 80
_STREAMS = ("compute", "d2h", "h2d")
#: Rows shown before and after a divergence.
_CONTEXT = 4
_ROW_TEXTS = {
    Agreement.DIFFERENT: "{0}, simulated {1}",
    Agreement.ONLY_MEASURED: "only measured: {0}",
    Agreement.ONLY_SIMULATED: "only simulated: {0}",
}
_DUPLEX = {Duplex.FULL: "full duplex", Duplex.HALF: "half duplex"}


class TextTable(NamedTuple):
    """Headings and rows of text cells. left: indices of left-aligned columns."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: Collection[int] = (0, 1)


def error_text(error: float | None) -> str:
    """A relative error with its sign.

    >>> error_text(0.0123), error_text(-0.0004), error_text(0.0), error_text(-1e-6), error_text(None)
    ('+1.2%', '-0.04%', 'equal', '<0.01%', '-')
    >>> error_text(0.9994), error_text(-1.0), error_text(1.5234)
    ('+99.9%', '-100%', '+152%')
    """
    if error is None:
        return NO_VALUE
    if error == 0:
        return "equal"
    return "not 0" if math.isinf(error) else _percent(error, "+")


def fraction_text(fraction: float | None) -> str:
    """A fraction or the magnitude of an error, in percent.

    >>> fraction_text(0.05), fraction_text(0.0004), fraction_text(0.0), fraction_text(None), fraction_text(math.inf)
    ('5.0%', '0.04%', '0%', '-', 'unbounded')
    """
    if fraction is None:
        return NO_VALUE
    if math.isinf(fraction):
        return "unbounded"
    return "0%" if fraction == 0 else _percent(fraction, "")


def _percent(fraction: float, sign: str) -> str:
    if abs(fraction) < 0.00005:
        return "<0.01%"
    digits = 2 if abs(fraction) < 0.001 else 1 if abs(fraction) < 0.9995 else 0
    return f"{fraction:{sign}.{digits}%}"


def header_facts(validation: Validation) -> list[tuple[str, str]]:
    """Names and texts: the machine, the link, the number of steps, and the calibration."""
    machine = validation.machine
    copies = machine.copies
    facts = [
        ("device", f"{machine.device}, {format_bytes(machine.memory)}, measured on {machine.date}"),
        ("host", machine.host),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
        ("settings", ", ".join(f"{name} {value}" for name, value in machine.settings.items())),
        ("link", _link(machine)),
        (
            "latency",
            f"{format_time(copies.latency_ns)} asynchronous copy, {format_time(copies.blocking_ns)} blocking copy, "
            f"{format_time(machine.launch_ns)} between kernel launches",
        ),
        ("steps", _steps(validation)),
        (
            "calibrated",
            "kernels to the timeline of the plain run, its gaps scaled to the median step; copies to the measured "
            "link; no managed run was fitted to",
        ),
    ]
    return [(name, text) for name, text in facts if text]


def report_tables(validation: Validation) -> list[TextTable]:
    """Measured and simulated values of each quantity that any run has, and where the timelines diverge."""
    tables = [_quantity_table(validation, quantity) for quantity in Quantity]
    return [table for table in (*tables, _divergence_table(validation)) if table.rows]


def _quantity_table(validation: Validation, quantity: Quantity) -> TextTable:
    is_step, is_copy = quantity is Quantity.STEP, quantity in (Quantity.OUT, Quantity.IN)
    rows: list[tuple[str, ...]] = []
    for case in validation.cases:
        texts = {run.method: _run_texts(run, quantity) for run in case.runs if not is_copy or run.counts(quantity)}
        if not is_copy:
            texts |= {method: ("not run", *[NO_VALUE] * (3 if is_step else 2)) for method in case.absent}
        rows += _labelled(case, texts)
    spread = ("spread",) if is_step else ()
    return TextTable((QUANTITY_LABELS[quantity], "", "measured", *spread, "simulated", "error"), rows)


def _labelled(case: ComparedCase, texts: dict[Method, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Rows of a case; the first one has its name."""
    for number, (method, cells) in enumerate(texts.items()):
        yield ("" if number else case.name, str(method), *cells)


def _run_texts(run: ComparedRun, quantity: Quantity) -> tuple[str, ...]:
    """The cells of a run: measured, spread (only for steps), simulated, error."""
    is_step = quantity is Quantity.STEP
    form = format_time if is_step else format_bytes
    simulated = NO_VALUE if run.simulated is None else form(getattr(run.simulated, quantity))
    fitted = is_step and run.method is Method.PLAIN and run.simulated is not None
    error = "fitted" if fitted else error_text(run.error(quantity))
    spread = (fraction_text(run.spread),) if is_step else ()
    return form(getattr(run.measured, quantity)), *spread, simulated, error


def _divergence_table(validation: Validation) -> TextTable:
    """The first divergence of each stream of each run that has both timelines."""
    rows: list[tuple[str, ...]] = []
    for case in validation.cases:
        texts = {
            run.method: (_profiled(run, comparison), *(_divergence(comparison.streams[name]) for name in _STREAMS))
            for run in case.runs
            if (comparison := run.timelines) is not None
        }
        rows += _labelled(case, texts)
    return TextTable(("divergence", "", "profiled", *_STREAMS), rows)


def _profiled(run: ComparedRun, comparison: TimelineComparison) -> str:
    return f"{comparison.measured_ns / run.measured.step_ns:.2f}x" if run.measured.step_ns else NO_VALUE


def _divergence(stream: StreamComparison) -> str:
    """The time of a stream's first divergence in order; of the first in start time if the order is the same.

    >>> _divergence(StreamComparison("d2h", (), 100))
    '-'
    """
    row = stream.order_divergence or stream.divergence
    if row is None:
        return "same" if stream.rows else NO_VALUE
    return f"{format_time(row.at_ns)}{', order' if stream.order_divergence else ''}"


def timeline_tables(comparison: TimelineComparison) -> list[TextTable]:
    """For each stream that diverges, the rows around its first divergence in time and in order."""
    tables = []
    for stream in comparison.streams.values():
        marked = [row.position for row in (stream.divergence, stream.order_divergence) if row is not None]
        near = [row for row in stream.rows if any(abs(row.position - at) <= _CONTEXT for at in marked)]
        if near:
            rows = [_timeline_row(row, mark=row.position in marked) for row in near]
            tables.append(TextTable((stream.stream, "measured", "simulated", "offset", "event"), rows, left=(0, 4)))
    return tables


def _timeline_row(row: Row, mark: bool) -> tuple[str, ...]:
    events = row.measured, row.simulated
    starts = (NO_VALUE if event is None else format_time(event.start_ns) for event in events)
    offset = NO_VALUE if row.offset_ns is None else format_time(row.offset_ns)
    names = [_event(event) for event in events if event is not None]
    text = names[-1] if row.agreement is Agreement.SAME else _ROW_TEXTS[row.agreement].format(*names)
    return f"{'>' if mark else ' '} {row.position}", *starts, offset, text


def _event(event: Event) -> str:
    if event.op:
        return event.op if event.kind == "kernel" else f"{event.op} {event.name}"
    return f"{event.kind} {event.name} {format_bytes(event.bytes)}"


def summary_facts(validation: Validation) -> list[tuple[str, str]]:
    """Mean and worst error of each quantity with its target, and the number of runs with the same order."""
    facts = [(QUANTITY_LABELS[quantity], summary_text(summary)) for quantity, summary in validation.summaries.items()]
    same, runs = validation.same_order_counts
    return [*facts, ("order", f"the same on every stream in {same} of {runs} runs")] if runs else facts


def summary_text(summary: Summary) -> str:
    """Mean and worst error, the number of runs, the error of assuming the plain run's value, and the target."""
    if summary.worst_run is None:
        count = len(summary.failed)
        missing = f": {count} measured run{'' if count == 1 else 's'} could not be simulated" if count else ""
        return f"nothing to compare{missing}"
    runs = f"{'managed ' if summary.quantity is Quantity.STEP else ''}run{'' if summary.compared == 1 else 's'}"
    where = f" ({summary.worst_run.case}, {summary.worst_run.method})" if summary.worst else ""
    text = f"mean {fraction_text(summary.mean)}, worst {fraction_text(summary.worst)}{where}, {summary.compared} {runs}"
    if summary.failed:
        text += f"; {len(summary.failed)} measured, not simulated"
    if summary.plain_error is not None:
        text += f"; mean error of assuming the plain run's value {fraction_text(summary.plain_error)}"
    return text if summary.target is None else f"{text}; {target_text(summary)}"


def target_text(summary: Summary) -> str:
    """The target, and whether it is met."""
    target = TARGETS[summary.quantity]
    mean = "" if target.mean is None else f"mean {target.mean:.0%}, "
    met = {True: "MET", False: "MISSED", None: "open"}[summary.met]
    return f"target {mean}worst {target.worst:.0%}: {met}"


def notes_on(validation: Validation) -> list[str]:
    """Explanations of the columns and limits of the result, one or two sentences each."""
    runs = validation.runs
    texts = []
    if any(run.method is Method.PLAIN for run in runs):
        texts.append("fitted: kernels are calibrated to the plain run's step time, so it is excluded from the errors.")
    if any(run.spread is not None for run in runs):
        texts.append("spread: interquartile range of the measured steps over their median.")
    unsteady = sum(run.spread is not None and run.spread > STEADY for run in runs)
    if unsteady:
        texts.append(
            f"Steps of {unsteady} of {len(runs)} runs vary by over {STEADY:.0%}: their errors are less certain."
        )
    if any(run.timelines is not None for run in runs):
        texts.append(
            "divergence: where the order first differs (order), else where starts differ by over "
            f"{TOLERANCE:.0%} of the measured step. profiled: duration of the profiled step over the median step."
        )
    alone = len(validation.cases) == 1
    return [*texts, *(note for case in validation.cases for note in _case_notes(case, alone=alone))]


def _case_notes(case: ComparedCase, alone: bool) -> Iterator[str]:
    calibration = case.calibration
    if calibration is None:
        yield f"{case.name}: {case.reason}."
    elif alone or calibration.unmatched:
        yield f"{case.name}: kernel times: {calibration.times_text}."
    if calibration is not None and alone:
        yield f"{case.name}: memory: {calibration.reserved_text}."
    for run in case.runs if alone else ():
        if text := _settings(run.run):
            yield f"{case.name}, {run.method}: {text}."
    for note in dict.fromkeys(note for run in case.runs for note in run.notes):
        yield f"{case.name}: {note}."
    for run in case.runs:
        counterpart = run.counterpart
        if counterpart is not None and counterpart.failure:
            yield f"{case.name}, {run.method}: not simulated, {counterpart.failure}: {counterpart.reason}"
        if counterpart is not None and counterpart.result is not None and counterpart.result.steady is False:
            yield f"{case.name}, {run.method}: the last two simulated iterations still differ."
    for method, reason in case.absent.items():
        yield f"{case.name}, {method}: not run on the device: {reason}"


def _settings(run: MeasuredRun) -> str:
    if run.plan is None:
        return ", ".join(f"{key} {_setting(value)}" for key, value in run.settings.items())
    # Notes of a plan are about its budget, which no device enforced in this run.
    lines = summary(run.plan.model_copy(update={"notes": ()}))
    return "; ".join([f"budget {format_bytes(run.plan.budget_bytes)}", *lines])


def _setting(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def validation_text(validation: Validation) -> str:
    """The report as plain text of at most 80 columns."""
    title = [validation.name, *([fill(f"NOTE: {CPU_NOTE}", WIDTH)] if validation.on_cpu else [])]
    blocks = [
        "\n".join(title),
        _facts_text(header_facts(validation)),
        *(table_text(table.headings, table.rows, table.left) for table in report_tables(validation)),
        _facts_text(summary_facts(validation)),
        "\n".join(fill(note, WIDTH) for note in notes_on(validation)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _facts_text(facts: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in facts) + 2
    return "\n".join(fill(f"{name:<{width}}{text}", WIDTH, subsequent_indent=" " * width) for name, text in facts)


def _link(machine: MeasuredMachine) -> str:
    copies, duplex = machine.copies, duplex_of(machine.copies)
    unidirectional = f"{format_bandwidth(copies.d2h)} D2H, {format_bandwidth(copies.h2d)} H2D"
    measured = _both(copies.bidirectional_d2h, copies.bidirectional_h2d)
    modelled = _both(*bidirectional_bandwidths(copies, duplex))
    return f"{unidirectional}; bidirectional {measured}, simulated as {_DUPLEX[duplex]}: {modelled}"


def _both(d2h: int, h2d: int) -> str:
    return f"{format_bandwidth(d2h)} + {format_bandwidth(h2d)}"


def _steps(validation: Validation) -> str:
    counts: Sequence[int] = sorted({len(run.run.step_ns) for run in validation.runs})
    if not counts:
        return ""
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"medians of {count} timed training steps after warm-up"
