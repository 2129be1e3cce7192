"""The columns of each CSV file of a trace: how a cell is parsed and written, and what a blank cell means."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from sys import intern
from typing import Any, Generic, TypeVar

from simgpu.errors import did_you_mean
from simgpu.trace.model import (
    Access,
    AccessOrder,
    AlgorithmChoice,
    Block,
    BlockKind,
    CompressedSize,
    Kernel,
    ModuleCall,
    Phase,
    SavedTensor,
    SparsitySample,
)
from simgpu.units import parse_bytes, parse_time

Row = TypeVar("Row")

#: Largest whole number a trace may hold: timelines keep 64-bit columns.
LARGEST = 2**63 - 1

#: How the shape of a single value, which has no dimensions, is written (a blank cell means unknown).
SCALAR_SHAPE = "scalar"


class CellError(ValueError):
    """A cell that cannot be read; carries what is wrong and what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy


class _Required:
    """Marks a column whose cells must not be blank."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `parse` turns a stripped, non-blank cell into a value or raises `CellError`.

    blank: the value of a blank cell, `REQUIRED` where it must not be blank.
    stand_in: the value that replaces an unreadable cell of a required column, so that the other checks can go on.
    may_be_absent: whether the file may omit the column, as if all its cells were blank.
    omitted_if_blank: whether a file is written without the column if all its cells are blank.
    """

    name: str
    parse: Callable[[str], Any]
    write: Callable[[Any], str]
    blank: Any = REQUIRED
    stand_in: Any = None
    may_be_absent: bool = False
    omitted_if_blank: bool = False


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """One CSV file: its name and the dataclass whose fields its columns fill, in order."""

    file: str
    row: Callable[..., Row]
    columns: tuple[Column, ...]


_NEGATIVE = re.compile(r"-\s*[0-9]")
_FRACTIONAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.[0-9]*|[0-9.]+[eE][+-]?[0-9]+")
_WITH_UNIT = re.compile(r"[0-9][0-9_.]*\s*[A-Za-zµ]+")
_UNIT_WORDS = {"nanoseconds": ("a time", parse_time), "bytes": ("a size", parse_bytes)}


def whole_number(text: str, unit: str) -> int:
    """A whole number >= 0; `unit` is the plural used in messages.

    >>> whole_number("1500", "nanoseconds")
    1500
    """
    if text.isdigit() and text.isascii() and len(text) <= 19 and (value := int(text)) <= LARGEST:
        return value
    raise _explain_number(text, unit)


def _explain_number(text: str, unit: str) -> CellError:
    wanted = f"give a whole number of {unit} >= 0, digits only"
    if text.isdigit() and text.isascii():
        return CellError(f"'{text}' is too large", f"the largest number is {LARGEST}")
    if _NEGATIVE.match(text):
        return CellError(f"'{text}' is negative", wanted)
    if _FRACTIONAL.fullmatch(text):
        return CellError(f"'{text}' is not a whole number", wanted)
    if _WITH_UNIT.fullmatch(text):
        return CellError(f"'{text}' carries a unit, the column is in {unit}", _converted(text, unit) or wanted)
    return CellError(f"'{text}' is not a number", wanted)


def _converted(text: str, unit: str) -> str:
    """The remedy for a quantity that means something: the number to write instead."""
    if unit not in _UNIT_WORDS:
        return ""
    try:
        return f"write {_UNIT_WORDS[unit][1](text)}"
    except ValueError:
        return ""


def number_column(name: str, unit: str, blank: Any = REQUIRED) -> Column:
    """A whole number >= 0; unit: its plural, for messages."""
    return Column(
        name,
        partial(whole_number, unit=unit),
        lambda value: "" if value is None else str(value),
        blank,
        stand_in=0,
        may_be_absent=blank is not REQUIRED,
    )


def text_column(name: str, blank: Any = REQUIRED) -> Column:
    """A text."""
    return Column(
        name,
        intern,  # long tables repeat few names, which would take more memory than all else in their rows
        lambda value: value or "",
        blank,
        stand_in="",
        may_be_absent=blank is not REQUIRED,
    )


def ids_column(name: str) -> Column:
    """Names separated by spaces."""
    return Column(name, lambda text: tuple(text.split()), " ".join, blank=())


def word_column(name: str, words: type[StrEnum], stand_in: StrEnum) -> Column:
    """One of a few words."""
    known = {str(word): word for word in words}

    def parse(text: str) -> StrEnum:
        if text not in known:
            article = "an" if name[0] in "aeiou" else "a"
            raise CellError(f"'{text}' is not {article} {name}", did_you_mean(text, known))
        return known[text]

    return Column(name, parse, str, stand_in=stand_in)


def yes_no_column(name: str, blank: bool | _Required | None) -> Column:
    """``yes`` or ``no``."""

    def parse(text: str) -> bool:
        if text not in ("yes", "no"):
            raise CellError(f"'{text}' is neither yes nor no", "write yes or no")
        return text == "yes"

    def write(value: bool | None) -> str:
        return "" if value is None else "yes" if value else "no"

    return Column(name, parse, write, blank, stand_in=False, may_be_absent=blank is not REQUIRED)


