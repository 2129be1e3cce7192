"""The user's specification of model inputs by name, shape and type; imports no PyTorch.

`named_inputs` parses ``--input NAME=SHAPE[:TYPE[:BELOW]]``, `parse_inputs` ``inputs={NAME: "SHAPE[:TYPE[:BELOW]]"}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simgpu.errors import InputError, Problem, did_you_mean

#: Stands for the number of samples in a shape.
BATCH = "B"
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: Integer types, with the largest bound of each.
INTEGERS = {"int64": 2**63 - 1, "int32": 2**31, "int16": 2**15, "int8": 2**7, "uint8": 2**8}
_TYPES = (*FLOATS, *INTEGERS, "bool")
_SIDE = re.compile(rf"{BATCH}|[1-9][0-9]*")
_FORM = f"write SHAPE[:TYPE[:BELOW]], as in {BATCH}x3x224x224 or {BATCH}x128:int64:50257, where {BATCH} is the batch"


@dataclass(frozen=True)
class InputSpec:
    """One input: None in the shape stands for the batch; dtype is PyTorch's name; integers are in [0, `below`)."""

    shape: tuple[int | None, ...]
    dtype: str = "float32"
    below: int | None = None

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Returns the shape at a batch size.

        >>> InputSpec((None, 128), "int64", 50257).sizes(8)
        (8, 128)
        """
        return tuple(batch if side is None else side for side in self.shape)

    def __str__(self) -> str:
        shape = "x".join(BATCH if side is None else str(side) for side in self.shape)
        return f"{shape}:{self.dtype}" + ("" if self.below is None else f":{self.below}")


def named_inputs(given: Iterable[str]) -> dict[str, str]:
    """Returns the specifications by name, from items ``NAME=SHAPE...``; raises `InputError` naming invalid items.

    >>> named_inputs(["x=Bx4", "mask=Bx4:bool"])
    {'x': 'Bx4', 'mask': 'Bx4:bool'}
    """
    result: dict[str, str] = {}
    problems = []
    for item in given:
        name, equals, spec = item.partition("=")
        if not equals or not name:
            problems.append(Problem("record", "input", f"{item!r} is not NAME=SHAPE[:TYPE[:BELOW]]", _FORM))
        elif name in result:
            problems.append(Problem("record", "input", f"{name!r} is given twice", "give it once"))
        result[name] = spec
    if problems:
        raise InputError(problems)
    return result


def parse_inputs(given: object) -> dict[str, InputSpec]:
    """Parses the specification of each input; raises `InputError` naming every invalid one.

    >>> parse_inputs({"tokens": "Bx128:int64:50257"})["tokens"]
    InputSpec(shape=(None, 128), dtype='int64', below=50257)
    """
    if not isinstance(given, Mapping):
        what = f"{given!r} is not a mapping"
        raise InputError.single("record", "inputs", what, 'give each input by name, as in {"x": "Bx4"}')
    result, problems = {}, []
    for name, text in given.items():
        spec = _parse(text) if isinstance(text, str) else (f"{text!r} is not text", _FORM)
        if isinstance(spec, InputSpec):
            result[name] = spec
        else:
            problems.append(Problem("record", f"input {name}", *spec))
    if problems:
        raise InputError(problems)
    return result


def _parse(text: str) -> InputSpec | tuple[str, str]:
    """Returns the input, or (what is wrong, what to do)."""
    shape, _, rest = text.partition(":")
    dtype, _, below = rest.partition(":")
    dtype = dtype or "float32"
    sides = shape.split("x")
    if not all(_SIDE.fullmatch(side) for side in sides):
        return f"{shape!r} is not a shape", _FORM
    if dtype not in _TYPES:
        return f"{dtype!r} is not a type", did_you_mean(dtype, _TYPES)
    if dtype not in INTEGERS and below:
        return f"{below!r} is a bound, but {dtype} values have none", "leave it out"
    if dtype in INTEGERS and not re.fullmatch(r"[1-9][0-9]*", below):
        what = f"{below!r} is not a bound" if below else f"{text!r} lacks the bound of its values"
        return what, f"give the lowest excluded value, as in {shape}:{dtype}:50257 for a vocabulary of 50257"
    if below and int(below) > INTEGERS[dtype]:
        return f"{below} exceeds the range of {dtype}", f"give at most {INTEGERS[dtype]}, or a wider type"
    return InputSpec(
        tuple(None if side == BATCH else int(side) for side in sides), dtype, int(below) if below else None
    )
