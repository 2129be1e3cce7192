"""A recording on disk: a folder with machine.yaml and a folder for each case.

The format is described field by field in recordings/README.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.atomic import atomic_file, atomic_folder, refuse_foreign, unwritable
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import Trace
from simgpu.validation import machine_file, runs_file
from simgpu.validation.machine_file import machine_text, read_machine
from simgpu.validation.measured import Case, MeasuredMachine, MeasuredRun, Method, Recording
from simgpu.validation.runs_file import ReadRuns, read_runs, runs_text
from simgpu.validation.span_table import read_spans, write_spans

TRACE = "trace"
SHIPPED = Path(__file__).resolve().parent / "recordings"
#: Of a method's timeline, behind the method's name.
_SPANS = ".csv.gz"
_FILES = (TRACE, runs_file.FILE, *(f"{method}{_SPANS}" for method in Method))
#: May lie beside: for people.
_README = "README.md"


def shipped_recordings() -> tuple[str, ...]:
    """The names of the recordings that ship with simgpu, sorted."""
    return tuple(sorted(found.parent.name for found in SHIPPED.glob(f"*/{machine_file.FILE}")))


def load_recording(name_or_path: str | Path) -> Recording:
    """A shipped recording by its name, or one in a folder; a bare word is a shipped name first.

    Raises `InputError` as `read_recording` does, and where there is neither.

    >>> load_recording("nowhere")
    Traceback (most recent call last):
    simgpu.errors.InputError: no shipped recording is called 'nowhere'; ...
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
    """The recording in a folder, its cases in the order of their names.

    Raises `InputError` with the problems of all its files.
    """
    folder = Path(path)
    if not folder.exists():
        raise InputError.single(folder, "", "no such folder", "give the path of a recording")
    if not folder.is_dir() or not (folder / machine_file.FILE).exists():
        what = f"is not a recording: a recording is a folder with {machine_file.FILE} and a folder for each case"
        raise InputError.single(folder, "", what, "make one with `simgpu validate record -o DIR`")
    problems: list[Problem] = []
    machine, cases = None, []
    try:
        machine = read_machine(folder / machine_file.FILE)
    except InputError as error:
        problems += error.problems
    for place in case_folders(folder):
        try:
            cases.append(read_case(place))
        except InputError as error:
            problems += error.problems
    if not cases and not problems:
        problems.append(Problem(str(folder), "", "holds no case", "record one with `simgpu validate record`"))
    if problems or machine is None:
        raise InputError(problems)
    return Recording(folder.resolve().name, machine, tuple(cases))


def case_folders(folder: Path) -> list[Path]:
    """Where the cases of a recording are, by name; folders that are being written have a dot before their names."""
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))


def read_case(folder: Path) -> Case:
    """The case in a folder; raises `InputError` with the problems of all its files."""
    problems = _unknown_files(folder)
    trace: Trace | None = None
    read: ReadRuns | None = None
    runs: dict[Method, MeasuredRun] = {}
    try:
        trace = read_trace(folder / TRACE)
    except InputError as error:
        problems += error.problems
    try:
        read = read_runs(folder / runs_file.FILE)
    except InputError as error:
        problems += error.problems
    for method, run in read.runs.items() if read else ():
        spans = read_spans(folder / f"{method}{_SPANS}")
        problems += spans.problems
        runs[method] = replace(run, spans=tuple(spans.rows))
    if trace is not None and read is not None:
        problems += _mismatches(folder, trace, read)
    if problems or trace is None or read is None:
        raise InputError(problems)
    return Case(read.model, read.batch, replace(trace, name=folder.name), runs, read.absent, read.made)


def _unknown_files(folder: Path) -> list[Problem]:
    names = sorted(entry.name for entry in folder.iterdir())
    return [
        Problem(str(folder / name), "", "not a file of a case", did_you_mean(name, _FILES))
        for name in names
        if name not in (*_FILES, _README)
    ]


def _mismatches(folder: Path, trace: Trace, read: ReadRuns) -> list[Problem]:
    """Where the files of a case speak of different things."""
    runs = str(folder / runs_file.FILE)
    told = [
        (place, mine, its)
        for place, mine, its in (("model", read.model, trace.info.model), ("batch", read.batch, trace.info.batch))
        if mine != its
    ]
    problems = [
        Problem(runs, place, f"{mine!r} is not what the trace beside it tells, {its!r}", "record the case again")
        for place, mine, its in told
    ]
    name = f"{read.model}-b{read.batch}"
    if folder.name != name:
        problems.append(Problem(str(folder), "", f"holds the case {name}", f"call the folder {name}"))
    spare = [method for method in Method if method not in read.runs and (folder / f"{method}{_SPANS}").exists()]
    problems += [
        Problem(runs, "runs", f"has no run of {method}, whose timeline is there", "record the case again")
        for method in spare
    ]
    return problems


def write_recording(recording: Recording, folder: str | Path) -> None:
    """Write a recording as a folder that appears whole or not at all; the same bytes for the same recording.

    Another recording there is replaced. Raises `InputError` where the folder holds anything else, or cannot be written.
    """
    with atomic_folder(folder, strangers) as part:
        (part / machine_file.FILE).write_text(machine_text(recording.machine), encoding="utf-8")
        for case in recording.cases:
            (part / case.name).mkdir()
            _write_files(case, part / case.name)


def write_machine(machine: MeasuredMachine, folder: Path) -> None:
    """Write machine.yaml into a folder, which is made if there is none; `InputError` where the folder is another's."""
    refuse_foreign(folder, strangers)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    with atomic_file(folder / machine_file.FILE) as part:
        part.write_text(machine_text(machine), encoding="utf-8")


def write_case(case: Case, folder: Path) -> None:
    """Write a case into the folder of its recording, in a folder of its own that appears whole or not at all."""
    with atomic_folder(folder / case.name, _strangers_of_case) as part:
        _write_files(case, part)


def strangers(folder: Path) -> str:
    """Says that there are files that no recording has; empty where none are."""
    known = {machine_file.FILE, _README}
    found = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in known and not _left_over(entry.name) and not (entry / runs_file.FILE).exists()
    )
    return f"files that are not from a recording, such as '{found[0]}'" if found else ""


def _left_over(name: str) -> bool:
    """Of a write that was killed (`simgpu.io.atomic`)."""
    return name.startswith(".") and name.endswith((".part", ".old"))


def _strangers_of_case(folder: Path) -> str:
    found = sorted(entry.name for entry in folder.iterdir() if entry.name not in (*_FILES, _README))
    return f"files that are not from a case, such as '{found[0]}'" if found else ""


def _write_files(case: Case, folder: Path) -> None:
    write_trace(case.trace, folder / TRACE)
    (folder / runs_file.FILE).write_text(runs_text(case), encoding="utf-8")
    for method, run in case.runs.items():
        write_spans(folder / f"{method}{_SPANS}", run.spans)
