"""Reading JSON that is held at once: what cannot be read is an `InputError`, whatever is wrong with it.

Recordings that are too large for that are streamed (`simgpu.importers.json_stream`).
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.io.input_files import JSON_LIMIT
from simgpu.io.text_files import read_text


def read_json(path: str | Path, what: str = "a JSON text file", remedy: str = "write it again") -> Any:
    """The value in a JSON file; what: the kind of file, remedy: what to do about one that is damaged, for messages.

    Raises `InputError` for a file that `simgpu.io.text_files.read_text` refuses, and as `parse_json`.
    """
    return parse_json(read_text(path, what, remedy, JSON_LIMIT), path, remedy)


def parse_json(text: str, source: str | Path, remedy: str = "write it again", place: str = "") -> Any:
    """The value of a JSON text. source, place: where it comes from, for messages.

    Raises `InputError` for wrong syntax, NaN and infinity, numbers that Python does not convert (4300 digits) and
    nesting that it does not follow (some 1000 levels).

    >>> parse_json('{"seed": 1}', "report.json")
    {'seed': 1}
    >>> parse_json("[" * 100000, "report.json")
    Traceback (most recent call last):
    simgpu.errors.InputError: report.json: is nested too deeply; write it again
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        at = place or f"line {error.lineno}"
        raise InputError.single(source, at, f"is not JSON: {error.msg}; is it cut off?", remedy) from None
    except RecursionError:
        raise InputError.single(source, place, "is nested too deeply", remedy) from None
    except ValueError as error:
        # Python's own words for a number of too many digits name a setting of Python.
        what = "holds a number of too many digits" if "digits" in str(error) else f"is not JSON: {error}"
        raise InputError.single(source, place, what, remedy) from None


def _finite(text: str) -> float:
    """What JSON cannot hold is not taken from it either: Python would read NaN, and infinity for 1e999."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number
