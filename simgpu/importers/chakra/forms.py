"""Reads the file formats of Chakra execution traces: protobuf and three JSON forms.

- *protobuf*: length-prefixed messages, GlobalMetadata followed by nodes. The messages declare only the fields that
  simgpu reads, with the numbers of the published et_def.proto; protobuf skips all others.
- *jsonized*: output of chakra_jsonizer from the protobuf form: concatenated objects, metadata followed by nodes, in
  protobuf's JSON (camel case or snake case; 64-bit numbers as text; zero and empty values omitted).
- *linked*: output of chakra_trace_link from a PyTorch execution trace and a profile: one object with ``nodes`` of the
  host and of the GPU; the latter have a ``cat``.
- *workload graph*: the JSON input of Chakra's feeder: one object with ``workload_graph``.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from simgpu.errors import InputError, MissingExtraError
from simgpu.importers.chakra.nodes import ChakraNode, Document, Operands, document, nanoseconds, node_type
from simgpu.importers.json_stream import head, items, members_before, values
from simgpu.importers.quantities import integer, shown
from simgpu.io.input_files import Stream, open_unzipped, read_errors

_Read = TypeVar("_Read")
_AGAIN = "write it again with Chakra's tools"


def is_jsonized(path: Path) -> bool:
    """Whether a file begins with an object that has only a version, attributes, or both."""
    text = head(path).decode("utf-8", errors="ignore").lstrip()
    try:
        first, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and bool(first) and first.keys() <= {"version", "attr"}


def is_linked(path: Path) -> bool:
    """Whether a file is an execution trace whose nodes have durations."""
    start = head(path)
    is_trace = re.match(rb'\s*\{\s*"schema"\s*:\s*"[^"]*chakra', start) is not None and b'"nodes"' in start
    return is_trace and b'"exclusive_dur"' in start


def is_workload_graph(path: Path) -> bool:
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
    """Parses a node or the metadata; `InputError` with its place if it is invalid."""
    try:
        if not isinstance(raw, dict):
            raise ValueError(f"{shown(raw)} is not an object")
        return read(place, raw)
    except KeyError as error:
        raise InputError.single(path, place, f"the node lacks {error}", _AGAIN) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError.single(path, place, f"cannot be read: {error}", _AGAIN) from None


def _jsonized_metadata(place: str, raw: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The schema version, and the attributes of the file."""
    return str(raw.get("version", "")), _values_by_name(raw.get("attr", ()))


def _jsonized_node(place: str, raw: dict[str, Any]) -> ChakraNode:
    def get(name: str, default: Any) -> Any:
        first, *rest = name.split("_")
        return raw.get(name, raw.get(first + "".join(part.capitalize() for part in rest), default))

    def operands(name: str) -> Operands:
        side = raw.get(name, {})
        return Operands(side.get("values", ""), side.get("shapes", ""), side.get("types", ""))

    return ChakraNode(
        place=place,
        id=integer(get("id", 0)),
        name=str(get("name", "")),
        type=node_type(get("type", 0)),
        ctrl_deps=tuple(map(integer, get("ctrl_deps", ()))),
        data_deps=tuple(map(integer, get("data_deps", ()))),
        start_ns=nanoseconds(get("start_time_micros", 0)),
        duration_ns=nanoseconds(get("duration_micros", 0)),
        inputs=operands("inputs"),
        outputs=operands("outputs"),
        attributes=_values_by_name(get("attr", ())),
    )


def _values_by_name(attributes: Any) -> dict[str, Any]:
    """Attributes with a single value; protobuf's JSON writes 64-bit numbers as text."""
    result: dict[str, Any] = {}
    for attribute in attributes:
        for key, value in attribute.items():
            if re.fullmatch(r"\w+(_v|V)al", key):
                is_number = "tring" not in key and isinstance(value, str)
                result[attribute["name"]] = _signed(value) if is_number else value
    return result


def _signed(text: str) -> int:
    return -integer(text[1:]) if text.startswith("-") else integer(text)


def _linked_node(place: str, raw: dict[str, Any]) -> ChakraNode:
    """Parses a node of the host, or of the GPU if it has a category; its parent is the operator that launched it."""
    attributes = {item["name"]: item["value"] for item in raw.get("attrs", ())}
    attributes["is_cpu_op"] = raw.get("cat") is None
    if raw.get("stream") is not None:
        attributes["stream"] = raw["stream"]
    name, parent = str(raw["name"]), raw["ctrl_deps"]
    is_collective = "ncclKernel" in name or "ncclDevKernel" in name
    waits_for = (raw.get("inter_thread_dep"), *(raw.get("sync_dep") or ()))
    return ChakraNode(
        place=place,
        id=integer(raw["id"]),
        name=name,
        type="COMM_COLL_NODE" if is_collective and raw.get("cat") is not None else "COMP_NODE",
        ctrl_deps=() if parent is None else (integer(parent),),
        data_deps=tuple(integer(number) for number in waits_for if number is not None),
        start_ns=nanoseconds(raw.get("ts", 0)),
        duration_ns=nanoseconds(raw.get("exclusive_dur", 0)),
        inputs=Operands(raw["inputs"]["values"], raw["inputs"]["shapes"], raw["inputs"]["types"]),
        outputs=Operands(raw["outputs"]["values"], raw["outputs"]["shapes"], raw["outputs"]["types"]),
        attributes=attributes,
    )


