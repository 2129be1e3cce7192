"""Stores finished points in a SQLite database that stays valid if the process is killed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.experiments.sweep.point import PointRows
from simgpu.experiments.sweep.table import OUTCOME, PARAMETERS, PROVENANCE
from simgpu.io.atomic import unwritable
from simgpu.io.input_files import first_bytes, parse_json, require_regular

FILE = "points.sqlite"
#: The application id of these SQLite files ("simg").
_APPLICATION = 0x73696D67
_REMEDY = "remove it, or choose another folder with -o"
#: Points per query.
_PAGE = 4096

_TABLES = """
create table if not exists about (key text primary key, value text not null) without rowid;
create table if not exists points (
    point integer primary key, again integer not null, rows text not null, decided integer
);
create table if not exists decided (id integer primary key, what text not null unique, current integer not null);
"""
#: Conditions: the point's fingerprint is a current one; and the point need not run again.
_CURRENT = "decided in (select id from decided where current = 1)"
_FINISHED = f"again = 0 and {_CURRENT}"


class Store:
    """The finished points of one sweep, in a folder or, without one, in memory.

    Locks the file until it is closed. Raises `InputError` if another process has locked it, and for system errors.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._file = ":memory:" if folder is None else str(folder / FILE)
        if folder is not None and os.path.lexists(self._file):
            require_regular(self._file, "a folder without it")
        try:
            self._database = sqlite3.connect(self._file, timeout=0, isolation_level=None, check_same_thread=False)
            # The first access locks the file for this process, until it is closed or dies.
            self._database.execute("pragma locking_mode = exclusive")
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("begin exclusive")
            for statement in _TABLES.split(";"):
                self._database.execute(statement)
            columns = self._database.execute("select name from pragma_table_info('points')")
            if ("decided",) not in columns:  # a file of an earlier simgpu
                self._database.execute("alter table points add column decided integer")
            self._database.execute(f"pragma application_id = {_APPLICATION}")
            self._database.execute("commit")
            self._database.execute("pragma synchronous = normal")
        except sqlite3.Error as error:
            raise _refused(self._file, error) from error

    def about(self) -> dict[str, Any]:
        """The notes on the sweep, by key."""
        with self._reporting():
            return {
                key: parse_json(value, self._file, _REMEDY)
                for key, value in self._database.execute("select key, value from about")
            }

    def note(self, about: Mapping[str, object]) -> None:
        """Add or replace notes on the sweep."""
        with self._writing():
            rows = [(key, json.dumps(value)) for key, value in about.items()]
            self._database.executemany("insert or replace into about values (?, ?)", rows)

    def clear(self) -> None:
        """Delete everything."""
        with self._writing():
            for table in ("points", "about", "decided"):
                self._database.execute(f"delete from {table}")

    def save(self, finished: PointRows, fingerprint: Mapping[str, object]) -> None:
        """Store a point and its fingerprint atomically."""
        what = json.dumps(fingerprint, sort_keys=True)
        row = (finished.point, finished.again, json.dumps(finished.rows, allow_nan=False), what)
        with self._writing():
            self._database.execute("insert or ignore into decided (what, current) values (?, 1)", (what,))
            self._database.execute("insert or replace into points select ?, ?, ?, id from decided where what = ?", row)

    def fingerprints(self) -> list[tuple[int | None, dict[str, Any] | None, int]]:
        """Each fingerprint of finished points: its id, its value and its number of points; None if not known."""
        query = """
            select decided.id, what, count(*) from points left join decided on points.decided = decided.id
            where again = 0 group by decided.id order by min(point)
        """
        with self._reporting():
            rows = self._database.execute(query).fetchall()
            parsed = [
                (number, None if what is None else parse_json(what, self._file, _REMEDY), count)
                for number, what, count in rows
            ]
        for _, what, _ in parsed:
            if what is not None and (fault := decided_fault(what)):
                raise self.damaged(fault)
        return parsed

    def damaged(self, what: str, place: str = "") -> InputError:
        """The error for a file that SQLite can read, but whose contents are invalid."""
        return InputError.single(self._file, place, f"is damaged: {what}", _REMEDY)

    def require_points(self, count: int) -> None:
        """Raise `InputError` if a stored point is not among the `count` points of the sweep."""
        with self._reporting():
            query = "select point from points where point < 0 or point >= ? limit 1"
            outside = self._database.execute(query, (count,)).fetchone()
        if outside is not None:
            raise self.damaged(f"the sweep has {count} points", f"point {outside[0]}")

    def set_current(self, numbers: Iterable[int]) -> None:
        """Mark the current fingerprints, by id. Points with other fingerprints run again."""
        with self._writing():
            self._database.execute("update decided set current = 0 where current = 1")
            self._database.executemany("update decided set current = 1 where id = ?", [(each,) for each in numbers])

    def invalidate_current(self) -> None:
        """Remove the fingerprint of every current point, so that the point is never reused."""
        with self._writing():
            self._database.execute(f"update points set decided = null where {_CURRENT}")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report system errors and damaged files as `InputError`."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            raise _refused(self._file, error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block as a transaction."""
        with self._reporting():
            self._database.execute("begin immediate")
            try:
                yield
                self._database.execute("commit")
            finally:
                if self._database.in_transaction:
                    self._database.execute("rollback")

    def finished(self) -> int:
        """The number of points that need not run again."""
        with self._reporting():
            ((count,),) = self._database.execute(f"select count(*) from points where {_FINISHED}")
            return int(count)

    def pending(self, count: int) -> Iterator[int]:
        """The points below `count` without a result, ascending. Points already yielded may be saved meanwhile."""
        query = f"select point from points where {_FINISHED} and point >= ? order by point limit ?"
        start = 0
        while True:
            with self._reporting():
                known = [point for (point,) in self._database.execute(query, (start, _PAGE))]
            for point in known:
                yield from range(start, min(point, count))
                start = point + 1
            if len(known) < _PAGE:
                yield from range(start, count)
                return

    def rows(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """The stored points, ascending, with their rows."""
        with self._reporting():
            yield from _rows(self._database, self._file)

    def close(self) -> None:
        """Close the file and remove its write-ahead log."""
        with suppress(sqlite3.Error):  # if the disk is full, the log is merged when the file is next opened
            self._database.execute("pragma journal_mode = delete")
        self._database.close()


def is_store(folder: Path) -> bool:
    """Whether a folder holds the points of a sweep, or an empty file for them. Writes nothing."""
    try:
        head = first_bytes(folder / FILE, 72)
    except InputError:
        return False
    # https://www.sqlite.org/fileformat.html, section 1.3: the application id is at 68, once the log is merged.
    return not head or (
        head.startswith(b"SQLite format 3") and head[68:] in (bytes(4), _APPLICATION.to_bytes(4, "big"))
    )


def stored(folder: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The points stored in a folder, ascending, with their rows. No process may be running the sweep."""
    file = folder / FILE
    require_regular(file)
    database = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        yield from _rows(database, file)
    except (sqlite3.Error, ValueError) as error:
        raise _refused(str(file), error) from error
    finally:
        database.close()


def _rows(database: sqlite3.Connection, file: str | Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for point, text in database.execute("select point, rows from points order by point"):
        rows: Any = parse_json(text, file, _REMEDY) if isinstance(text, str) else None
        if fault := rows_fault(rows):
            raise InputError.single(file, f"point {point}", f"is damaged: {fault}", _REMEDY)
        yield point, rows


def _refused(file: str, error: Exception) -> InputError:
    """The `InputError` for an error of the database, or for damaged contents."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        remedy = "wait for it, or choose another folder with -o"
        return InputError.single(file, "", "another sweep is running in this folder", remedy)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or isinstance(error, ValueError):
        return InputError.single(file, "", f"is damaged: {error}", _REMEDY)
    return unwritable(Path(file), OSError(0, str(error)))


# The file may have been edited, or damaged in a way that SQLite does not detect.
_KINDS = {column.name: column.kind for column in (*PARAMETERS, *OUTCOME, *PROVENANCE)}
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "text": (str,)}
#: Types in the other columns, which hold measured numbers.
_NUMBERS = (int, float, bool)


def rows_fault(rows: object) -> str:
    """The fault in the rows of a point; empty if there is none.

    >>> rows_fault([{"outcome": "ok", "batch": 32, "iteration_ns": 63}]), rows_fault([{"outcome": "ok", "batch": "x"}])
    ('', "its batch is 'x'")
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "its rows are not a table"
    for row in rows:
        if not isinstance(row.get("outcome"), str):
            return "a row has no outcome"
        for name, value in row.items():
            types = _TYPES[_KINDS[name]] if name in _KINDS else _NUMBERS
            if value is not None and type(value) not in types:
                return f"its {name[:40]} is {repr(value)[:40]}"
    return ""


def decided_fault(decided: object) -> str:
    """The fault in the fingerprint of rows (`simgpu.experiments.sweep.fingerprint`); empty if there is none.

    >>> decided_fault({"code": "aa", "libraries": {}, "policies": {"none": {"libraries": {}}}}), decided_fault([])
    ('', 'the fingerprint of its points is incomplete')
    """
    parts = (decided, *_values(decided, "policies"))
    valid = all(isinstance(_value(part, "libraries"), dict) for part in parts)
    complete = valid and isinstance(_value(decided, "policies"), dict)
    return "" if complete else "the fingerprint of its points is incomplete"


def identity_fault(swept: object) -> str:
    """The fault in the identity of a sweep (`simgpu.experiments.sweep.folder`); empty if there is none."""
    mappings = ("scenario", "overrides", "inputs")
    valid = all(isinstance(_value(swept, key), dict) for key in mappings) and isinstance(_value(swept, "axes"), list)
    return "" if valid and isinstance(_value(swept, "simgpu"), str) else "the identity of its sweep is incomplete"


def _value(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


def _values(mapping: object, key: str) -> tuple[object, ...]:
    inner = _value(mapping, key)
    return tuple(inner.values()) if isinstance(inner, Mapping) else ()
