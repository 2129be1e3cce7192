"""Physical quantities as text and as integers: all units are parsed and formatted here.

Base units: nanoseconds, bytes, bytes per second, operations per second, milliwatts, nanojoules, femtojoules per byte.
GB is 1e9 bytes, GiB is 2**30. A quantity that is not an integer in its base unit is an error, never rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, DecimalException
from fractions import Fraction
from types import MappingProxyType

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

BYTE_UNITS: dict[str, int] = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
BANDWIDTH_UNITS: dict[str, int] = {f"{unit}/s": factor for unit, factor in BYTE_UNITS.items()}
TIME_UNITS: dict[str, int] = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
RATE_UNITS: dict[str, int] = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items() if prefix}
#: Largest first, as `format_energy` tries them.
ENERGY_UNITS: dict[str, int] = {"kJ": 10**12, "J": 10**9, "mJ": 10**6, "uJ": 10**3}
POWER_UNITS: dict[str, int] = {"mW": 1, "W": 10**3, "kW": 10**6}
ENERGY_PER_BYTE_UNITS: dict[str, int] = {"fJ/B": 1, "pJ/B": 10**3, "nJ/B": 10**6, "fJ/bit": 8, "pJ/bit": 8 * 10**3}

#: Bytes of one value of each number format.
ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("complex128",), 16),
        **dict.fromkeys(("float64", "complex64", "int64", "uint64"), 8),
        **dict.fromkeys(("float32", "int32"), 4),
        **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
        **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    }
)

_NUMBER = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ][A-Za-zµ/]*)?\s*$")


def _parse(text: object, units: dict[str, int], what: str, example: str) -> int:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} has no unit: a {what} is a text with a unit, for example '{example}'")
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {what}: write a number >= 0 and a unit, for example '{example}'")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(f"{text!r} has no unit: write for example '{example}'")
    if unit not in units:
        close = case_variant(unit, units)
        bits = " (bytes, not bits)" if units is BANDWIDTH_UNITS else ""
        meant = f"did you mean '{number} {close}'{bits}? " if close else ""
        raise ValueError(f"{text!r}: '{unit}' is not a unit of {what}; {meant}known: {', '.join(units)}")
    try:
        value = Decimal(number.replace("_", "")) * units[unit]
    except DecimalException as error:
        raise ValueError(f"{text!r} is too large a number: check the {what}") from error
    # A size of binary units is often known in two digits ("23.65 GiB"): what is less than a byte does not matter.
    if value != value.to_integral_value() and not (units is BYTE_UNITS and unit.endswith("iB")):
        raise ValueError(f"{text!r} is not a whole number of {next(iter(units))}")
    return int(value)


def case_variant(unit: str, units: Iterable[str]) -> str | None:
    """The unit that differs only in case, the closest of several; None if there is none.

    >>> [case_variant(unit, BYTE_UNITS) for unit in ("gb", "Gib", "kb", "KIB", "x")]
    ['GB', 'GiB', 'kB', 'KiB', None]
    """
    same = [known for known in units if known.casefold() == unit.casefold()]
    return max(same, key=lambda known: sum(map(str.__eq__, known, unit)), default=None)


def parse_bytes(text: object) -> int:
    """Bytes of a size such as ``"8 GiB"``; `ValueError` says what is wrong.

    >>> parse_bytes("8 GiB"), parse_bytes("11.7 GB"), parse_bytes("23.65 GiB")
    (8589934592, 11700000000, 25393994137)
    """
    return _parse(text, BYTE_UNITS, "size", "8 GiB")


def parse_time(text: object) -> int:
    """Nanoseconds of a time such as ``"350 ns"`` or ``"1.5 us"``.

    >>> parse_time("1.5 us")
    1500
    """
    return _parse(text, TIME_UNITS, "time", "350 ns")


def parse_bandwidth(text: object) -> int:
    """Bytes per second of a bandwidth such as ``"11.7 GB/s"``.

    >>> parse_bandwidth("11.7 GB/s")
    11700000000
    """
    return _parse(text, BANDWIDTH_UNITS, "bandwidth", "11.7 GB/s")


def parse_rate(text: object) -> int:
    """Operations per second of an arithmetic rate such as ``"15.7 TFLOP/s"``.

    >>> parse_rate("15.7 TFLOP/s")
    15700000000000
    """
    return _parse(text, RATE_UNITS, "arithmetic rate", "15.7 TFLOP/s")


def parse_power(text: object) -> int:
    """Milliwatts of a power such as ``"235 W"``.

    >>> parse_power("235 W")
    235000
    """
    return _parse(text, POWER_UNITS, "power", "235 W")


def parse_energy_per_byte(text: object) -> int:
    """Femtojoules per byte of an energy of moved data such as ``"14 pJ/bit"``.

    >>> parse_energy_per_byte("14 pJ/bit"), parse_energy_per_byte("112 pJ/B")
    (112000, 112000)
    """
    return _parse(text, ENERGY_PER_BYTE_UNITS, "energy of moved data", "14 pJ/bit")


def parse_share(text: object) -> float:
    """A share of something, 0 to 1.

    >>> parse_share("30%"), parse_share("0.3"), parse_share(0.3)
    (0.3, 0.3, 0.3)
    """
    words = text.strip() if isinstance(text, str) else ""
    percent = words.endswith("%")
    try:
        number = Decimal(words.removesuffix("%")) if words else Decimal(str(text))
    except DecimalException:
        number = Decimal(-1)
    share = number / 100 if percent else number
    if isinstance(text, bool) or not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not a share: write one such as '30%'")
    return float(share)


#: For messages about values of budgets that are meant as sizes.
OR_PERCENTAGE = "a budget may also be a part of the peak without offloading, such as '50%'"
_PERCENTAGE = re.compile(r"^\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*%\s*$")


def is_percentage(text: object) -> bool:
    """Whether a value is a text that ends in a percent sign, whatever precedes it."""
    return isinstance(text, str) and text.rstrip().endswith("%")


def parse_percentage(text: str) -> Fraction:
    """A percentage of something, more than 0% and also above 100%, as an exact fraction; `ValueError` for other text.

    >>> parse_percentage("50%"), parse_percentage("112.5 %")
    (Fraction(1, 2), Fraction(9, 8))
    """
    match = _PERCENTAGE.match(text)
    fraction = Fraction(match.group(1)) / 100 if match else Fraction(0)
    if not fraction:
        raise ValueError(f"{text!r} is not a percentage above 0%: write for example '50%'")
    return fraction


def format_percentage(fraction: Fraction) -> str:
    """A fraction as a percentage, with up to six digits.

    >>> format_percentage(Fraction(1, 2)), format_percentage(Fraction(9, 8))
    ('50%', '112.5%')
    """
    return f"{float(100 * fraction):.6g}%"


def _shortest(value: int, factor: int) -> str:
    return f"{value / factor:.4g}" if abs(value) < 1000 * factor else f"{value / factor:.0f}"


def _format(value: int, units: Mapping[str, int], choices: Iterable[str], base: str) -> str:
    """The value with four digits in the first of the choices, largest first, that it reaches; else in the base unit."""
    for unit in choices:
        if abs(value) >= units[unit]:
            return f"{_shortest(value, units[unit])} {unit}"
    return f"{value} {base}"


def format_bytes(value: int) -> str:
    """Bytes for people, in binary units with four digits.

    >>> format_bytes(8589934592), format_bytes(1000)
    ('8 GiB', '1000 B')
    """
    return _format(value, BYTE_UNITS, ("TiB", "GiB", "MiB", "KiB"), "B")


def format_time(value: int) -> str:
    """Nanoseconds for people, with four digits.

    >>> format_time(94031000), format_time(350)
    ('94.03 ms', '350 ns')
    """
    return _format(value, TIME_UNITS, ("s", "ms", "us"), "ns")


def format_bandwidth(value: int) -> str:
    """Bytes per second for people, in decimal units.

    >>> format_bandwidth(11700000000)
    '11.7 GB/s'
    """
    return _format(value, BANDWIDTH_UNITS, ("TB/s", "GB/s", "MB/s", "kB/s"), "B/s")


def format_rate(value: int) -> str:
    """Operations per second for people.

    >>> format_rate(15700000000000)
    '15.7 TFLOP/s'
    """
    return _format(value, RATE_UNITS, ("TFLOP/s", "GFLOP/s", "MFLOP/s"), "FLOP/s")


def format_power(value: float) -> str:
    """Milliwatts for people.

    >>> format_power(235_000), format_power(87_562.5)
    ('235 W', '87.56 W')
    """
    return f"{value / POWER_UNITS['W']:.4g} W"


def format_energy(value: int) -> str:
    """Nanojoules for people, with four digits.

    >>> format_energy(12_345_678_901), format_energy(40_500)
    ('12.35 J', '40.5 uJ')
    """
    return _format(value, ENERGY_UNITS, ENERGY_UNITS, "nJ")


def format_energy_per_byte(value: int) -> str:
    """Femtojoules per byte for people, as data sheets and papers give them.

    >>> format_energy_per_byte(112_000)
    '14 pJ/bit'
    """
    return f"{value / ENERGY_PER_BYTE_UNITS['pJ/bit']:.4g} pJ/bit"


def short_count(count: int) -> str:
    """Formats a large count for display, with four digits and an SI prefix.

    >>> short_count(138_357_544), short_count(61_706)
    ('138.4 M', '61.71 k')
    """
    for factor, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.4g} {letter}"
    return str(count)
