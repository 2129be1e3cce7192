"""Tasks as a file next to the tables of a trace: their costs when they ran, which may differ from the recorded ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simgpu.errors import InputError
from simgpu.graph.encodings import EncodedForm
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import in_versions
from simgpu.io.input_files import parse_json
from simgpu.trace.model import Trace

SCHEMA = "simgpu.tasks/2"

_AGAIN = "write it anew"


def tasks_to_json(graph: TaskGraph) -> str:
    """The costs of a graph's tasks as JSON: one number a kernel or block, in order.

    `durations_ns`: of kernels. `device_bytes`: of a block on the device. `copy_bytes`: of a block on the link and in
    host memory. `encoded`: the encoded forms, each as [form, block, encode_ns, decode_ns].
    """
    document = {
        "schema": SCHEMA,
        "durations_ns": graph.durations,
        "device_bytes": graph.sizes,
        "copy_bytes": graph.copy_sizes,
        "encoded": [[form, *costs] for form, costs in sorted(graph.encoded.items())],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def tasks_from_json(text: str, trace: Trace) -> TaskGraph:
    """The tasks that ran. trace: the kernels and blocks that ran, read from their tables.

    Raises `InputError` where a number is missing or out of range.

    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5], [7], [100])
    >>> graph = replace(TaskGraph.of(trace), durations=(2, 7))
    >>> tasks_from_json(tasks_to_json(graph), trace).durations
    (2, 7)
    """
    try:
        document = parse_json(text, "tasks", _AGAIN)
        if document["schema"] != SCHEMA:
            raise InputError.single("tasks", "schema", f"{document['schema']!r} is not {SCHEMA}", _AGAIN)
        blocks = len(trace.blocks)
        encoded = {
            _within(form, blocks): EncodedForm(_within(of, blocks), *_non_negative(times))
            for form, of, *times in document["encoded"]
        }
        graph = replace(
            TaskGraph.of(trace),
            durations=_numbers(document, "durations_ns", len(trace.kernels)),
            sizes=_numbers(document, "device_bytes", blocks),
            copy_sizes=_numbers(document, "copy_bytes", blocks),
            encoded=encoded,
        )
        return in_versions(graph)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"are no tasks as simgpu writes them: {error}"
        raise InputError.single("tasks", "", what, _AGAIN) from error


def _numbers(document: dict[str, Any], name: str, count: int) -> tuple[int, ...]:
    numbers = document[name]
    if len(numbers) != count:
        raise ValueError(f"{name} has {len(numbers)} numbers where the tables have {count} rows")
    return _non_negative(numbers)


def _non_negative(numbers: Sequence[Any]) -> tuple[int, ...]:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a whole number >= 0")
    return tuple(numbers)


def _within(number: int, count: int) -> int:
    if number not in range(count):
        raise ValueError(f"{number!r} is the number of no block")
    return number
