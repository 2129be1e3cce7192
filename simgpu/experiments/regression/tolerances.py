"""Tolerances: how far a value may differ from the stored one before it counts as a difference.

    schema: simgpu.tolerances/2
    tolerances:
      iteration_ns: 1%               # of the stored value
      stalled_*_ns: 20 us            # a time, of metrics in nanoseconds
      "*_bytes": 1 MiB               # a size, of metrics in bytes
      samples_per_s: 0.5             # a number, of other metrics
      spans: 0                       # 0, of any metric

If several tolerances match a metric, the last one applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.experiments.regression.timings import Number, unit_of, units
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.units import BYTE_UNITS, TIME_UNITS, case_variant, parse_bytes, parse_time

TOLERANCES = "tolerances.yaml"
_SCHEMA = "simgpu.tolerances/2"
_HOW = "write '1%', '10 us', '1 MiB' or a number"
#: The kind of an absolute tolerance and an example, by the unit of the metric.
_IN = {"ns": ("a time", "'10 us'"), "B": ("a size", "'1 MiB'")}
_NUMBER = ("a number", "'0.5'")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far metrics may differ.

    pattern: name of a metric, or a pattern with ``*``
    text: the tolerance as written
    amount: a share of the stored value, or an amount in `unit`
    unit: ``ns``, ``B``, or empty for other metrics
    share: whether `amount` is a share
    """

    pattern: str
    text: str
    amount: Fraction
    unit: str
    share: bool

    def allows(self, stored: Number, now: Number) -> bool:
        """Whether the values are close enough; False if one of them is not known.

        >>> one = parse_tolerances({"iteration_ns": "1%"})[0]
        >>> one.allows(1000, 1010), one.allows(1000, 1011), one.allows(None, 0)
        (True, False, False)
        """
        if stored is None or now is None:
            return False
        limit = self.amount * abs(Fraction(stored)) if self.share else self.amount
        return abs(Fraction(now) - Fraction(stored)) <= limit


def tolerance_for(key: str, tolerances: Iterable[Tolerance]) -> Tolerance | None:
    """The last tolerance that matches a metric; None if there is none."""
    matching = [tolerance for tolerance in tolerances if fnmatchcase(key, tolerance.pattern)]
    return matching[-1] if matching else None


def parse_tolerances(
    written: Mapping[str, object], where: Callable[[str], tuple[str, str]] = lambda pattern: ("tolerance", pattern)
) -> tuple[Tolerance, ...]:
    """Parse tolerances by pattern, from a file or an option. where: file and place of a pattern, for messages.

    Raises `InputError` with all tolerances that are invalid, match no metric, or have another unit than their metrics.

    >>> [str(each.amount) for each in parse_tolerances({"iteration_ns": "1 us", "*_bytes": 0})]
    ['1000', '0']
    """
    tolerances, problems = [], []
    for pattern, value in written.items():
        try:
            tolerances.append(_tolerance(pattern, value))
        except ValueError as error:
            what, _, remedy = str(error).partition("; ")
            problems.append(Problem(*where(pattern), what, remedy))
    if problems:
        raise InputError(problems)
    return tuple(tolerances)


class _TolerancesFile(FileModel):
    schema_: Literal["simgpu.tolerances/2"] = Field(alias="schema")
    tolerances: dict[str, Any]


def read_tolerances(folder: Path) -> tuple[Tolerance, ...]:
    """The tolerances of `tolerances.yaml` in a folder; empty if there is no such file.

    Raises `InputError` with every problem of the file, each with its line.
    """
    path = folder / TOLERANCES
    if not path.exists():
        return ()
    document = read_yaml_mapping(path, _SCHEMA)
    file = validate(_TolerancesFile, document.values, lambda place: (str(path), document.place(place)))
    return parse_tolerances(file.tolerances, lambda pattern: (str(path), document.place(f"tolerances.{pattern}")))


def _tolerance(pattern: str, value: object) -> Tolerance:
    keys = [key for key in dict.fromkeys([*units(), pattern]) if fnmatchcase(key, pattern) and unit_of(key) is not None]
    if not keys:
        raise ValueError(f"matches no metric; {did_you_mean(pattern, units())}")
    text = str(value).strip()
    amount, unit, share = _amount(text, value)
    if not share and amount:
        for key in keys:
            of_key, example = _IN.get(unit_of(key) or "", _NUMBER)
            given = _IN.get(unit, _NUMBER)[0]
            if of_key != given:
                raise ValueError(f"{text!r} is {given}, but {key} is {of_key}; write {example} or '1%'")
    return Tolerance(pattern, text, amount, unit, share)


def _amount(text: str, value: object) -> tuple[Fraction, str, bool]:
    """The amount, its unit, and whether it is a share."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a tolerance; {_HOW}")
    digits = text.removesuffix("%")
    try:
        number = Decimal(digits)
    except DecimalException:
        return _quantity(text)
    if not number.is_finite() or number < 0:
        raise ValueError(f"{text!r} is not a tolerance; {_HOW}, 0 or more")
    return (Fraction(number) / 100, "", True) if digits != text else (Fraction(number), "", False)


def _quantity(text: str) -> tuple[Fraction, str, bool]:
    unit = text.lstrip("0123456789._eE+- ").strip()
    try:
        if case_variant(unit, TIME_UNITS):
            return Fraction(parse_time(text)), "ns", False
        if case_variant(unit, BYTE_UNITS):
            return Fraction(parse_bytes(text)), "B", False
    except ValueError as error:
        raise ValueError(str(error).replace("; ", ", ")) from None
    raise ValueError(f"{text!r} is not a tolerance; {_HOW}")
