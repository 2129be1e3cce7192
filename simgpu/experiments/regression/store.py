"""Writes and reads stored timings: a folder that is written atomically and validated when read.

timings.json         the inputs and settings, and each policy's values or failure, in a fixed order
<policy>.csv.gz      a policy's timeline, all iterations, as gzipped CSV with the columns
    iteration, gpu, stream, kind, name, bytes, cause   as in a run's timeline.csv
    delta_ns                                           start, relative to the start of the previous row (first: to 0)
    duration_ns                                        from start to end

With relative times, repeated iterations have the same text, which takes a third of the space, and two files differ
only in the rows whose events changed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem
from simgpu.experiments.outputs import folder_names
from simgpu.experiments.regression.timings import Outcome, PolicyTimings, Timings
from simgpu.io.atomic import atomic_folder
from simgpu.io.input_files import read_gzip_text, read_json
from simgpu.io.schema import FileModel, validate
from simgpu.timeline.model import Span, SpanKind, kind_of
from simgpu.timeline.streams import StreamId

TIMINGS = "timings.json"
_SCHEMA = "simgpu.timings/2"
_REMEDY = "restore it from version control, or store it again"


class _PolicyEntry(FileModel):
    label: str = Field(min_length=1)
    policy: str
    outcome: Outcome
    settings: dict[str, Any]
    timeline: str | None = None
    steady: bool | None = None
    values: dict[str, int | float | None] = Field(default={})
    failure: dict[str, Any] = Field(default={})


class _TimingsFile(FileModel):
    schema_: Literal["simgpu.timings/2"] = Field(alias="schema")
    simgpu: str
    name: str
    provenance: str
    overrides: dict[str, Any]
    inputs: dict[str, Any]
    policies: list[_PolicyEntry] = Field(min_length=1)


def write_timings(timings: Timings, folder: Path) -> None:
    """Write timings as one folder. Replaces a folder that holds stored timings and nothing else.

    Raises `InputError` for system errors, and if the folder holds anything else.
    """
    files = [f"{name}{SUFFIX}" for name in folder_names(timings.labels)]
    with atomic_folder(folder, foreign) as part:
        for policy, file in zip(timings.policies, files, strict=True):
            if policy.outcome == "ran":
                write_events(policy.events, part / file)
        text = json.dumps(_document(timings, files), indent=1, allow_nan=False, ensure_ascii=False)
        (part / TIMINGS).write_text(text + "\n", encoding="utf-8")


def read_timings(folder: Path) -> Timings:
    """Read the timings in a folder. Raises `InputError` with every problem of its files.

    >>> import simgpu, tempfile
    >>> from simgpu.experiments.regression.timings import timings_of
    >>> timings = timings_of(simgpu.load_scenario("resnet20-addressed", {"iterations": 1}))
    >>> folder = Path(tempfile.mkdtemp()) / "resnet20"
    >>> write_timings(timings, folder)
    >>> read_timings(folder) == timings
    True
    """
    path = folder / TIMINGS
    file = validate(_TimingsFile, _parsed(path), lambda place: (str(path), place))
    problems = _named_twice(path, file)
    policies = []
    for index, entry in enumerate(file.policies):
        place = f"policies[{index}]"
        try:
            events = read_events(_timeline(folder, entry, place)) if entry.outcome == "ran" else ()
        except InputError as error:
            problems += error.problems
            continue
        policies.append(PolicyTimings(**entry.model_dump(exclude={"timeline"}), events=events))
    if problems:
        raise InputError(problems)
    about = (file.name, file.simgpu, file.provenance, file.overrides, file.inputs)
    return Timings(*about, tuple(policies))


def holds_timings(folder: Path) -> bool:
    """Whether the folder holds stored timings, of any version."""
    try:
        schema = read_json(folder / TIMINGS)["schema"]
    except (InputError, KeyError, TypeError):
        return False
    return str(schema).startswith("simgpu.timings/")


def foreign(folder: Path) -> str:
    """What a folder holds that must not be replaced; empty if there is no such file."""
    if not holds_timings(folder):
        return "files that are not timings stored by simgpu"
    others = sorted(
        entry.name for entry in folder.iterdir() if entry.name != TIMINGS and not entry.name.endswith(SUFFIX)
    )
    return f"a file that does not belong to stored timings: {others[0]}" if others else ""


def _document(timings: Timings, files: list[str]) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "simgpu": timings.version,
        "name": timings.name,
        "provenance": timings.provenance,
        "overrides": timings.overrides,
        "inputs": timings.inputs,
        "policies": [_entry(policy, file) for policy, file in zip(timings.policies, files, strict=True)],
    }


def _entry(policy: PolicyTimings, file: str) -> dict[str, Any]:
    head = {"label": policy.label, "policy": policy.policy, "outcome": policy.outcome, "settings": policy.settings}
    if policy.outcome != "ran":
        return {**head, "failure": policy.failure}
    return {**head, "timeline": file, "steady": policy.steady, "values": policy.values}


def _named_twice(path: Path, file: _TimingsFile) -> list[Problem]:
    """Problems for repeated labels: current policies are matched with stored ones by label."""
    labels = [entry.label for entry in file.policies]
    twice = dict.fromkeys(label for label in labels if labels.count(label) > 1)
    return [Problem(str(path), "policies", f"two have the label {label!r}", _REMEDY) for label in twice]


def _parsed(path: Path) -> Mapping[str, Any]:
    document = read_json(path, "a JSON file", _REMEDY)
    if not isinstance(document, dict):
        raise InputError.single(path, "", "is not a mapping of keys to values", _REMEDY)
    return document


def _timeline(folder: Path, entry: _PolicyEntry, place: str) -> Path:
    name = entry.timeline or ""
    if not name.endswith(SUFFIX) or Path(name).name != name:
        what = f"{entry.timeline!r} is not the name of a file {SUFFIX} in the same folder"
        raise InputError.single(folder / TIMINGS, f"{place}.timeline", what, _REMEDY)
    return folder / name


COLUMNS = ("iteration", "gpu", "stream", "kind", "name", "delta_ns", "duration_ns", "bytes", "cause")
SUFFIX = ".csv.gz"


def write_events(events: Iterable[Span], path: Path) -> None:
    """Write spans. The same spans give the same bytes, whatever the time and the file name."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        previous_start = 0
        for span in events:
            delta, duration = span.start_ns - previous_start, span.end_ns - span.start_ns
            where = (span.iteration, span.gpu, span.stream, span.label, span.name)
            writer.writerow((*where, delta, duration, span.bytes, span.cause))
            previous_start = span.start_ns


