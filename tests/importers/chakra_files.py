"""Chakra traces for tests, encoded by hand from the published et_def.proto and protobuf's wire format.

Nodes are dictionaries with the schema's field names. Nothing here uses the code under test, or protobuf's own library.
"""

from __future__ import annotations

import json
import struct
from typing import Any

Node = dict[str, Any]

#: Field numbers of et_def.proto.
NODE = {"id": 1, "name": 2, "type": 3, "ctrl_deps": 4, "data_deps": 5, "start_time_micros": 6, "duration_micros": 7}
NODE |= {"inputs": 8, "outputs": 9, "attr": 10}
IO = {"values": 1, "shapes": 2, "types": 3}
ATTRIBUTE = {"double_val": 3, "float_val": 5, "int32_val": 7, "int64_val": 9, "uint64_val": 13, "sint64_val": 17}
ATTRIBUTE |= {"fixed32_val": 19, "bool_val": 27, "string_val": 29}


def varint(value: int) -> bytes:
    """A number, seven bits a byte, the lowest first."""
    value &= 2**64 - 1
    result = bytearray()
    while value > 0x7F:
        result.append(0x80 | value & 0x7F)
        value >>= 7
    return bytes([*result, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def attribute(name: str, kind: str, value: Any) -> bytes:
    field = ATTRIBUTE[kind]
    if kind == "string_val":
        held = text(field, value)
    elif kind in ("double_val", "float_val", "fixed32_val"):
        shape, wire = {"double_val": ("<d", 1), "float_val": ("<f", 5), "fixed32_val": ("<I", 5)}[kind]
        held = varint(field << 3 | wire) + struct.pack(shape, value)
    elif kind == "sint64_val":
        held = number(field, value << 1 ^ value >> 63)
    else:
        held = number(field, int(value))
    return text(1, name) + held


def node(fields: Node) -> bytes:
    """A node's bytes; proto3 leaves out what is 0 or empty, and packs repeated numbers."""
    parts = []
    for name, value in fields.items():
        field = NODE[name]
        if name == "attr":
            parts += [text(field, attribute(*reported)) for reported in value]
        elif name in ("inputs", "outputs"):
            parts.append(text(field, b"".join(text(IO[part], str(row)) for part, row in value.items())))
        elif name in ("ctrl_deps", "data_deps"):
            parts.append(text(field, b"".join(map(varint, value))))
        elif name == "name":
            parts.append(text(field, value))
        elif value:
            parts.append(number(field, value))
    return b"".join(parts)


def message(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def protobuf(nodes: list[Node], metadata: bytes = text(1, "0.0.4")) -> bytes:
    return message(metadata) + b"".join(message(node(fields)) for fields in nodes)


TYPES = {1: "METADATA_NODE", 2: "MEM_LOAD_NODE", 4: "COMP_NODE", 7: "COMM_COLL_NODE"}


def jsonized(nodes: list[Node], metadata: dict[str, Any] | None = None) -> str:
    """The same nodes as protobuf's JSON: camel case, 64-bit numbers as text, 0 left out, one object after another."""

    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(part.capitalize() for part in rest)

    def reported(name: str, value: Any) -> Any:
        if name == "type":
            return TYPES[value]
        if name == "attr":
            return [{"name": name, camel(kind): plain(kind, held)} for name, kind, held in value]
        if name in ("inputs", "outputs"):
            return {part: str(row) for part, row in value.items()}
        return [str(item) for item in value] if isinstance(value, list) else value if name == "name" else str(value)

    def plain(kind: str, held: Any) -> Any:
        return str(held) if "64" in kind else held

    rows = [{camel(name): reported(name, value) for name, value in fields.items() if value} for fields in nodes]
    return "".join(json.dumps(row, indent=2) for row in [metadata or {"version": "0.0.4"}, *rows])


def tensors(*listed: tuple[int, int, int], kind: str = "Tensor(float)") -> dict[str, list[Any]]:
    """Inputs or outputs: (tensor, storage, elements) each."""
    values = [[tensor, storage, 0, count, 4, "cuda:0"] for tensor, storage, count in listed]
    return {"values": values, "shapes": [[count] for _, _, count in listed], "types": [kind] * len(listed)}