def _mark_column(name: str) -> Column:
    """``yes``, or blank for no."""
    column = yes_no_column(name, blank=False)
    return replace(column, write=lambda value: "yes" if value else "", omitted_if_blank=True)


def _shape(name: str) -> Column:
    @lru_cache(maxsize=1024)
    def parse(text: str) -> tuple[int, ...]:
        if text == SCALAR_SHAPE:
            return ()
        sides = text.split("x")
        if not all(side.isdigit() and side.isascii() and len(side) <= 19 for side in sides):
            raise CellError(f"'{text}' is not a shape", f"write for example 128x3x224x224, or {SCALAR_SHAPE}")
        return tuple(int(side) for side in sides)

    def write(value: tuple[int, ...] | None) -> str:
        return "" if value is None else "x".join(map(str, value)) or SCALAR_SHAPE

    return Column(name, parse, write, blank=None, may_be_absent=True)


def _share(name: str) -> Column:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise CellError(f"'{text}' is not a number", "give a share from 0 to 1, for example 0.45") from None

    return Column(name, parse, repr, stand_in=0.0)


KERNELS: Table[Kernel] = Table(
    "kernels.csv",
    Kernel,
    (
        text_column("id"),
        text_column("op"),
        word_column("phase", Phase, Phase.FORWARD),
        number_column("duration_ns", "nanoseconds"),
        ids_column("reads"),
        ids_column("writes"),
        text_column("layer", blank=None),
        number_column("stream", "streams", blank=0),
        number_column("start_ns", "nanoseconds", blank=None),
        yes_no_column("pure", blank=None),
        number_column("flops", "operations", blank=None),
        number_column("dram_bytes", "bytes", blank=None),
        number_column("iqr_ns", "nanoseconds", blank=None),
        replace(text_column("source", blank=None), omitted_if_blank=True),
    ),
)

BLOCKS: Table[Block] = Table(
    "blocks.csv",
    Block,
    (
        text_column("id"),
        number_column("bytes", "bytes"),
        word_column("kind", BlockKind, BlockKind.OTHER),
        yes_no_column("persistent", blank=False),
        text_column("host_write", blank=None),
        text_column("release", blank=None),
        text_column("layer", blank=None),
        _shape("shape"),
        text_column("dtype", blank=None),
    ),
)

ALGORITHMS: Table[AlgorithmChoice] = Table(
    "algorithms.csv",
    AlgorithmChoice,
    (
        text_column("kernel"),
        text_column("algorithm"),
        number_column("duration_ns", "nanoseconds"),
        number_column("workspace_bytes", "bytes"),
    ),
)

SPARSITY: Table[SparsitySample] = Table(
    "sparsity.csv",
    SparsitySample,
    (text_column("block"), number_column("epoch", "epochs"), _share("sparsity")),
)

COMPRESSIBILITY: Table[CompressedSize] = Table(
    "compressibility.csv",
    CompressedSize,
    (
        text_column("block"),
        number_column("epoch", "epochs"),
        text_column("codec"),
        text_column("layout"),
        number_column("entry_bytes", "bytes"),
        number_column("bytes", "bytes"),
        number_column("entries", "entries"),
    ),
)

ACCESSES: Table[Access] = Table(
    "accesses.csv",
    Access,
    (
        text_column("kernel"),
        text_column("block"),
        yes_no_column("write", blank=REQUIRED),
        word_column("order", AccessOrder, AccessOrder.SEQUENTIAL),
        number_column("sectors", "sectors"),
        number_column("entries", "entries"),
        number_column("stride", "entries", blank=1),
        number_column("first", "entries", blank=0),
    ),
)

SAVED: Table[SavedTensor] = Table(
    "saved.csv",
    SavedTensor,
    (
        text_column("block"),
        number_column("bytes", "bytes"),
        text_column("packed_after", blank=None),
        text_column("unpacked_before", blank=None),
        text_column("released_after", blank=None),
        replace(text_column("unused_after", blank=None), omitted_if_blank=True),
        replace(text_column("freed_after", blank=None), omitted_if_blank=True),
        replace(text_column("layer", blank=None), omitted_if_blank=True),
        replace(_shape("shape"), omitted_if_blank=True),
        replace(text_column("dtype", blank=None), omitted_if_blank=True),
        _mark_column("is_reread"),
    ),
)

MODULES: Table[ModuleCall] = Table(
    "modules.csv",
    ModuleCall,
    (
        text_column("module"),
        text_column("after", blank=None),
        text_column("until", blank=None),
        number_column("saved_before", "tensors"),
        number_column("saved", "tensors"),
        ids_column("inputs"),
        ids_column("input_types"),
        _mark_column("is_compiled"),
        replace(text_column("kind", blank=""), omitted_if_blank=True),
    ),
)
