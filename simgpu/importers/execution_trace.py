"""Reads PyTorch execution traces: the operators that the host ran, with their input and output tensors.

Supports schemas 1.0 (flat fields per node) and 1.1 (nested inputs, outputs and attrs). A tensor is
``[tensor, storage, offset, elements, bytes per element, device]``. Tensors without bytes and tensors outside a GPU
are dropped. The operator's schema states how it uses an argument: ``(a!)`` marks a changed argument; after a ``*`` it
is an ``out=`` argument, which is written and not read.

An execution trace has no times, so it cannot be imported alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from simgpu.errors import InputError
from simgpu.importers.json_stream import MemoryBudget, Piece, head, items, members_before
from simgpu.importers.options import ImportOptions
from simgpu.importers.quantities import shown
from simgpu.io.input_files import require_regular
from simgpu.trace.columns import LARGEST
from simgpu.trace.model import Trace

#: Measured peak, as counted by Python: 1250 to 1500 bytes per node for a VGG-13 iteration on an H100, and 1750 to 2150
#: if every operator creates a tensor (a test checks this).
NODES = Piece("nodes", 1700, "let the observer run for a single iteration")

_SCHEMA = re.compile(r"1\.[01]\.\d+(-.*)?")
_TENSOR_TYPE = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?[^()]*)\)")

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
}

#: In-place operators that overwrite every element without reading it.
_OVERWRITES = re.compile(r"aten::(fill|zero|copy|normal|uniform|random|bernoulli|exponential|set_data)_$")


class Tensor(NamedTuple):
    """A GPU tensor in a node's inputs or outputs.

    tensor, storage: ids.
    bytes: from the start of the storage to the tensor's last element, if strides are recorded; else offset plus
        elements.
    argument: name of the argument that is, or lists, this tensor; empty for an output.
    changed: whether the operator writes it in place.
    overwritten: whether the operator writes it without reading it.
    """

    tensor: int
    storage: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    argument: str = ""
    changed: bool = False
    overwritten: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """An operator that ran on the host.

    number: id of the node. function: its Record function id. thread: the trace's thread number.
    """

    number: int
    name: str
    function: int
    thread: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """All operators in start order. date: day of the recording, YYYY-MM-DD; empty if not recorded."""

    path: Path
    nodes: tuple[Node, ...]
    date: str


def recognises(path: Path) -> bool:
    """Whether a file is JSON with a schema and nodes, as written by the execution trace observer."""
    start = head(path)
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"', start) is not None and b'"nodes"' in start


def load(path: Path, options: ImportOptions) -> Trace:
    """Always raises `InputError`: an execution trace alone has no times."""
    what = "is an execution trace, which has no times"
    command = "simgpu trace import PROFILE --execution-trace FILE"
    remedy = f"import the profile of the same run together with this file: {command}"
    raise InputError.single(path, "", what, remedy)


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Returns the operators of an execution trace. Raises `InputError` for the first invalid node."""
    require_regular(path, "an execution trace")
    if not recognises(path):
        what = "is not a PyTorch execution trace"
        raise InputError.single(path, "", what, "record one with torch.profiler.ExecutionTraceObserver")
    about = members_before(path, "nodes")
    schema = about.get("schema")
    if not isinstance(schema, str) or _SCHEMA.fullmatch(schema) is None:
        what = f"has schema {shown(schema)}; supported: 1.0 and 1.1"
        raise InputError.single(path, "schema", what, "record it with a PyTorch that writes one of these")
    nodes = []
    devices: set[str] = set()
    budget = MemoryBudget(path, NODES)
    for number, raw in items(path, "nodes"):
        try:
            node = _node(raw, devices)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = f"cannot be read ({type(error).__name__}: {error})"
            raise InputError.single(path, f"item {number} of nodes", what, "record it again") from None
        if node.function:
            nodes.append(node)
            budget.take()
    if not nodes:
        raise InputError.single(path, "", "contains no operators", "record it while an iteration runs")
    if len(devices) > 1:
        what = f"has tensors on several GPUs ({', '.join(sorted(devices))})"
        raise InputError.single(path, "", what, "a trace has one GPU: record each rank separately")
    nodes.sort(key=lambda node: node.number)
    time = about.get("time")
    return ExecutionTrace(path, tuple(nodes), time[:10] if isinstance(time, str) else "")


