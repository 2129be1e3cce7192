"""``machine.yaml`` and ``runs.json`` of a recording: pydantic schemas, reading and writing.

Imports pydantic, so it is imported only when a file is read.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field

from simgpu.errors import MIGRATE, InputError, Problem
from simgpu.io.input_files import read_json
from simgpu.io.schema import LARGEST, Alignment, Bandwidth, FileModel, Size, TimeOrZero, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.units import BANDWIDTH_UNITS, BYTE_UNITS
from simgpu.validation.measured import Case, Copies, MeasuredMachine, MeasuredRun, Method

MACHINE_FILE = "machine.yaml"
MACHINE_SCHEMA = "simgpu.machine/2"
RUNS_FILE = "runs.json"
RUNS_SCHEMA = "simgpu.runs/2"
_HEAD = "# Measured by simgpu validate record.\n"
_BANDWIDTHS = ("d2h", "h2d", "bidirectional_d2h", "bidirectional_h2d")
_RECORD_AGAIN = "record the case again"


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is not a date: write 'YYYY-MM-DD'") from None


Text = Annotated[str, Field(min_length=1)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST)]
Nanoseconds = Annotated[int, Field(ge=1, le=LARGEST)]


class CopiesSection(FileModel):
    """Speed of copies, see `Copies`."""

    d2h: Bandwidth
    h2d: Bandwidth
    bidirectional_d2h: Bandwidth
    bidirectional_h2d: Bandwidth
    latency: TimeOrZero
    blocking: TimeOrZero


class MachineFile(FileModel):
    """``machine.yaml``, see `MeasuredMachine`."""

    schema_: Literal["simgpu.machine/2"] = Field(alias="schema")
    device: Text
    kind: Literal["cuda", "cpu"]
    memory: Size
    alignment: Alignment
    copy_engines: Annotated[int, Field(ge=1)]
    launch: TimeOrZero
    blocking_save_on_cpu: bool
    host: Text
    date: Annotated[str, AfterValidator(_day)]
    copies: CopiesSection
    versions: dict[str, str]
    settings: dict[str, str]


class RunEntry(FileModel):
    """One run, see `MeasuredRun`."""

    settings: dict[str, Any]
    step_ns: Annotated[list[Nanoseconds], Field(min_length=1)]
    peak_bytes: Bytes
    initial_bytes: Bytes
    d2h_bytes: Bytes
    h2d_bytes: Bytes


class RunsSection(FileModel):
    """The runs by method; None if the method was not run."""

    plain: RunEntry | None = None
    checkpoint: RunEntry | None = None
    save_on_cpu: RunEntry | None = None
    async_offload: RunEntry | None = None
    plan: RunEntry | None = None


class AbsentSection(FileModel):
    """The reason why each missing method was not run."""

    plain: Text | None = None
    checkpoint: Text | None = None
    save_on_cpu: Text | None = None
    async_offload: Text | None = None
    plan: Text | None = None


class RunsFile(FileModel):
    """``runs.json``, see `Case`."""

    schema_: Literal["simgpu.runs/2"] = Field(alias="schema")
    model: Text
    batch: Annotated[int, Field(ge=1)]
    setup: dict[str, Any]
    runs: RunsSection
    absent: AbsentSection = AbsentSection()


@dataclass(frozen=True, slots=True)
class ReadRuns:
    """The content of ``runs.json``; its runs have no timelines and no plan."""

    model: str
    batch: int
    setup: Mapping[str, Any]
    runs: Mapping[Method, MeasuredRun]
    absent: Mapping[Method, str]


def read_machine(path: Path) -> MeasuredMachine:
    """The machine in a file; raises `InputError` with every problem in it."""
    document = read_yaml_mapping(path, MACHINE_SCHEMA)
    read = validate(MachineFile, document.values, lambda dotted: (str(path), document.place(dotted)))
    copies = read.copies
    return MeasuredMachine(
        **read.model_dump(exclude={"schema_", "copies", "launch"}),
        copies=Copies(
            **{name: getattr(copies, name) for name in _BANDWIDTHS},
            latency_ns=copies.latency,
            blocking_ns=copies.blocking,
        ),
        launch_ns=read.launch,
    )


def machine_text(machine: MeasuredMachine) -> str:
    """The text of the file; `read_machine` reads back exactly the same numbers."""
    copies = machine.copies
    document = {
        "schema": MACHINE_SCHEMA,
        "device": machine.device,
        "kind": machine.kind,
        "memory": _size(machine.memory),
        "alignment": _size(machine.alignment),
        "copy_engines": machine.copy_engines,
        "launch": f"{machine.launch_ns} ns",
        "blocking_save_on_cpu": machine.blocking_save_on_cpu,
        "host": machine.host,
        "date": machine.date,
        "copies": {
            **{name: _speed(getattr(copies, name)) for name in _BANDWIDTHS},
            "latency": f"{copies.latency_ns} ns",
            "blocking": f"{copies.blocking_ns} ns",
        },
        "versions": dict(machine.versions),
        "settings": dict(machine.settings),
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def read_runs(path: Path) -> ReadRuns:
    """The content of a file; raises `InputError` with every problem in it."""
    read = validate(RunsFile, _json_of(path), lambda dotted: (str(path), dotted))
    runs = {
        method: MeasuredRun(method, **{**dict(entry), "step_ns": tuple(entry.step_ns)})
        for method in Method
        if (entry := getattr(read.runs, method)) is not None
    }
    absent = {method: reason for method in Method if (reason := getattr(read.absent, method)) is not None}
    problems = [
        Problem(str(path), f"absent.{method}", "is listed as absent and has a run", "remove one of the two")
        for method in absent
        if method in runs
    ]
    for method, run in runs.items():
        if run.peak_bytes < run.initial_bytes:
            message = f"{run.peak_bytes} is less than the {run.initial_bytes} allocated at its start"
            problems.append(Problem(str(path), f"runs.{method}.peak_bytes", message, _RECORD_AGAIN))
    if not runs:
        problems.append(Problem(str(path), "runs", "has no run", _RECORD_AGAIN))
    if problems:
        raise InputError(problems)
    return ReadRuns(read.model, read.batch, read.setup, runs, absent)


def runs_text(case: Case) -> str:
    """The text of the file; the same runs give the same bytes."""
    document = {
        "schema": RUNS_SCHEMA,
        "model": case.model,
        "batch": case.batch,
        "setup": dict(case.setup),
        "runs": {
            str(method): {field: getattr(run, field) for field in RunEntry.model_fields}
            for method, run in case.runs.items()
        },
        "absent": {str(method): reason for method, reason in case.absent.items()},
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _json_of(path: Path) -> dict[str, Any]:
    document = read_json(path, remedy=_RECORD_AGAIN)
    if not isinstance(document, dict):
        raise InputError.single(path, "", "is not a mapping of keys to values", _RECORD_AGAIN)
    schema = document.get("schema")
    if schema == RUNS_SCHEMA:
        return document
    kind, _, version = RUNS_SCHEMA.rpartition("/")
    if isinstance(schema, str) and schema.rpartition("/")[0] == kind:
        message = f"{schema!r} is another version; this simgpu reads version {version}"
        raise InputError.single(path, "schema", message, f"rewrite the file: {MIGRATE}, or {_RECORD_AGAIN}")
    raise InputError.single(path, "schema", f"{schema!r} is not the schema expected here", f"write {RUNS_SCHEMA!r}")


def _size(number: int) -> str:
    """Bytes in the largest binary unit that divides them."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if number % BYTE_UNITS[unit] == 0), "B")
    return f"{number // BYTE_UNITS[unit]} {unit}"


def _speed(number: int) -> str:
    """Bytes per second as exact GB/s.

    >>> _speed(54_321_098_765)
    '54.321098765 GB/s'
    """
    return f"{Decimal(number) / BANDWIDTH_UNITS['GB/s']:f} GB/s"