def _graph_node(place: str, raw: dict[str, Any]) -> ChakraNode:
    return ChakraNode(
        place=place,
        id=integer(raw["Id"]),
        name=str(raw["Name"]),
        type=node_type(raw["NodeType"]),
        data_deps=tuple(map(integer, raw.get("data_deps", ()))),
        duration_ns=nanoseconds(raw.get("runtime", 0)),
        attributes={name: raw[name] for name in ("is_cpu_op", "num_ops", "tensor_size") if name in raw},
    )


#: The types of attribute values; their fields have the odd numbers from 3.
_VALUE_KINDS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string"),
)
#: Fields of each message: name, number, type. A type may be another message's name; "*" marks a repeated field.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "AttributeProto": (
        ("name", 1, "string"),
        *((f"{kind}_val", number, kind) for kind, number in zip(_VALUE_KINDS, range(3, 30, 2), strict=True)),
    ),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "uint64*"),
        ("data_deps", 5, "uint64*"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "AttributeProto*"),
    ),
}
_PACKAGE = "ChakraProtoMsg"
#: Maximum bytes of a message; protobuf itself allows 2 GiB.
_MESSAGE_LIMIT = 64 * 2**20
_CONVERT_AGAIN = "copy or convert it again"


def is_protobuf(path: Path) -> bool:
    """Whether a file begins with a length-prefixed GlobalMetadata: a version, or attributes with names."""
    data = head(path)
    size, at = _varint(data, 0)
    end = at + size
    if not at or size < 3 or end > len(data):
        return False
    while at < end:
        tag = data[at]
        length, at = _varint(data, at + 1)
        content = data[at : at + length]
        is_version = tag == 0x0A and content.replace(b".", b"").isdigit()
        is_attribute = tag == 0x12 and content[:1] == b"\x0a"
        if not at or not (is_version or is_attribute):
            return False
        at += length
    return at == end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at a position, and the position after it; (0, 0) if there is none."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            return 0, 0
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, 0


def read_protobuf(path: Path) -> Document:
    """All nodes of the file.

    Raises `MissingExtraError` if protobuf is not installed, and `InputError` for an invalid message.
    """
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise MissingExtraError("importing a Chakra trace in protobuf form", "protobuf", "chakra")
    messages = _messages()
    with open_unzipped(path, "a recording") as stream, read_errors(path):
        file = _Messages(stream)
        first = next(_stream(path, file, messages["GlobalMetadata"], 1), None)
        if first is None:
            raise InputError.single(path, "", "is empty", _CONVERT_AGAIN)
        _, metadata = first
        nodes = (_node(path, place, raw) for place, raw in _stream(path, file, messages["Node"], 2))
        return document(path, metadata.version, _attribute_values(metadata.attr), nodes)


class _Messages:
    """The bytes of a file for protobuf; refuses a message that exceeds the size limit before reading it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        if size > _MESSAGE_LIMIT:
            raise ValueError(f"its stated length is {size} B, above the limit of {_MESSAGE_LIMIT} B")
        return self._stream.read(size)


def _stream(path: Path, file: Any, message: Any, number: int) -> Iterator[tuple[str, Any]]:
    """Yields messages with their places, numbered from `number`."""
    from google.protobuf import proto
    from google.protobuf.message import DecodeError

    while True:
        place = f"message {number}"
        try:
            result = proto.parse_length_prefixed(message, file)
        except EOFError:
            raise InputError.single(path, place, "is cut off", _CONVERT_AGAIN) from None
        except (DecodeError, ValueError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            what = f"is cut off or is not a {message.DESCRIPTOR.name} of Chakra's schema ({reason})"
            raise InputError.single(path, place, what, _CONVERT_AGAIN) from None
        if result is None:
            return
        yield place, result
        number += 1


def _node(path: Path, place: str, raw: Any) -> ChakraNode:
    try:
        return ChakraNode(
            place=place,
            id=raw.id,
            name=raw.name,
            type=node_type(raw.type),
            ctrl_deps=tuple(raw.ctrl_deps),
            data_deps=tuple(raw.data_deps),
            start_ns=nanoseconds(raw.start_time_micros),
            duration_ns=nanoseconds(raw.duration_micros),
            inputs=Operands(raw.inputs.values, raw.inputs.shapes, raw.inputs.types),
            outputs=Operands(raw.outputs.values, raw.outputs.shapes, raw.outputs.types),
            attributes=_attribute_values(raw.attr),
        )
    except ValueError as error:
        raise InputError.single(path, place, f"node {raw.id} ({raw.name[:60]}): {error}", _CONVERT_AGAIN) from None


def _attribute_values(raw: Any) -> dict[str, Any]:
    result = {}
    for attribute in raw:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            result[attribute.name] = getattr(attribute, kind)
    return result


@lru_cache(maxsize=1)
def _messages() -> dict[str, Any]:
    """The message classes, built from the declarations above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="simgpu/chakra.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            plain = kind.removesuffix("*")
            field = message.field.add(name=field_name, number=number)
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            if plain in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
            if name == "AttributeProto" and field_name != "name":
                field.oneof_index = 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


#: The recogniser and the reader of each form.
_FORMS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Document]], ...] = (
    (is_workload_graph, read_workload_graph),
    (is_linked, read_linked),
    (is_jsonized, read_jsonized),
    (is_protobuf, read_protobuf),
)


def recognises(path: Path) -> bool:
    """Whether a file is a Chakra trace in one of its forms."""
    return path.is_file() and any(is_form(path) for is_form, _ in _FORMS)


def read_document(path: Path) -> Document:
    """All nodes of a Chakra trace; `recognises` must accept the file."""
    return next(read for is_form, read in _FORMS if is_form(path))(path)
