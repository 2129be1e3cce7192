"""Reads and writes `trace.yaml`, the origin of a trace."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.trace.model import Origin, OutputLife, Trace, TraceInfo

SCHEMA = "simgpu.trace/2"
FILE = "trace.yaml"

_TEXTS = ("model", "device", "dtype", "tool")
_OPTIONAL_TEXTS = ("date", "compute", "notes", "modelled")
_REQUIRED = ("model", "batch", "device", "dtype", "origin", "tool")
_COUNTS = ("kernels", "blocks")
#: Bytes; omitted where unknown.
_SIZES = ("framework_peak_bytes", "workspace_limit", "task_limit")
#: Keys with one of a few values, and what such a value is called.
_WORDS: Mapping[str, tuple[type[StrEnum], str]] = {
    "origin": (Origin, "an origin"),
    "output": (OutputLife, "a lifetime of the output"),
}
#: The fields of `TraceInfo` in the order in which they are written.
_WRITTEN = (
    *("model", "batch", "device", "dtype", "origin", "tool", "date", "output", "compute", "notes"),
    *("framework_peak_bytes", "modelled", "workspace_limit", "task_limit"),
)
_OMITTED_IF_UNKNOWN = (*_SIZES, "modelled", "output", "compute")
_KEYS = ("schema", *_REQUIRED, *_OPTIONAL_TEXTS, "output", *_SIZES, *_COUNTS)


@dataclass(slots=True)
class ReadHeader:
    """The content of trace.yaml.

    places: position of each key, for messages. counts: the expected numbers of rows, if given.
    """

    info: TraceInfo | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_header(path: Path) -> ReadHeader:
    """The content of a trace.yaml, or what is wrong with it; never raises."""
    from simgpu.io.yaml_files import read_yaml_mapping

    try:
        document = read_yaml_mapping(path, SCHEMA)
    except InputError as error:
        return ReadHeader(problems=list(error.problems))
    values = document.values
    places = {key: document.place(key) for key in _KEYS}
    result = ReadHeader(places=places)

    def complain(place: str, what: str, remedy: str) -> None:
        result.problems.append(Problem(str(path), place, what, remedy))

    for key in (key for key in values if key not in _KEYS):
        complain(document.place(str(key)), f"unknown key '{key}'", did_you_mean(str(key), _KEYS))
    for key in _REQUIRED:
        if key not in values:
            complain("", f"key '{key}' is missing", f"the required keys are: schema, {', '.join(_REQUIRED)}")
    texts = _texts(values)
    for key, text in texts.items():
        if not isinstance(text, str):
            complain(places[key], f"{text!r} is not a text", f'write it in quotes: {key}: "{text}"')
    batch = values.get("batch", 1)
    if type(batch) is not int:
        complain(places["batch"], f"{batch!r} is not a whole number", "give the number of samples, digits only")
    sizes: dict[str, Any] = {key: values[key] for key in _SIZES if values.get(key) is not None}
    for key in (key for key, size in sizes.items() if type(size) is not int):
        complain(places[key], f"{sizes[key]!r} is not a whole number", "give whole bytes, digits only")
    words = _words(values)
    for key in (key for key, word in words.items() if word is None):
        (kind, what), wrong = _WORDS[key], str(values[key])
        complain(places[key], f"'{wrong}' is not {what}", did_you_mean(wrong, list(kind)))
    result.counts = {key: values[key] for key in _COUNTS if type(values.get(key)) is int}
    for key in _COUNTS:
        if key in values and key not in result.counts:
            complain(places[key], f"{values[key]!r} is not a whole number", f"give the rows of {key}.csv")
    if not result.problems:
        result.info = TraceInfo(batch=batch, **words, **texts, **sizes)
    return result


def _texts(values: Mapping[Any, Any]) -> dict[str, Any]:
    result = {key: values.get(key, "") for key in (*_TEXTS, *_OPTIONAL_TEXTS)}
    return {key: text.isoformat() if type(text) is datetime.date else text for key, text in result.items()}


def _words(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The keys with one of a few values that are there; None for a value that is none of them."""
    kinds = {key: kind for key, (kind, _) in _WORDS.items() if key in values}
    return {key: kind(values[key]) if values[key] in list(kind) else None for key, kind in kinds.items()}


def header_text(trace: Trace) -> str:
    """The content of trace.yaml for a trace; the same bytes for the same trace."""
    import yaml

    info = trace.info
    values: dict[str, object] = {"schema": SCHEMA}
    for key in _WRITTEN:
        value = getattr(info, key)
        if value not in (None, "") or key not in _OMITTED_IF_UNKNOWN:
            values[key] = str(value) if isinstance(value, StrEnum) else value
    values |= {key: len(getattr(trace, key)) for key in _COUNTS}
    # PyYAML leaves some control characters bare among other letters, and then reads them back as something else.
    is_plain = all(line.isprintable() for line in info.notes.split("\n"))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=is_plain, width=110)