def _node(raw: dict[str, Any], devices: set[str]) -> Node:
    inputs, outputs = raw["inputs"], raw["outputs"]
    if isinstance(inputs, dict):
        attributes = {item["name"]: item["value"] for item in raw["attrs"]}
        listed_inputs = (inputs["values"], inputs["shapes"], inputs["types"], inputs.get("strides"))
        listed_outputs = (outputs["values"], outputs["shapes"], outputs["types"], outputs.get("strides"))
    else:
        attributes = raw
        listed_inputs = (inputs, raw["input_shapes"], raw["input_types"], None)
        listed_outputs = (outputs, raw["output_shapes"], raw["output_types"], None)
    name = sys.intern(raw["name"])
    arguments = _arguments(attributes.get("op_schema") or "")
    return Node(
        number=_integer(raw["id"]),
        name=name,
        function=_integer(attributes["rf_id"]),
        thread=_integer(attributes["tid"]),
        inputs=tuple(_tensors(name, listed_inputs, arguments, devices)),
        outputs=tuple(_tensors(name, listed_outputs, (), devices)),
    )


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{shown(value)} is not a whole number")
    return value


def tensors_of(operator: str, listed: tuple[Any, Any, Any, Any], schema: str, devices: set[str]) -> Iterator[Tensor]:
    """Yields the GPU tensors among an operator's inputs or outputs, and adds their devices to `devices`.

    listed: values, shapes, types, and strides (None if not recorded).
    schema: the operator's schema, which states how it uses its arguments; empty for outputs.
    """
    return _tensors(operator, listed, _arguments(schema), devices)


@dataclass(frozen=True, slots=True)
class _Argument:
    name: str
    changed: bool
    is_out: bool


@lru_cache(maxsize=4096)
def _arguments(schema: str) -> tuple[_Argument, ...]:
    """The arguments of a schema such as ``aten::add_.Tensor(Tensor(a!) self, *, Scalar alpha=1) -> Tensor(a!)``."""
    begin, stop, depth = schema.find("("), -1, 0
    parts, start = [], begin + 1
    for place in range(max(begin, 0), len(schema)):
        letter = schema[place]
        depth += (letter in "([") - (letter in ")]")
        if (letter == "," and depth == 1) or (depth == 0 and letter == ")"):
            parts.append(schema[start:place].strip())
            start = place + 1
            if depth == 0:
                stop = place
                break
    if begin < 0 or stop < 0:
        return ()
    result, after_star = [], False
    for part in parts:
        if part == "*":
            after_star = True
        elif part:
            kind, _, name = part.partition("=")[0].strip().rpartition(" ")
            result.append(_Argument(sys.intern(name), "!" in kind, after_star and "!" in kind))
    return tuple(result)


def _tensors(
    operator: str, listed: tuple[Any, Any, Any, Any], arguments: Sequence[_Argument], devices: set[str]
) -> Iterator[Tensor]:
    values, shapes, types, strides = listed
    for part in listed[:3] if strides is None else listed:
        if not isinstance(part, list | tuple):
            raise TypeError(f"{shown(part)} is not a list")
    for position, value in enumerate(values):
        argument = arguments[position] if position < len(arguments) else _Argument("", False, False)
        dtypes = iter(_TENSOR_TYPE.findall(str(types[position])))
        stride = strides[position] if strides is not None else None
        for raw, shape, step in _flat(value, shapes[position], stride):
            dtype = next(dtypes, "")
            tensor, storage, offset, elements, width, device = raw[:6]
            if not device.startswith(("cuda", "hip")) or elements * width == 0:
                continue
            devices.add(device)
            sides = tuple(shape)
            extent = _extent(sides, step) if step else elements
            size = _bytes(offset + extent, width)
            overwritten = argument.changed and (argument.is_out or _OVERWRITES.match(operator) is not None)
            yield Tensor(
                tensor=tensor,
                storage=storage,
                bytes=size,
                shape=sides,
                dtype=_DTYPES.get(dtype, dtype),
                argument=argument.name,
                changed=argument.changed,
                overwritten=overwritten,
            )


def _flat(value: Any, shape: Any, stride: Any) -> Iterator[tuple[list[Any], list[int], Any]]:
    """Yields the tensors of a value, a tensor or a nested list, with their shapes and strides."""
    if not isinstance(value, list):
        return
    if len(value) >= 6 and isinstance(value[5], str) and all(type(part) is int for part in value[:5]):
        yield value, shape, stride
        return
    for place, part in enumerate(value):
        if isinstance(part, list):
            yield from _flat(part, shape[place], stride[place] if stride else None)


def _bytes(elements: object, width: int) -> int:
    """Bytes of a number of elements; `ValueError` if invalid, for example from a damaged shape or strides."""
    if type(elements) is not int or not 0 <= elements * width <= LARGEST:
        raise ValueError(f"{shown(elements)} elements of {shown(width)} bytes are no tensor")
    return elements * width


def _extent(shape: tuple[int, ...], strides: Sequence[int]) -> int:
    """The number of elements from a tensor's first to its last, both included."""
    return 1 + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
