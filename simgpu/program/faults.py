"""Messages about wrong values in programs and placements, and about exceptions of outside code."""

from __future__ import annotations

#: The number of mistakes that are written in full; more are counted.
_WRITTEN_OUT = 20
#: Characters of the text of a foreign exception.
_LONGEST_TEXT = 2000


def number_fault(name: str, value: object, count: int | None, of: str = "") -> str:
    """The mistake of a number that must be an int from 0 to below `count`; empty if there is none. of: what is counted.

    >>> number_fault("kernel", 7, 4, "kernels")
    'kernel 7 is out of range: the graph has 4 kernels, from 0'
    >>> number_fault("lag", -1, None)
    'lag -1 is negative: give 0 or more'
    >>> number_fault("block", "x2", 4, "blocks")
    "block 'x2' is a str, not an int: graph.block('x2') gives the number of a block"
    """
    if type(value) is not int:
        return int_fault(name, value, of)
    if count is None:
        return f"{name} {value} is negative: give 0 or more" if value < 0 else ""
    return "" if 0 <= value < count else f"{name} {value} is out of range: the graph has {count} {of}, from 0"


def int_fault(name: str, value: object, of: str = "") -> str:
    """The mistake of a value that must be an int, empty if there is none; bool and NumPy's integers are mistakes.

    >>> import numpy as np
    >>> int_fault("event", np.int64(3))
    'event 3 is a numpy.int64, not an int: write int(...)'
    """
    if type(value) is int:
        return ""
    what = f"{name} {shown(value)} is {a_type(value)}, not an int"
    if isinstance(value, str) and of:
        one = of.removesuffix("s")
        return f"{what}: graph.{one}({value!r}) gives the number of a {one}"
    return f"{what}: write int(...)" if hasattr(value, "__index__") and not isinstance(value, bool) else what


def bool_fault(name: str, value: object) -> str:
    """The mistake of a value that must be a bool, empty if there is none."""
    return "" if type(value) is bool else f"{name} {shown(value)} is {a_type(value)}, not a bool"


def a_type(value: object) -> str:
    """The type of a value with its article, and its package unless it is Python's or simgpu's own."""
    package, name = type(value).__module__.partition(".")[0], type(value).__qualname__
    written = name if package in ("builtins", "simgpu") else f"{package}.{name}"
    return f"{'an' if written[0] in 'aeiouAEIOU' else 'a'} {written}"


def shown(value: object) -> str:
    """A value as Python writes it, shortened; a number without its type."""
    text = str(value) if hasattr(value, "__index__") else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def raised(error: BaseException) -> str:
    """The type and the text of an exception from outside code, whose text may be long, or fail itself.

    >>> raised(ValueError("no batch")), raised(KeyError())
    ('ValueError: no batch', 'KeyError')
    """
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def several(of: str, faults: list[str]) -> str:
    """A message with one fault, or with the first of several, one line each, and the number of others."""
    if len(faults) == 1:
        return faults[0]
    omitted = len(faults) - _WRITTEN_OUT
    more = [f"and {omitted} more"] if omitted > 0 else []
    return "\n".join((f"the {of} has {len(faults)} mistakes:", *faults[:_WRITTEN_OUT], *more))
