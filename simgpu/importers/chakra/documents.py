"""Reading a Chakra execution trace in one of its JSON forms.

- *jsonized*: what chakra_jsonizer makes of the protobuf form: objects one after another, the metadata and then nodes,
  in protobuf's JSON (camel case or snake case; 64-bit numbers as text; what is 0 or empty is left out);
- *linked*: what chakra_trace_link makes of a PyTorch execution trace and a profile: one object with ``nodes``, those of
  the host and, marked by ``cat``, those of the GPU;
- *workload graph*: what the feeder of Chakra reads beside protobuf: one object with ``workload_graph``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from simgpu.errors import InputError
from simgpu.importers.chakra.nodes import Document, Node, Operands, document, nanoseconds, node_type
from simgpu.importers.json_stream import head, items, members_before, values
from simgpu.importers.quantities import shown, whole

_Read = TypeVar("_Read")
_AGAIN = "write it again with Chakra's tools"


def jsonized(path: Path) -> bool:
    """Whether a file begins with an object that has a version, attributes, or both, and nothing else."""
    text = head(path).decode("utf-8", errors="ignore").lstrip()
    try:
        first, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and bool(first) and first.keys() <= {"version", "attr"}


def linked(path: Path) -> bool:
    """Whether a file is an execution trace whose nodes have durations."""
    start = head(path)
    is_trace = re.match(rb'\s*\{\s*"schema"\s*:\s*"[^"]*chakra', start) is not None and b'"nodes"' in start
    return is_trace and b'"exclusive_dur"' in start


def workload_graph(path: Path) -> bool:
    """Whether a file is an object with a workload graph."""
    return re.match(rb'\s*\{\s*"workload_graph"\s*:', head(path)) is not None


def read_jsonized(path: Path) -> Document:
    """All nodes of a jsonized trace."""
    rows = values(path)
    _, first = next(rows)
    version, metadata = _read(path, "value 1", first, _jsonized_metadata)
    nodes = (_read(path, f"value {number}", raw, _jsonized_node) for number, raw in rows)
    return document(path, version, metadata, nodes)


def read_linked(path: Path) -> Document:
    """All nodes of a linked trace."""
    metadata = members_before(path, "nodes")
    nodes = (_read(path, f"item {number} of nodes", raw, _linked_node) for number, raw in items(path, "nodes"))
    return document(path, "", metadata, nodes)


def read_workload_graph(path: Path) -> Document:
    """All nodes of a workload graph."""
    rows = items(path, "workload_graph")
    nodes = (_read(path, f"item {number} of workload_graph", raw, _graph_node) for number, raw in rows)
    return document(path, "", {}, nodes)


def _read(path: Path, place: str, raw: Any, read: Callable[[str, dict[str, Any]], _Read]) -> _Read:
    """A node, or the metadata; what cannot be read becomes an `InputError` naming its place."""
    try:
        if not isinstance(raw, dict):
            raise ValueError(f"{shown(raw)} is not an object")
        return read(place, raw)
    except KeyError as error:
        raise InputError.single(path, place, f"the node lacks {error}", _AGAIN) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError.single(path, place, f"cannot be read: {error}", _AGAIN) from None


def _jsonized_metadata(place: str, raw: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schema's version, and the attributes of the whole."""
    return str(raw.get("version", "")), _values_by_name(raw.get("attr", ()))


def _jsonized_node(place: str, raw: dict[str, Any]) -> Node:
    def get(name: str, default: Any) -> Any:
        first, *rest = name.split("_")
        return raw.get(name, raw.get(first + "".join(part.capitalize() for part in rest), default))

    def operands(name: str) -> Operands:
        told = raw.get(name, {})
        return Operands(told.get("values", ""), told.get("shapes", ""), told.get("types", ""))

    return Node(
        place=place,
        id=whole(get("id", 0)),
        name=str(get("name", "")),
        type=node_type(get("type", 0)),
        ctrl_deps=tuple(map(whole, get("ctrl_deps", ()))),
        data_deps=tuple(map(whole, get("data_deps", ()))),
        start_ns=nanoseconds(get("start_time_micros", 0)),
        duration_ns=nanoseconds(get("duration_micros", 0)),
        inputs=operands("inputs"),
        outputs=operands("outputs"),
        attributes=_values_by_name(get("attr", ())),
    )


def _values_by_name(attributes: Any) -> dict[str, Any]:
    """Attributes with a single value; protobuf's JSON writes 64-bit numbers as text."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        for key, value in attribute.items():
            if re.fullmatch(r"\w+(_v|V)al", key):
                is_number = "tring" not in key and isinstance(value, str)
                found[attribute["name"]] = _signed(value) if is_number else value
    return found


def _signed(text: str) -> int:
    return -whole(text[1:]) if text.startswith("-") else whole(text)


def _linked_node(place: str, raw: dict[str, Any]) -> Node:
    """A node of the host, or of the GPU where it has a category; its parent is the operator that launched it."""
    attributes = {item["name"]: item["value"] for item in raw.get("attrs", ())}
    attributes["is_cpu_op"] = raw.get("cat") is None
    if raw.get("stream") is not None:
        attributes["stream"] = raw["stream"]
    name, parent = str(raw["name"]), raw["ctrl_deps"]
    is_collective = "ncclKernel" in name or "ncclDevKernel" in name
    waits_for = (raw.get("inter_thread_dep"), *(raw.get("sync_dep") or ()))
    return Node(
        place=place,
        id=whole(raw["id"]),
        name=name,
        type="COMM_COLL_NODE" if is_collective and raw.get("cat") is not None else "COMP_NODE",
        ctrl_deps=() if parent is None else (whole(parent),),
        data_deps=tuple(whole(number) for number in waits_for if number is not None),
        start_ns=nanoseconds(raw.get("ts", 0)),
        duration_ns=nanoseconds(raw.get("exclusive_dur", 0)),
        inputs=Operands(raw["inputs"]["values"], raw["inputs"]["shapes"], raw["inputs"]["types"]),
        outputs=Operands(raw["outputs"]["values"], raw["outputs"]["shapes"], raw["outputs"]["types"]),
        attributes=attributes,
    )


def _graph_node(place: str, raw: dict[str, Any]) -> Node:
    return Node(
        place=place,
        id=whole(raw["Id"]),
        name=str(raw["Name"]),
        type=node_type(raw["NodeType"]),
        data_deps=tuple(map(whole, raw.get("data_deps", ()))),
        duration_ns=nanoseconds(raw.get("runtime", 0)),
        attributes={name: raw[name] for name in ("is_cpu_op", "num_ops", "tensor_size") if name in raw},
    )
