"""A trace on disk: a folder with trace.yaml, kernels.csv, blocks.csv and optional tables.

The format is described field by field in traces/README.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.atomic import atomic_folder
from simgpu.io.free_memory import require_memory
from simgpu.io.input_files import TABLE_LIMIT, YAML_LIMIT
from simgpu.io.shipped import find
from simgpu.trace.check import check_trace
from simgpu.trace.columns import ACCESSES, ALGORITHMS, BLOCKS, COMPRESSIBILITY, KERNELS, MODULES, SAVED, SPARSITY, Table
from simgpu.trace.header import FILE, header_text, read_header
from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.trace.row_checks import Place
from simgpu.trace.tables import ReadTable, read_table, write_table

_TABLES: dict[str, Table[Any]] = {
    "kernels": KERNELS,
    "blocks": BLOCKS,
    "algorithms": ALGORITHMS,
    "sparsity": SPARSITY,
    "compressibility": COMPRESSIBILITY,
    "accesses": ACCESSES,
    "saved": SAVED,
    "modules": MODULES,
}
#: Replaces an unreadable trace.yaml, so that the tables are still checked; never returned.
_STAND_IN = TraceInfo("unread", 1, "unread", "unread", Origin.RECORDED, "unread")
_NEEDED = ("kernels", "blocks")
#: Optional: the compressed size of each memory-entry of the blocks (`simgpu.compression.buddy.stored`).
ENTRIES = "entries.npz"
_FILES = (FILE, *(table.file for table in _TABLES.values()))
_KNOWN = (*_FILES, ENTRIES)
#: A file with one of these endings and an unknown name is most likely misspelt.
_ENDINGS = (".csv", ".yaml", ".yml", ".npz")
#: Bytes of memory that a byte of these files takes while they are read and checked, by Python's own count: 5.4 to 9.3
#: on the shipped traces of over 10 KB, which tests hold to it; more where the rows are short.
MEMORY_FACTOR = 7.5


def load_trace(name_or_path: str | Path, base: Path | None = None) -> Trace:
    """A trace by its shipped name or its folder; a relative path starts at `base`, or at the current folder.

    Raises `InputError` with every problem of the folder's files.
    """
    return read_trace(find("traces", name_or_path, base))


def read_trace(path: str | Path) -> Trace:
    """The trace in a folder, checked.

    Raises `InputError` at once when the files would not fit into the memory that is free, else with every problem
    found: file, row (the header is row 1) and column, the offending value and what to do. Checks across rows wait
    until every file could be read and has the rows that trace.yaml promises.

    >>> from simgpu.io.shipped import find
    >>> trace = read_trace(find("traces", "vgg11-cifar-cpu"))
    >>> trace.info.model, trace.info.batch, trace.kernels[0].op
    ('vgg11', 32, 'aten::convolution')
    """
    folder = Path(path)
    _require_folder(folder)
    # Files above their own limit are left to their reader, which names them.
    require_memory(folder, [folder / name for name in _FILES if not _is_above_limit(folder / name)], MEMORY_FACTOR)
    header = read_header(folder / FILE)
    problems = _unknown_files(folder) + header.problems
    tables: dict[str, ReadTable[Any]] = {}
    for name, table in _TABLES.items():
        file = folder / table.file
        # A dangling link is an unreadable table, not a missing one.
        tables[name] = read_table(file, table) if name in _NEEDED or os.path.lexists(file) else ReadTable()
        problems += tables[name].problems
    trace = None
    if all(table.sound for table in tables.values()):
        for name, promised in header.counts.items():
            problems += _count_problems(folder, name, promised, tables[name], header.places[name])
    if all(table.sound for table in tables.values()):
        trace = Trace(
            header.info or _STAND_IN,
            kernels=tuple(tables["kernels"].rows),
            blocks=tuple(tables["blocks"].rows),
            algorithms=tuple(tables["algorithms"].rows),
            sparsity=tuple(tables["sparsity"].rows),
            compressibility=tuple(tables["compressibility"].rows),
            accesses=tuple(tables["accesses"].rows),
            saved=tuple(tables["saved"].rows),
            modules=tuple(tables["modules"].rows),
            name=folder.resolve().name,
        )
        problems += check_trace(trace, _places(folder, tables, header.places))
    if problems or trace is None:
        raise InputError(problems)
    return trace


def _is_above_limit(file: Path) -> bool:
    limit = YAML_LIMIT if file.name == FILE else TABLE_LIMIT
    return file.exists() and file.stat().st_size > limit


def _require_folder(folder: Path) -> None:
    if not folder.exists():
        raise InputError.single(folder, "", "no such folder", "give the path of a trace folder")
    if (folder / "allocations.yaml").exists() and not (folder / FILE).exists():
        what = "is an allocation trace: it has no kernels, so no kernel times and nothing that kernels read"
        remedy = f"explain it with `simgpu memory {folder}`; policies run on a trace of kernels, from `simgpu record`"
        raise InputError.single(folder, "", what, f"{remedy} or a profile (`simgpu trace import --profile`)")
    if not folder.is_dir() or not any((folder / file).exists() for file in _FILES):
        what = "is not a trace: a trace is a folder with trace.yaml, kernels.csv and blocks.csv"
        raise InputError.single(folder, "", what, "bring other recordings in with `simgpu trace import PATH -o DIR`")


def _unknown_files(folder: Path) -> list[Problem]:
    """Unknown tables: most likely a misspelt name. Other files, such as a README, are allowed."""
    return [
        Problem(str(folder / name), "", "not a file of a trace", did_you_mean(name, _KNOWN))
        for name in _foreign_names(folder)
        if Path(name).suffix.lower() in _ENDINGS
    ]


def other_files(folder: Path) -> list[str]:
    """Names of files and folders in a trace's folder that are no part of a trace, such as a README."""
    return [name for name in _foreign_names(folder) if Path(name).suffix.lower() not in _ENDINGS]


