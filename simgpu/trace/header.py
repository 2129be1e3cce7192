"""Reading and writing `trace.yaml`, which says where a trace comes from.

Lives here: its keys, their types, the row counts that guard against cut-off tables. Does not live here: YAML syntax
(`simgpu.yamlfile`) or whether the values make sense (`simgpu.trace.check`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.trace.model import Origin, Trace, TraceInfo

SCHEMA = "simgpu.trace/1"
FILE = "trace.yaml"

_TEXTS = ("model", "device", "dtype", "tool")
_OPTIONAL_TEXTS = ("date", "notes")
_REQUIRED = ("model", "batch", "device", "dtype", "origin", "tool")
_COUNTS = ("kernels", "blocks")
_KEYS = ("schema", *_REQUIRED, *_OPTIONAL_TEXTS, *_COUNTS)


@dataclass(slots=True)
class ReadHeader:
    """What came out of trace.yaml.

    places: where each key stands, for messages. counts: the numbers of rows it promises, if any.
    """

    info: TraceInfo | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_header(path: Path) -> ReadHeader:
    """The content of a trace.yaml, or what is wrong with it; never raises."""
    from simgpu.yamlfile import read_yaml_mapping

    try:
        document = read_yaml_mapping(path, SCHEMA)
    except InputError as error:
        return ReadHeader(problems=list(error.problems))
    values = document.values
    places = {key: document.place(key) for key in _KEYS}
    result = ReadHeader(places=places)

    def complain(place: str, what: str, remedy: str) -> None:
        result.problems.append(Problem(str(path), place, what, remedy))

    for key in values:
        if key not in _KEYS:
            complain(document.place(str(key)), f"unknown key '{key}'", did_you_mean(str(key), _KEYS))
    for key in _REQUIRED:
        if key not in values:
            complain("", f"key '{key}' is missing", f"the required keys are: schema, {', '.join(_REQUIRED)}")
    texts = {}
    for key in (*_TEXTS, *_OPTIONAL_TEXTS):
        value = values.get(key, "")
        texts[key] = value.isoformat() if type(value) is datetime.date else value
        if not isinstance(texts[key], str):
            complain(places[key], f"{value!r} is not a text", f'write it in quotes: {key}: "{value}"')
    batch = values.get("batch", 1)
    if type(batch) is not int:
        complain(places["batch"], f"{batch!r} is not a whole number", "give the number of samples, digits only")
    origin = _origin(values.get("origin", Origin.RECORDED))
    if origin is None:
        wrong = str(values["origin"])
        complain(places["origin"], f"'{wrong}' is not an origin", did_you_mean(wrong, list(Origin)))
    result.counts = {key: values[key] for key in _COUNTS if type(values.get(key)) is int}
    for key in _COUNTS:
        if key in values and key not in result.counts:
            complain(places[key], f"{values[key]!r} is not a whole number", f"give the rows of {key}.csv")
    if not result.problems:
        result.info = TraceInfo(batch=batch, origin=origin or Origin.RECORDED, **texts)
    return result


def _origin(value: Any) -> Origin | None:
    return Origin(value) if value in list(Origin) else None


def header_text(trace: Trace) -> str:
    """The content of trace.yaml for a trace; the same bytes for the same trace."""
    import yaml

    info = trace.info
    values = {
        "schema": SCHEMA,
        "model": info.model,
        "batch": info.batch,
        "device": info.device,
        "dtype": info.dtype,
        "origin": str(info.origin),
        "tool": info.tool,
        "date": info.date,
        "notes": info.notes,
        "kernels": len(trace.kernels),
        "blocks": len(trace.blocks),
    }
    # PyYAML leaves some control characters bare among other letters, and then reads them back as something else.
    is_plain = all(line.isprintable() for line in info.notes.split("\n"))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=is_plain, width=110)
