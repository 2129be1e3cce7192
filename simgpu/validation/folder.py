"""Reads and writes a recording: a folder with machine.yaml and a folder for each case, with timelines as gzipped CSV.

The format is described field by field in recordings/README.md.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.atomic import atomic_file, atomic_folder, refuse_foreign, unwritable
from simgpu.io.input_files import open_input, read_gzip_text
from simgpu.torch.plan import read_plan
from simgpu.trace.columns import CellError, Column, Table, whole_number
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import Trace
from simgpu.trace.tables import ReadTable, table_of, write_table
from simgpu.validation.measured import (
    STREAMS,
    Case,
    MeasuredKind,
    MeasuredMachine,
    MeasuredRun,
    MeasuredSpan,
    Method,
    Recording,
)
from simgpu.validation.recording_files import (
    MACHINE_FILE,
    RUNS_FILE,
    ReadRuns,
    machine_text,
    read_machine,
    read_runs,
    runs_text,
)

TRACE = "trace"
#: The plan that the run under `Method.PLAN` is of.
PLAN_FILE = "plan.json"
SHIPPED = Path(__file__).resolve().parent / "recordings"
#: Suffix of a method's timeline.
_SPANS = ".csv.gz"
_FILES = (TRACE, RUNS_FILE, PLAN_FILE, *(f"{method}{_SPANS}" for method in Method))
_README = "README.md"


def shipped_recordings() -> tuple[str, ...]:
    """The names of the recordings that ship with simgpu, sorted."""
    return tuple(sorted(file.parent.name for file in SHIPPED.glob(f"*/{MACHINE_FILE}")))


def load_recording(name_or_path: str | Path) -> Recording:
    """Loads a shipped recording by its name, or a recording from a folder; shipped names take precedence.

    Raises `InputError` if there is no such recording, or as `read_recording` does.
    """
    text, names = str(name_or_path), shipped_recordings()
    if text in names:
        return read_recording(SHIPPED / text)
    path = Path(text).expanduser()
    if path.exists() or isinstance(name_or_path, Path) or Path(text).name != text:
        return read_recording(path)
    remedy = f"{did_you_mean(text, names)}; or give the path of one" if names else "none ship; give the path of one"
    raise InputError.single("", "", f"no shipped recording is called {text!r}", remedy)


def read_recording(path: str | Path) -> Recording:
    """Reads the recording in a folder, its cases sorted by name.

    Raises `InputError` with the problems of all its files.
    """
    folder = Path(path)
    if not folder.exists():
        raise InputError.single(folder, "", "no such folder", "give the path of a recording")
    if not folder.is_dir() or not (folder / MACHINE_FILE).exists():
        message = f"is not a recording: a recording is a folder with {MACHINE_FILE} and a folder for each case"
        raise InputError.single(folder, "", message, "make one with `simgpu validate record -o DIR`")
    problems: list[Problem] = []
    machine, cases = None, []
    try:
        machine = read_machine(folder / MACHINE_FILE)
    except InputError as error:
        problems += error.problems
    for case_folder in case_folders(folder):
        try:
            cases.append(read_case(case_folder))
        except InputError as error:
            problems += error.problems
    if not cases and not problems:
        problems.append(Problem(str(folder), "", "has no case", "record one with `simgpu validate record`"))
    if problems or machine is None:
        raise InputError(problems)
    return Recording(folder.resolve().name, machine, tuple(cases))


def case_folders(folder: Path) -> list[Path]:
    """The folders of the cases, sorted by name; skips unfinished ones, whose names start with a dot."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def read_case(folder: Path) -> Case:
    """Reads the case in a folder; raises `InputError` with the problems of all its files."""
    problems = _unknown_files(folder)
    trace: Trace | None = None
    read: ReadRuns | None = None
    runs: dict[Method, MeasuredRun] = {}
    try:
        trace = read_trace(folder / TRACE)
    except InputError as error:
        problems += error.problems
    try:
        read = read_runs(folder / RUNS_FILE)
    except InputError as error:
        problems += error.problems
    for method, run in read.runs.items() if read else ():
        spans = read_spans(folder / f"{method}{_SPANS}")
        problems += spans.problems
        runs[method] = replace(run, spans=tuple(spans.rows))
    if Method.PLAN in runs:
        try:
            runs[Method.PLAN] = replace(runs[Method.PLAN], plan=read_plan(folder / PLAN_FILE))
        except InputError as error:
            problems += error.problems
    if trace is not None and read is not None:
        problems += _mismatches(folder, trace, read)
    if problems or trace is None or read is None:
        raise InputError(problems)
    return Case(read.model, read.batch, replace(trace, name=folder.name), runs, read.absent, read.setup)


def _unknown_files(folder: Path) -> list[Problem]:
    names = sorted(entry.name for entry in folder.iterdir())
    return [
        Problem(str(folder / name), "", "not a file of a case", did_you_mean(name, _FILES))
        for name in names
        if name not in (*_FILES, _README)
    ]


