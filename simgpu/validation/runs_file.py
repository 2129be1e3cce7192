"""``runs.json``: the runs of one case on disk, but for their timelines.

Imports pydantic, so it is imported only when a file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem
from simgpu.io.input_files import read_json
from simgpu.io.schema import LARGEST, FileModel, validate
from simgpu.validation.measured import Case, MeasuredRun, Method

FILE = "runs.json"
SCHEMA = "simgpu.runs/2"

Text = Annotated[str, Field(min_length=1)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST)]
Nanoseconds = Annotated[int, Field(ge=1, le=LARGEST)]


class RunEntry(FileModel):
    """One run, see `MeasuredRun`."""

    settings: dict[str, Any]
    step_ns: Annotated[list[Nanoseconds], Field(min_length=1)]
    peak_bytes: Bytes
    held_bytes: Bytes
    d2h_bytes: Bytes
    h2d_bytes: Bytes


class RunsSection(FileModel):
    """The run of each method that could be run."""

    plain: RunEntry | None = None
    checkpoint: RunEntry | None = None
    save_on_cpu: RunEntry | None = None
    async_offload: RunEntry | None = None


class AbsentSection(FileModel):
    """Why a method could not be run."""

    plain: Text | None = None
    checkpoint: Text | None = None
    save_on_cpu: Text | None = None
    async_offload: Text | None = None


class RunsFile(FileModel):
    """The whole file, see `Case`."""

    schema_: Literal["simgpu.runs/2"] = Field(alias="schema")
    model: Text
    batch: Annotated[int, Field(ge=1)]
    made: dict[str, Any]
    runs: RunsSection
    absent: AbsentSection = AbsentSection()


@dataclass(frozen=True, slots=True)
class ReadRuns:
    """What a file tells of a case; its runs are without timelines."""

    model: str
    batch: int
    made: Mapping[str, Any]
    runs: Mapping[Method, MeasuredRun]
    absent: Mapping[Method, str]


def read_runs(path: Path) -> ReadRuns:
    """The content of a file; raises `InputError` with every problem found."""
    read = validate(RunsFile, _json_of(path), lambda dotted: (str(path), dotted))
    runs = {
        method: MeasuredRun(
            method,
            entry.settings,
            tuple(entry.step_ns),
            entry.peak_bytes,
            entry.held_bytes,
            entry.d2h_bytes,
            entry.h2d_bytes,
        )
        for method in Method
        if (entry := getattr(read.runs, method)) is not None
    }
    absent = {method: why for method in Method if (why := getattr(read.absent, method)) is not None}
    problems = [
        Problem(str(path), f"absent.{method}", "is told to be absent, and has a run", "remove one of the two")
        for method in absent
        if method in runs
    ]
    problems += [
        Problem(
            str(path),
            f"runs.{method}.peak_bytes",
            f"{run.peak_bytes} is less than the {run.held_bytes} held before the step",
            "record the case again",
        )
        for method, run in runs.items()
        if run.peak_bytes < run.held_bytes
    ]
    if not runs:
        problems.append(Problem(str(path), "runs", "there are none", "record the case again"))
    if problems:
        raise InputError(problems)
    return ReadRuns(read.model, read.batch, read.made, runs, absent)


def runs_text(case: Case) -> str:
    """The file's text; the same bytes for the same runs."""
    document = {
        "schema": SCHEMA,
        "model": case.model,
        "batch": case.batch,
        "made": dict(case.made),
        "runs": {
            str(method): {
                "settings": dict(run.settings),
                "step_ns": list(run.step_ns),
                "peak_bytes": run.peak_bytes,
                "held_bytes": run.held_bytes,
                "d2h_bytes": run.d2h_bytes,
                "h2d_bytes": run.h2d_bytes,
            }
            for method, run in case.runs.items()
        },
        "absent": {str(method): why for method, why in case.absent.items()},
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _json_of(path: Path) -> dict[str, Any]:
    document = read_json(path, remedy="record the case again")
    if not isinstance(document, dict):
        raise InputError.single(path, "", "is not a mapping of keys to values", "record the case again")
    given = document.get("schema")
    if given != SCHEMA:
        kind, _, version = SCHEMA.rpartition("/")
        if isinstance(given, str) and given.rpartition("/")[0] == kind:
            what = f"{given!r} is another version; this simgpu reads version {version}"
            raise InputError.single(
                path, "schema", what, "read it with the simgpu that wrote it, or record the case again"
            )
        raise InputError.single(path, "schema", f"{given!r} is not the schema expected here", f"write {SCHEMA!r}")
    return document
