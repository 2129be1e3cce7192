"""An allocation trace on disk: a folder with allocations.yaml and tables of allocations, events, segments and stacks.

The format is described field by field in traces/README.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.atomic import atomic_folder
from simgpu.io.free_memory import require_memory
from simgpu.io.input_files import TABLE_LIMIT, YAML_LIMIT
from simgpu.trace.allocation_check import check_allocations, tables_of
from simgpu.trace.allocations import (
    Allocation,
    AllocationTrace,
    AllocatorAction,
    AllocatorEvent,
    AllocatorMark,
    AllocatorSegment,
    Frame,
    MarkStage,
)
from simgpu.trace.columns import CellError, Column, Table, number_column, text_column, word_column, yes_no_column
from simgpu.trace.model import Origin
from simgpu.trace.tables import ReadTable, read_table, write_table

SCHEMA = "simgpu.allocations/1"
FILE = "allocations.yaml"


@dataclass(frozen=True, slots=True)
class _Stack:
    """A row of stacks.csv: numbers of rows in frames.csv, from the innermost frame outwards."""

    frames: tuple[int, ...]


def _numbers(name: str) -> Column:
    def parse(text: str) -> tuple[int, ...]:
        parts = text.split()
        if not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
            raise CellError(f"'{text[:40]}' is not a list of numbers", "write whole numbers, separated by spaces")
        return tuple(map(int, parts))

    return Column(name, parse, lambda value: " ".join(map(str, value)), blank=())


_SEGMENT_COLUMNS = (
    number_column("address", "bytes"),
    number_column("size", "bytes"),
    number_column("stream", "streams", blank=0),
    yes_no_column("small", blank=False),
    yes_no_column("expandable", blank=False),
    number_column("private", "pools", blank=0),
)
_TABLES: dict[str, Table[Any]] = {
    "allocations": Table(
        "allocations.csv",
        Allocation,
        (
            number_column("size", "bytes"),
            number_column("address", "bytes"),
            number_column("stream", "streams", blank=0),
            number_column("private", "pools", blank=0),
            number_column("stack", "stacks", blank=None),
            text_column("category", blank=""),
            number_column("block_bytes", "bytes", blank=None),
            text_column("label", blank=""),
            replace(yes_no_column("optional", blank=False), omitted_if_blank=True),
        ),
    ),
    "events": Table(
        "events.csv",
        AllocatorEvent,
        (
            word_column("action", AllocatorAction, AllocatorAction.SNAPSHOT),
            number_column("allocation", "allocations", blank=None),
            number_column("address", "bytes", blank=0),
            number_column("size", "bytes", blank=0),
            number_column("stream", "streams", blank=0),
            number_column("stack", "stacks", blank=None),
            number_column("time_us", "microseconds", blank=None),
        ),
    ),
    "before": Table("segments_before.csv", AllocatorSegment, _SEGMENT_COLUMNS),
    "after": Table("segments_after.csv", AllocatorSegment, _SEGMENT_COLUMNS),
    "frames": Table(
        "frames.csv",
        Frame,
        (text_column("function", blank=""), text_column("file", blank=""), number_column("line", "lines", blank=0)),
    ),
    "stacks": Table("stacks.csv", _Stack, (_numbers("frames"),)),
    "marks": Table(
        "marks.csv",
        AllocatorMark,
        (
            number_column("event", "events"),
            text_column("name"),
            word_column("stage", MarkStage, MarkStage.MOMENT),
            number_column("time_us", "microseconds", blank=None),
        ),
    ),
}
_NEEDED = ("allocations", "events")
_KNOWN = (FILE, *(table.file for table in _TABLES.values()))
_ENDINGS = (".csv", ".yaml", ".yml")
#: Bytes of memory that a byte of these files takes while they are read and checked, by Python's own count; a test
#: holds it to real recordings. More where rows are short.
MEMORY_FACTOR = 9

_REQUIRED = ("name", "gpu", "tool", "origin")
_KEYS = ("schema", *_REQUIRED, "capacity", "settings", *_TABLES)


def is_allocation_folder(path: Path) -> bool:
    """Whether a folder has the head of an allocation trace; its content is not checked."""
    return (path / FILE).is_file()


def read_allocations(path: str | Path) -> AllocationTrace:
    """The allocation trace in a folder, checked.

    Raises `InputError` at once when the files would not fit into the memory that is free, else with every problem
    found: file, row (the header is row 1) and column, the value and what to do.
    """
    folder = Path(path)
    if not is_allocation_folder(folder):
        what = f"is not an allocation trace: that is a folder with {FILE}, allocations.csv and events.csv"
        raise InputError.single(folder, "", what, "write one with `simgpu trace import SNAPSHOT -o DIR`")
    require_memory(folder, [folder / name for name in _KNOWN if not _is_above_limit(folder / name)], MEMORY_FACTOR)
    values, places, problems = _read_head(folder / FILE)
    problems += _unknown_files(folder)
    tables: dict[str, ReadTable[Any]] = {}
    for name, table in _TABLES.items():
        file = folder / table.file
        tables[name] = read_table(file, table) if name in _NEEDED or os.path.lexists(file) else ReadTable()
        problems += tables[name].problems
    if all(table.sound for table in tables.values()):
        for name in _TABLES:
            problems += _count_problems(folder, name, values.get(name), tables[name], places)
        problems += _frame_problems(folder, tables)
    if problems:
        raise InputError(problems)
    trace = _trace(values, tables)
    if problems := check_allocations(trace, _Places(folder, tables, places).at):
        raise InputError(problems)
    return trace


def _is_above_limit(file: Path) -> bool:
    limit = YAML_LIMIT if file.name == FILE else TABLE_LIMIT
    return file.exists() and file.stat().st_size > limit


def _trace(values: Mapping[str, Any], tables: Mapping[str, ReadTable[Any]]) -> AllocationTrace:
    frames = tables["frames"].rows
    return AllocationTrace(
        name=values["name"],
        gpu=values["gpu"],
        tool=values["tool"],
        allocations=tuple(tables["allocations"].rows),
        events=tuple(tables["events"].rows),
        before=tuple(tables["before"].rows),
        after=tuple(tables["after"].rows),
        stacks=tuple(tuple(frames[number] for number in stack.frames) for stack in tables["stacks"].rows),
        settings=values.get("settings"),
        capacity=values.get("capacity"),
        marks=tuple(tables["marks"].rows),
        origin=Origin(values["origin"]),
    )


def _read_head(path: Path) -> tuple[dict[str, Any], dict[str, str], list[Problem]]:
    """The values of allocations.yaml, the place of each key, and what is wrong."""
    from simgpu.io.yaml_files import read_yaml_mapping

    try:
        document = read_yaml_mapping(path, SCHEMA, "import the recording again")
    except InputError as error:
        return {}, {}, list(error.problems)
    values = dict(document.values)
    places = {key: document.place(key) for key in _KEYS}
    problems = []

    def complain(place: str, what: str, remedy: str) -> None:
        problems.append(Problem(str(path), place, what, remedy))

    for key in (key for key in values if key not in _KEYS):
        complain(document.place(str(key)), f"unknown key '{key}'", did_you_mean(str(key), _KEYS))
    for key in _REQUIRED:
        if key not in values:
            complain("", f"key '{key}' is missing", f"the required keys are: schema, {', '.join(_REQUIRED)}")
    for key in ("name", "tool"):
        if not isinstance(values.get(key, ""), str):
            complain(places[key], f"{values[key]!r} is not a text", f'write it in quotes: {key}: "{values[key]}"')
    for key in ("gpu", "capacity", *_TABLES):
        if key in values and type(values[key]) is not int:
            complain(places[key], f"{values[key]!r} is not a whole number", "write digits only")
    if "origin" in values and values["origin"] not in list(Origin):
        complain(places["origin"], f"'{values['origin']}' is not an origin", did_you_mean("", list(Origin)))
    if not isinstance(values.get("settings", {}), dict):
        complain(places["settings"], f"{values['settings']!r} is not a mapping", "write 'setting: value' lines")
    return values, places, problems


def _unknown_files(folder: Path) -> list[Problem]:
    return [
        Problem(str(folder / name), "", "not a file of an allocation trace", did_you_mean(name, _KNOWN))
        for name in _foreign_names(folder)
        if Path(name).suffix.lower() in _ENDINGS
    ]


def _foreign_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in _KNOWN)


def _count_problems(
    folder: Path, name: str, promised: object, read: ReadTable[Any], places: Mapping[str, str]
) -> list[Problem]:
    if promised is None or promised == len(read.rows):
        return []
    file = _TABLES[name].file
    what = f"promises {promised} rows in {file}, which has {len(read.rows)}: is {file} cut off?"
    return [
        Problem(
            str(folder / FILE), places.get(name, name), what, f"if {file} is complete, correct or remove the number"
        )
    ]


def _frame_problems(folder: Path, tables: Mapping[str, ReadTable[Any]]) -> list[Problem]:
    """Stacks whose frames have no row."""
    count, stacks = len(tables["frames"].rows), tables["stacks"]
    return [
        Problem(
            str(folder / _TABLES["stacks"].file),
            f"row {line}, column frames",
            f"{max(stack.frames)} is not the number of one of the {count} frames",
            "number the rows of frames.csv from 0",
        )
        for stack, line in zip(stacks.rows, stacks.lines, strict=True)
        if stack.frames and max(stack.frames) >= count
    ]


@dataclass(frozen=True, slots=True)
class _Places:
    folder: Path
    tables: Mapping[str, ReadTable[Any]]
    keys: Mapping[str, str]

    def at(self, table: str, index: int, column: str) -> tuple[str, str]:
        """File and place of a value, for messages."""
        if table == "head":
            return str(self.folder / FILE), self.keys.get(column, column)
        return str(self.folder / _TABLES[table].file), f"row {self.tables[table].lines[index]}, column {column}"


def write_allocations(trace: AllocationTrace, folder: str | Path) -> None:
    """Write an allocation trace as a folder, atomically; the same bytes for the same trace.

    An empty folder, or one that holds nothing but an allocation trace, is replaced. Raises `InputError` when the trace
    is not valid, when the folder holds anything else, or when it cannot be written.

    >>> import tempfile
    >>> trace = AllocationTrace("two", 0, "by hand", (Allocation(512, 0),), (), (), (), settings=None)
    >>> folder = Path(tempfile.mkdtemp()) / "two"
    >>> write_allocations(trace, folder)
    >>> sorted(file.name for file in folder.iterdir()), read_allocations(folder) == trace
    (['allocations.csv', 'allocations.yaml', 'events.csv'], True)
    """
    if problems := check_allocations(trace):
        raise InputError(problems)
    with atomic_folder(folder, foreign_to_allocations) as part:
        rows = _rows(trace)
        (part / FILE).write_bytes(_head_text(trace, rows).encode())
        for name, table in _TABLES.items():
            if rows[name] or name in _NEEDED:
                write_table(part / table.file, table, rows[name])


def foreign_to_allocations(folder: Path) -> str:
    """The files that replacing the folder would lose, other than an allocation trace; empty if there are none."""
    result = _foreign_names(folder)
    return f"files that are not from an allocation trace, such as '{result[0]}'" if result else ""


def _rows(trace: AllocationTrace) -> dict[str, Sequence[Any]]:
    tables: dict[str, Sequence[Any]] = dict(tables_of(trace))
    number = {frame: index for index, frame in enumerate(tables["frames"])}
    return tables | {"stacks": [_Stack(tuple(number[frame] for frame in stack)) for stack in trace.stacks]}


def _head_text(trace: AllocationTrace, rows: Mapping[str, Sequence[Any]]) -> str:
    import yaml

    values: dict[str, object] = {"schema": SCHEMA}
    for key in (*_REQUIRED, "capacity", "settings"):
        value = getattr(trace, key)
        if isinstance(value, StrEnum):
            values[key] = str(value)
        elif isinstance(value, Mapping):
            values[key] = _plain(value)
        elif value is not None:
            values[key] = value
    values |= {name: len(rows[name]) for name in _TABLES}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=False, width=110)


def _plain(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: _plain(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