def _mismatches(folder: Path, trace: Trace, read: ReadRuns) -> list[Problem]:
    """Contradictions between the files of a case."""
    runs = str(folder / RUNS_FILE)
    problems = [
        Problem(runs, key, f"{value!r} differs from the trace's {expected!r}", "record the case again")
        for key, value, expected in (
            ("model", read.model, trace.info.model),
            ("batch", read.batch, trace.info.batch),
        )
        if value != expected
    ]
    name = f"{read.model}-b{read.batch}"
    if folder.name != name:
        problems.append(Problem(str(folder), "", f"contains the case {name}", f"rename the folder to {name}"))
    unlisted = [method for method in Method if method not in read.runs and (folder / f"{method}{_SPANS}").exists()]
    problems += [
        Problem(runs, "runs", f"has no run of {method}, but a timeline", "record the case again") for method in unlisted
    ]
    if Method.PLAN not in read.runs and (folder / PLAN_FILE).exists():
        problems.append(Problem(runs, "runs", f"has no run of {Method.PLAN}, but {PLAN_FILE}", "record the case again"))
    return problems


def write_recording(recording: Recording, folder: str | Path) -> None:
    """Writes a recording as a folder, atomically; the same recording gives the same bytes.

    Replaces an earlier recording. Raises `InputError` if the folder holds anything else or cannot be written.
    """
    with atomic_folder(folder, foreign_files) as part:
        (part / MACHINE_FILE).write_text(machine_text(recording.machine), encoding="utf-8")
        for case in recording.cases:
            (part / case.name).mkdir()
            _write_files(case, part / case.name)


def write_machine(machine: MeasuredMachine, folder: Path) -> None:
    """Writes machine.yaml to a folder, creating it if needed; raises `InputError` for foreign files in the folder."""
    refuse_foreign(folder, foreign_files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    with atomic_file(folder / MACHINE_FILE) as part:
        part.write_text(machine_text(machine), encoding="utf-8")


def write_case(case: Case, folder: Path) -> None:
    """Writes a case to its own folder in the recording, atomically."""
    with atomic_folder(folder / case.name, _foreign_files_of_case) as part:
        _write_files(case, part)


def foreign_files(folder: Path) -> str:
    """A message that names a file foreign to recordings; empty if there is none."""
    known = {MACHINE_FILE, _README}
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in known and not _is_leftover(entry.name) and not (entry / RUNS_FILE).exists()
    )
    return f"files that are not from a recording, such as '{names[0]}'" if names else ""


def _is_leftover(name: str) -> bool:
    """Whether the file is the remainder of an interrupted write (`simgpu.io.atomic`)."""
    return name.startswith(".") and name.endswith((".part", ".old"))


def _foreign_files_of_case(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name not in (*_FILES, _README))
    return f"files that are not from a case, such as '{names[0]}'" if names else ""


def _write_files(case: Case, folder: Path) -> None:
    write_trace(case.trace, folder / TRACE)
    (folder / RUNS_FILE).write_text(runs_text(case), encoding="utf-8")
    for method, run in case.runs.items():
        write_spans(folder / f"{method}{_SPANS}", run.spans)
        if run.plan is not None:
            run.plan.write(folder / PLAN_FILE)


_KINDS = {str(kind): kind for kind in MeasuredKind}


def _kind(text: str) -> MeasuredKind:
    if text not in _KINDS:
        raise CellError(f"'{text}' is not a kind", did_you_mean(text, _KINDS))
    return _KINDS[text]


def _number(name: str, unit: str, **blank: Any) -> Column:
    stand_in = blank.get("blank", 0)
    write = (lambda value: "" if value == stand_in else str(value)) if blank else str
    return Column(name, partial(whole_number, unit=unit), write, stand_in=stand_in, **blank)


SPANS: Table[MeasuredSpan] = Table(
    "spans",
    MeasuredSpan,
    (
        Column("stream", intern, str, stand_in=""),
        Column("kind", _kind, str, stand_in=MeasuredKind.KERNEL),
        Column("name", intern, str, blank="", stand_in=""),
        Column("op", intern, str, blank="", stand_in=""),
        _number("call", "calls", blank=-1),
        _number("start_ns", "nanoseconds"),
        _number("end_ns", "nanoseconds"),
        _number("bytes", "bytes", blank=0),
    ),
)


def write_spans(path: Path, spans: Sequence[MeasuredSpan]) -> None:
    """Writes spans as a gzipped CSV file; the same spans give the same bytes."""
    plain = path.with_suffix(".part")
    write_table(plain, SPANS, spans)
    with open_input(plain) as file:
        path.write_bytes(gzip.compress(file.read(), mtime=0))
    plain.unlink()


def read_spans(path: Path) -> ReadTable[MeasuredSpan]:
    """Reads the spans of a file, with every problem in it; never raises for its content."""
    try:
        text = read_gzip_text(path, "a gzipped CSV text file", "record the case again")
    except InputError as error:
        return ReadTable(problems=list(error.problems), sound=False)
    table = table_of(text, path, SPANS)
    if not table.problems:
        rows = zip(table.rows, table.lines, strict=True)
        table.problems += [
            Problem(str(path), f"row {line}", message) for span, line in rows for message in _contradictions(span)
        ]
    return table


def _contradictions(span: MeasuredSpan) -> list[str]:
    """Contradictions between a span's fields."""
    is_copy, stream = span.kind is not MeasuredKind.KERNEL, STREAMS[span.kind]
    checks = (
        (span.end_ns < span.start_ns, f"ends at {span.end_ns} ns, before it starts at {span.start_ns} ns"),
        (
            span.stream != stream,
            f"a {span.kind} belongs to stream {stream}, not '{span.stream}'",
        ),
        (is_copy and (span.op or span.call >= 0), "a copy cannot have an operator call"),
        (not is_copy and span.bytes > 0, "a kernel copies no bytes"),
    )
    return [message for failed, message in checks if failed]
