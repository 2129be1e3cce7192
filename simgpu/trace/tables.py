"""Reading one CSV file of a trace into rows, with every error by row and column, and writing it."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.input_files import read_text
from simgpu.trace.columns import REQUIRED, CellError, Column, Row, Table

_UNIT_SUFFIX = re.compile(r"_?(ns|us|µs|ms|s|sec|seconds|b|kb|mb|gb|kib|mib|gib|bytes)$")
_UNIT_OF = {"ns": "nanoseconds", "bytes": "bytes"}


@dataclass(slots=True)
class ReadTable(Generic[Row]):
    """What came out of a file: rows, the line each begins on (the header is line 1), problems.

    sound: whether every row is there, so that checks across rows make sense.
    """

    rows: list[Row] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sound: bool = True


def read_table(path: Path, table: Table[Row]) -> ReadTable[Row]:
    """All rows of a CSV file; cells that cannot be read become problems and a stand-in value."""
    try:
        text = read_text(path, "a CSV text file", if_empty="write it again, or remove it if not needed")
    except InputError as error:
        return ReadTable(problems=list(error.problems), sound=False)
    return table_of(text, path, table)


def table_of(text: str, path: Path, table: Table[Row]) -> ReadTable[Row]:
    """All rows of a CSV file's text, however it was read; see `read_table`."""
    result: ReadTable[Row] = ReadTable()
    # An optimizer's kernel names thousands of blocks in one cell, more than csv reads by default; `read_text` has
    # limited the text. The limit is of the whole process, so it is only raised: other threads may be reading.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        problems = _header_problems(path, header, table.columns)
        if problems:
            return ReadTable(problems=problems, sound=False)
        _read_rows(reader, header, path, table, result)
    except csv.Error as error:
        what = f"not readable as CSV ({error}); is the file cut off, or a quote left open?"
        result.problems.append(Problem(str(path), f"row {reader.line_num}", what, "write the file again"))
        result.sound = False
    if not text.endswith(("\n", "\r")):
        last = text.count("\n") + 1
        what = "the last line does not end in a line break: the file seems cut off"
        remedy = "write the file again, or end the line if the file is complete"
        result.problems.append(Problem(str(path), f"row {last}", what, remedy))
        result.sound = False
    return result


def write_table(path: Path, table: Table[Row], rows: Sequence[Row]) -> None:
    """Rows as the CSV file that `read_table` reads: UTF-8, lines that end in a line feed."""
    columns = [column for column in table.columns if not column.omitted_if_blank or _is_used(column, rows)]
    names = [column.name for column in columns]
    cells = attrgetter(*names)
    writers = [column.write for column in columns]
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        for row in rows:
            values = cells(row) if len(names) > 1 else (cells(row),)
            out.writerow([write(value) for write, value in zip(writers, values, strict=True)])


def _is_used(column: Column, rows: Sequence[object]) -> bool:
    return any(getattr(row, column.name) != column.blank for row in rows)


def _header_problems(path: Path, header: list[str], columns: Sequence[Column]) -> list[Problem]:
    known = {column.name for column in columns}
    for separator in (";", "\t"):
        if len(header) == 1 and separator in header[0]:
            what = f"columns are separated by {separator!r}"
            return [Problem(str(path), "row 1", what, "separate them by commas")]
    problems = []
    meant = set(header)
    for name in header:
        if name in known:
            continue
        place = f"row 1, column {name}"
        if right := _in_right_unit(name, known):
            unit = _UNIT_OF.get(right.rsplit("_", 1)[-1])
            remedy = f"give {right}, in {unit}" if unit else f"give {right}"
            problems.append(Problem(str(path), place, f"wrong unit: unknown column '{name}'", remedy))
        else:
            problems.append(Problem(str(path), place, f"unknown column '{name}'", did_you_mean(name, known)))
            right = "".join(difflib.get_close_matches(name, sorted(known), n=1))
        meant.add(right)
    for name in sorted({name for name in header if header.count(name) > 1}):
        problems.append(Problem(str(path), f"row 1, column {name}", "the column is there twice", "keep one"))
    for column in columns:
        if column.name not in meant and not column.may_be_absent:
            what = f"column '{column.name}' is missing"
            remedy = f"the columns are: {', '.join(column.name for column in columns)}"
            problems.append(Problem(str(path), "row 1", what, remedy))
    return problems


def _in_right_unit(name: str, known: set[str]) -> str:
    """The known column that this name gives in another unit, as duration_us does; empty when there is none."""
    stem = _UNIT_SUFFIX.sub("", name.lower())
    for right in (f"{stem}_ns", f"{stem}_bytes", stem):
        if stem != name and right in known:
            return right
    return ""


def _read_rows(reader: Any, header: list[str], path: Path, table: Table[Row], result: ReadTable[Row]) -> None:
    plan = [(header.index(c.name) if c.name in header else -1, c) for c in table.columns]
    short: list[tuple[int, int]] = []
    line = reader.line_num + 1
    for cells in reader:
        if cells:
            if len(cells) == len(header):
                result.rows.append(table.row(*_values(cells, plan, path, line, result.problems)))
                result.lines.append(line)
            else:
                short.append((line, len(cells)))
        line = reader.line_num + 1
    for where, count in short:
        cut = count < len(header) and where == short[-1][0] and where > (result.lines or [1])[-1]
        what = f"{count} fields where the header has {len(header)}"
        what = f"{what}: the file seems cut off" if cut else what
        result.problems.append(Problem(str(path), f"row {where}", what, "write one field for each column"))
        result.sound = False


def _values(
    cells: list[str], plan: list[tuple[int, Column]], path: Path, line: int, problems: list[Problem]
) -> list[Any]:
    values = []
    for position, column in plan:
        text = cells[position].strip() if position >= 0 else ""
        if text:
            try:
                values.append(column.parse(text))
                continue
            except CellError as error:
                place = f"row {line}, column {column.name}"
                problems.append(Problem(str(path), place, error.what, error.remedy))
        elif column.blank is not REQUIRED:
            values.append(column.blank)
            continue
        else:
            place = f"row {line}, column {column.name}"
            problems.append(Problem(str(path), place, "the cell is blank", f"give the {column.name}"))
        values.append(column.stand_in if column.blank is REQUIRED else column.blank)
    return values