def _foreign_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in _KNOWN)


def _count_problems(folder: Path, name: str, promised: int, read: ReadTable[Any], place: str) -> list[Problem]:
    """Fewer rows than stated make a table unsound: references to the missing rows are then not reported."""
    if promised == len(read.rows):
        return []
    read.sound = promised < len(read.rows)
    if not read.rows:
        what = f"has no rows, and {FILE} promises {promised}: is it cut off?"
        return [Problem(str(folder / f"{name}.csv"), "", what, f"write it again, or correct the number in {FILE}")]
    what = f"promises {promised} rows in {name}.csv, which has {len(read.rows)}: is {name}.csv cut off?"
    return [Problem(str(folder / FILE), place, what, f"if {name}.csv is complete, correct the number or remove it")]


def _places(folder: Path, tables: dict[str, ReadTable[Any]], keys: Mapping[str, str]) -> Place:
    def at(table: str, index: int, column: str) -> tuple[str, str]:
        if table == "info":
            return str(folder / FILE), keys.get(column, column)
        file = str(folder / f"{table}.csv")
        if index < 0:
            return file, ""
        row = f"row {tables[table].lines[index]}"
        return file, f"{row}, column {column}" if column else row

    return at


def write_trace(trace: Trace, folder: str | Path) -> None:
    """Write a trace as a folder, atomically; the same bytes for the same trace.

    An empty folder, or one that holds nothing but a trace, is replaced. Raises `InputError` when the trace is not
    valid, when the folder holds anything else, or when it cannot be written.

    >>> import tempfile
    >>> from simgpu.trace.chain import chain
    >>> folder = Path(tempfile.mkdtemp()) / "two-layers"
    >>> write_trace(chain([1, 2], [3, 4], [100, 200]), folder)
    >>> sorted(file.name for file in folder.iterdir())
    ['blocks.csv', 'kernels.csv', 'trace.yaml']
    >>> read_trace(folder).compute_ns
    10
    """
    problems = check_trace(trace)
    if problems:
        raise InputError(problems)
    with atomic_folder(folder, foreign_files) as part:
        _write_files(trace, part)


def foreign_files(folder: Path) -> str:
    """The files that replacing the folder would lose, other than a trace; empty if there are none."""
    result = _foreign_names(folder)
    return f"files that are not from a trace, such as '{result[0]}'" if result else ""


def _write_files(trace: Trace, folder: Path) -> None:
    (folder / FILE).write_bytes(header_text(trace).encode())
    for name, table in _TABLES.items():
        rows = getattr(trace, name)
        if rows or name in _NEEDED:
            write_table(folder / table.file, table, rows)
