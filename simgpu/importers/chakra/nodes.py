"""A node of a Chakra execution trace, however it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers import quantities
from simgpu.importers.json_stream import MemoryBudget, Piece
from simgpu.importers.quantities import shown

#: Measured on a VGG-13 iteration on an H100 with tensors: 3500 bytes in protobuf form and 5700 in JSON, at the peak of
#: Python's own count.
NODES = Piece("nodes", 6000, "convert the trace of a single iteration")

#: Kinds of nodes by their number in the schema.
NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
_VERSIONS = ("0.0.4", "1.0.0")
_SCHEMA = re.compile(r"\d+(?:\.\d+)*-chakra\.(.+)")


@dataclass(frozen=True, slots=True)
class Operands:
    """What a node names as inputs or outputs: lists of one length, or their text as Python writes lists."""

    values: Any = ()
    shapes: Any = ()
    types: Any = ()


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """One node. place: where it stands in its file.

    start_ns, duration_ns: 0 where the file does not say, which the schema cannot distinguish from a time of 0.
    attributes: those with a single value, by name.
    """

    place: str
    id: int
    name: str
    type: str
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_ns: int = 0
    duration_ns: int = 0
    inputs: Operands = Operands()
    outputs: Operands = Operands()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The node as messages name it."""
        return f"{self.id} ({self.name[:60]})"


@dataclass(frozen=True, slots=True)
class Document:
    """All nodes of a file, in the order in which it lists them. metadata: the attributes of the whole."""

    path: Path
    nodes: tuple[ChakraNode, ...]
    metadata: Mapping[str, Any]

    @property
    def is_from_pytorch(self) -> bool:
        """Whether it was converted from a PyTorch execution trace, whose metadata hold the process."""
        return "pid" in self.metadata


def node_type(value: object) -> str:
    """The name of a node's type, given as name or number; `ValueError` for another.

    >>> node_type(4), node_type("COMM_COLL_NODE")
    ('COMP_NODE', 'COMM_COLL_NODE')
    """
    if isinstance(value, str) and value in NODE_TYPES:
        return value
    if type(value) is int and 0 <= value < len(NODE_TYPES):
        return NODE_TYPES[value]
    raise ValueError(f"its type {shown(value)} is not one of the schema's")


def nanoseconds(value: object) -> int:
    """Microseconds, a number or its text, as whole nanoseconds, the nearest; `ValueError` for none and below 0.

    >>> nanoseconds("12"), nanoseconds("3.25")
    (12000, 3250)
    """
    time = quantities.nanoseconds(value, "microseconds")
    if time < 0:
        raise ValueError(f"{shown(value)} is not a number of microseconds >= 0")
    return int(time.to_integral_value())


def document(path: Path, version: str, metadata: Mapping[str, Any], nodes: Iterable[ChakraNode]) -> Document:
    """The file as a whole.

    Raises `InputError` for an unknown schema version, an id that comes twice, and more nodes than memory can hold.
    """
    schema = metadata.get("schema")
    if version and version not in _VERSIONS:
        raise _unknown(path, version)
    if isinstance(schema, str) and ((match := _SCHEMA.fullmatch(schema)) is None or match[1] not in _VERSIONS):
        raise _unknown(path, schema)
    result: dict[int, ChakraNode] = {}
    budget = MemoryBudget(path, NODES)
    for node in nodes:
        budget.take()
        if node.id in result:
            what = f"node {node.label} has the id of {result[node.id].place}"
            raise InputError.single(path, node.place, what, "give a trace in which each node has its own id")
        result[node.id] = node
    return Document(path, tuple(result.values()), metadata)


def _unknown(path: Path, version: str) -> InputError:
    known = ", ".join(_VERSIONS)
    remedy = f"known versions of Chakra's schema: {known}; write it with a converter for one of these"
    return InputError.single(path, "schema version", f"{version!r} is not known", remedy)
