"""Parses numbers of recordings and limits them to what a trace can store.

A damaged file may contain numbers that take minutes to convert, or that Python refuses to print.
"""

from __future__ import annotations

from decimal import Decimal

from simgpu.trace.columns import LARGEST

_UNITS = {"microseconds": 1000, "milliseconds": 1_000_000}

_SHOWN = 40


def integer(value: object) -> int:
    """Parses a number from 0 to `LARGEST`, an int or a string of digits; `ValueError` for anything else.

    >>> integer(5), integer("0012")
    (5, 12)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        digits = value.lstrip("0") or "0"
        number = int(digits) if len(digits) < 20 else LARGEST + 1
    elif type(value) is int and value >= 0:
        number = value
    else:
        raise ValueError(f"{shown(value)} is not a whole number >= 0")
    if number > LARGEST:
        raise ValueError(f"{shown(value)} is too large: the largest number is {LARGEST}")
    return number


def nanoseconds(value: object, unit: str) -> Decimal:
    """Converts a time in microseconds or milliseconds to ns, not rounded; `ValueError` if invalid or out of range.

    >>> nanoseconds("2.5", "microseconds"), nanoseconds(-3, "milliseconds")
    (Decimal('2500.0'), Decimal('-3000000'))
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise ValueError(f"{shown(value)} is not a number of {unit}")
    try:
        time = Decimal(value)
    except ArithmeticError:
        raise ValueError(f"{shown(value)} is not a number of {unit}") from None
    if not time.is_finite():
        raise ValueError(f"{shown(value)} is not a number of {unit}")
    # The first comparison guards the second: a huge number may be too large to multiply.
    if not -LARGEST <= time <= LARGEST or not -LARGEST <= time * _UNITS[unit] <= LARGEST:
        raise ValueError(f"{shown(value)} {unit} are out of range")
    return time * _UNITS[unit]


def shown(value: object) -> str:
    """Formats a value for a message, shortened if it is long.

    >>> shown("nan"), shown(10**5000)
    ("'nan'", 'a number of more than 40 digits')
    """
    if isinstance(value, int) and not -(10**_SHOWN) < value < 10**_SHOWN:
        return f"a number of more than {_SHOWN} digits"
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value[:_SHOWN] if isinstance(value, str) else value)
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}..."