def _kind(label: str) -> tuple[SpanKind, str]:
    if (known := kind_of(label)) is None:
        raise ValueError(f"{label!r} is not a kind of span")
    return known


def read_events(path: Path) -> tuple[Span, ...]:
    """Read the spans in a file. The `InputError` names the invalid row, or states that the file is damaged.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "none.csv.gz"
    >>> spans = (Span(0, "compute", SpanKind.COMPUTE, "conv1", 0, 7, 0, "", 0),)
    >>> write_events(spans, path)
    >>> read_events(path) == spans
    True
    """
    text = read_gzip_text(path, "a timeline that simgpu stored", _REMEDY)
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError.single(path, "", f"not readable as CSV ({error})", _REMEDY) from None
    if not rows or tuple(rows[0]) != COLUMNS:
        what = "does not have the columns of a stored timeline"
        raise InputError.single(path, "row 1", what, f"needs {','.join(COLUMNS)}; {_REMEDY}")
    spans: list[Span] = []
    start = 0
    for number, row in enumerate(rows[1:], start=2):
        try:
            iteration, gpu, stream, kind, name, delta, duration, size, cause = row
            start += int(delta)
            end = start + int(duration)
            activity, resource = _kind(kind)
            numbers = start, end, int(size)
            spans.append(Span(int(gpu), stream, activity, name, *numbers, cause, int(iteration), resource))
            StreamId.of(stream)
        except (ValueError, KeyError) as error:
            what = f"{','.join(row)[:80]!r} is not an event of a timeline ({error})"
            raise InputError.single(path, f"row {number}", what, _REMEDY) from None
    return tuple(spans)
