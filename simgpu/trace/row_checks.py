"""Problems of a trace's rows, and the checks that need the values of one row only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import is_not
from typing import Any

from simgpu.errors import Problem
from simgpu.trace.columns import LARGEST

#: Maps (table, position in it or -1 for the table itself, field) to (file, place).
#: Tables are named as the fields of `Trace`.
Place = Callable[[str, int, str], tuple[str, str]]


@dataclass(slots=True)
class Problems:
    """Problems found so far; `add` places a new one."""

    at: Place
    problems: list[Problem] = field(default_factory=list)

    def add(self, table: str, index: int, column: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(*self.at(table, index, column), what, remedy))


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable() and value == value.strip()


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def are_counts(values: Sequence[object], *, optional: bool = False) -> bool:
    """Whether all values are counts, or None where that is allowed; in bulk, because traces are long."""
    if optional and not any(map(partial(is_not, None), values)):
        return True
    kinds = set(map(type, values))
    if not kinds <= ({int, type(None)} if optional else {int}):
        return False
    counts: Sequence[Any] = [value for value in values if value is not None] if type(None) in kinds else values
    return not counts or (min(counts) >= 0 and max(counts) <= LARGEST)


def are_texts(values: Sequence[object], *, optional: bool = False) -> bool:
    """Whether all values are texts, or None where that is allowed."""
    if not set(map(type, values)) <= ({str, type(None)} if optional else {str}):
        return False
    return all(value is None or is_text(value) for value in set(values))


def are_ids(values: Sequence[Any]) -> bool:
    """Whether all values are ids, and no two are the same."""
    if not set(map(type, values)) <= {str} or not all(values) or len(set(values)) < len(values):
        return False
    joined = "".join(values)
    return joined.isprintable() and " " not in joined


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, with the checks that need nothing but its own values."""

    problems: Problems
    table: str
    index: int
    values: Any

    def add(self, column: str, what: str, remedy: str) -> None:
        self.problems.add(self.table, self.index, column, what, remedy)

    def texts(self, *columns: str, optional: bool = False) -> None:
        """optional: None means unknown."""
        for column in columns:
            value = getattr(self.values, column)
            if is_text(value) or (optional and value is None):
                continue
            what = f"{value!r} is not a name" if value or optional else "it is blank"
            remedy = "give a printable text without spaces around it"
            self.add(column, what, f"{remedy}, or None where unknown" if optional else remedy)

    def counts(self, *columns: str, optional: bool = False) -> None:
        """optional: None means unknown."""
        for column in columns:
            value = getattr(self.values, column)
            if is_count(value) or (optional and value is None):
                continue
            what = f"{value!r} is not a whole number"
            if type(value) is int:
                what = f"{value} is negative" if value < 0 else f"{value} is too large"
            self.add(column, what, f"give an int from 0 to {LARGEST}")

    def positive(self, *columns: str) -> None:
        for column in columns:
            if getattr(self.values, column) == 0:
                self.add(column, "0 is not possible here", "give a whole number >= 1")

    def member(self, column: str, words: type[StrEnum]) -> None:
        value = getattr(self.values, column)
        if not isinstance(value, words):
            what = f"{value!r} is not a member of {words.__name__}"
            self.add(column, what, f"give one of {words.__name__}'s members")

    def known(self, column: str, known: Set[str]) -> None:
        """The kernel or block that a column names; not checked if there are none, which is reported once."""
        name = getattr(self.values, column)
        if known and name not in known:
            what = f"'{name}' is not a {column} of this trace"
            self.add(column, what, f"name a {column} that has a row in {column}s")


def rows_of(problems: Problems, table: str, values: Sequence[Any]) -> Iterator[Row]:
    return (Row(problems, table, index, row) for index, row in enumerate(values))
