"""Validation of YAML files with pydantic: quantities with units, and pydantic's errors as `Problem`s.

Imports pydantic, so it is imported only when a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.units import (
    OR_PERCENTAGE,
    is_percentage,
    parse_bandwidth,
    parse_bytes,
    parse_energy_per_byte,
    parse_percentage,
    parse_power,
    parse_rate,
    parse_share,
    parse_time,
)

#: Whole numbers above this do not fit the columns of a timeline.
LARGEST = 2**62


class FileModel(BaseModel):
    """Base of every model of a file: unknown keys refused, no silent conversions, no later changes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


@dataclass(frozen=True)
class Quantity:
    """Metadata of a field: a text with a unit in the file, an integer number of base units in the program."""

    parse: Callable[[object], int]
    what: str
    example: str
    zero: bool = False

    def read(self, value: object) -> int:
        """The number of base units; `ValueError` says what is wrong with the text."""
        if isinstance(value, str) and value.strip().startswith("-"):
            raise ValueError(f"{value!r} is negative: write a {self.what} such as '{self.example}'")
        number = self.parse(value)
        if number == 0 and not self.zero:
            raise ValueError(f"{value!r} is zero: a {self.what} is more than 0, for example '{self.example}'")
        if number > LARGEST:
            raise ValueError(f"{value!r} is too large a {self.what}: check the number and its unit")
        return number

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "examples": [self.example]}


Size = Annotated[int, Quantity(parse_bytes, "size", "8 GiB")]
Alignment = Annotated[int, Quantity(parse_bytes, "size", "512 B")]
SizeOrZero = Annotated[int, Quantity(parse_bytes, "size", "512 MiB", zero=True)]
Bandwidth = Annotated[int, Quantity(parse_bandwidth, "bandwidth", "11.7 GB/s")]
Rate = Annotated[int, Quantity(parse_rate, "arithmetic rate", "15.7 TFLOP/s")]
Power = Annotated[int, Quantity(parse_power, "power", "235 W")]
EnergyPerByte = Annotated[int, Quantity(parse_energy_per_byte, "energy of moved data", "14 pJ/bit")]
TimeOrZero = Annotated[int, Quantity(parse_time, "time", "1.5 us", zero=True)]


class BudgetEntry:
    """Metadata of a field: device memory as a size, or as a percentage of the peak without offloading, kept as text.

    zero: whether the size may be zero
    """

    def __init__(self, zero: bool = False) -> None:
        self.size = Quantity(parse_bytes, "size", "8 GiB", zero=zero)

    def read(self, value: object) -> int | str:
        """Bytes, or the percentage as written; `ValueError` says what is wrong with the value."""
        if isinstance(value, str) and is_percentage(value):
            parse_percentage(value)
            return value.strip()
        try:
            return self.size.read(value)
        except ValueError as error:
            raise ValueError(f"{error}; {OR_PERCENTAGE}") from None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "examples": ["8 GiB", "50%"]}


Budget = Annotated[int | str, BudgetEntry()]


class _ShareEntry:
    """Metadata of a field: a share as a percentage or a number from 0 to 1."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(parse_share)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": ["string", "number"], "examples": ["30%"]}


Share = Annotated[float, _ShareEntry()]

Model = TypeVar("Model", bound=BaseModel)
Where = Callable[[str], tuple[str, str]]


def validate(model: type[Model], values: Mapping[str, Any], where: Where) -> Model:
    """The values as a `model`; `where` turns a dotted path into (file, place) for messages.

    Raises `InputError` with every problem found, unknown keys with what was probably meant.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError([_problem(model, details, where) for details in error.errors()]) from None


def dotted(location: tuple[int | str, ...]) -> str:
    """A pydantic location as people write it.

    >>> dotted(("policies", 1, "vdnn", "mode"))
    'policies[1].vdnn.mode'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def path_steps(path: str) -> list[str | int]:
    """The keys and indexes of a path, undoing `dotted`; what is no such path is split at its dots.

    >>> path_steps("policies[1].vdnn.mode"), path_steps("policies[-1].vdnn")
    (['policies', 1, 'vdnn', 'mode'], ['policies[-1]', 'vdnn'])
    """
    parts = re.findall(r"[^.\[\]]+|\[[0-9]+\]", path)
    steps = [int(part[1:-1]) if part.startswith("[") else part for part in parts]
    return steps if dotted(tuple(steps)) == path else list(path.split("."))


def put(values: dict[str, Any], key: str, value: object) -> None:
    """Puts a value at a dotted key, making the mappings on the way; whether the key exists is `validate`'s matter.

    An index must exist in its list; otherwise the full key is put, which `validate` refuses.

    >>> values = {"gpu": {"memory": "8 GiB"}, "policies": ["none", "vdnn"]}
    >>> put(values, "gpu.memory", "4 GiB"), put(values, "policies[1].vdnn.mode", "conv"), values
    (None, None, {'gpu': {'memory': '4 GiB'}, 'policies': ['none', {'vdnn': {'mode': 'conv'}}]})
    """
    steps = path_steps(key)
    inner: Any = values
    for step, after in pairwise(steps):
        result = inner[step] if isinstance(step, int) else inner.get(step)
        if isinstance(after, int):
            if not isinstance(result, list) or len(result) <= after:
                values[key] = value
                return
        elif not isinstance(result, dict):
            result = inner[step] = {}
        inner = result
    inner[steps[-1]] = value


_CHOICE = re.compile(r"'([^']*)'")


def _problem(model: type[BaseModel], details: Any, where: Where) -> Problem:
    file, place = where(dotted(details["loc"]))
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(file, place, "unknown key", did_you_mean(str(details["loc"][-1]), _keys(model, details["loc"])))
    if kind == "missing":
        return Problem(file, place, "is missing", "add it")
    if kind == "value_error":
        return Problem(file, place, str(context["error"]))
    if kind in ("literal_error", "enum"):
        choices = _CHOICE.findall(context["expected"])
        remedy = did_you_mean(str(value), choices) if choices else f"write {context['expected']}"
        return Problem(file, place, f"{_short(value)} is not one of the choices", remedy)
    what, remedy = _MEANINGS.get(kind, (details["msg"].removeprefix("Input "), ""))
    return Problem(file, place, f"{_short(value)} {what}", remedy.format_map(context))


#: pydantic's kinds of error in the words of a file's author, and the remedies.
_MEANINGS = {
    "string_type": ("is not a text", "write a text, in quotes if it looks like a number"),
    "string_too_short": ("is empty", "write something"),
    "int_type": ("is not a whole number", "write digits only, without quotes"),
    "bool_type": ("is neither true nor false", "write true or false"),
    "greater_than_equal": ("is too small", "write at least {ge}"),
    "less_than_equal": ("is too large", "write at most {le}"),
    "model_type": ("is not a mapping", "write indented 'key: value' lines"),
    "dict_type": ("is not a mapping", "write indented 'key: value' lines"),
    **dict.fromkeys(("list_type", "tuple_type"), ("is not a list", "write [a, b], or '- ' before each entry")),
    "too_short": ("is too short", "write at least {min_length}"),
}


def _short(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed at the place of an unknown one: those of the model at the location's parent."""
    current: Any = model
    for part in location[:-1]:
        if isinstance(part, str) and part in current.model_fields:
            annotation = current.model_fields[part].annotation
            options = (annotation, *get_args(annotation))
            current = next(
                (option for option in options if isinstance(option, type) and issubclass(option, BaseModel)),
                current,
            )
    return [field.alias or name for name, field in current.model_fields.items()]
