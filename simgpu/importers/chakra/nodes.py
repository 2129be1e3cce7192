"""The nodes of a Chakra execution trace, in a form that does not depend on the file format."""

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

#: Measured peak, as counted by Python: 3500 bytes per node in protobuf form and 5700 in JSON, for a VGG-13 iteration on
#: an H100 with tensors.
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
    """A node's inputs or outputs: lists of the same length, or their Python text."""

    values: Any = ()
    shapes: Any = ()
    types: Any = ()


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """One node.

    place: its place in the file, for messages.
    start_ns, duration_ns: 0 if not recorded; the schema cannot distinguish this from a time of 0.
    attributes: the attributes with a single value, by name.
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
        """The node's name in messages."""
        return f"{self.id} ({self.name[:60]})"


@dataclass(frozen=True, slots=True)
class Document:
    """All nodes of a file, in file order. metadata: the attributes of the file."""

    path: Path
    nodes: tuple[ChakraNode, ...]
    metadata: Mapping[str, Any]

    @property
    def is_from_pytorch(self) -> bool:
        """Whether it was converted from a PyTorch execution trace, whose metadata contain the process id."""
        return "pid" in self.metadata


def node_type(value: object) -> str:
    """The name of a node's type, from its name or number; `ValueError` if unknown.

    >>> node_type(4), node_type("COMM_COLL_NODE")
    ('COMP_NODE', 'COMM_COLL_NODE')
    """
    if isinstance(value, str) and value in NODE_TYPES:
        return value
    if type(value) is int and 0 <= value < len(NODE_TYPES):
        return NODE_TYPES[value]
    raise ValueError(f"its type {shown(value)} is not one of the schema's")


def nanoseconds(value: object) -> int:
    """Converts microseconds, a number or its text, to the nearest whole ns; `ValueError` if invalid or negative.

    >>> nanoseconds("12"), nanoseconds("3.25")
    (12000, 3250)
    """
    time = quantities.nanoseconds(value, "microseconds")
    if time < 0:
        raise ValueError(f"{shown(value)} is not a number of microseconds >= 0")
    return int(time.to_integral_value())


def document(path: Path, version: str, metadata: Mapping[str, Any], nodes: Iterable[ChakraNode]) -> Document:
    """Builds the document from its nodes.

    Raises `InputError` for an unknown schema version, a duplicate id, or more nodes than fit into memory.
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
            what = f"node {node.label} has the same id as {result[node.id].place}"
            raise InputError.single(path, node.place, what, "use a trace in which each node has its own id")
        result[node.id] = node
    return Document(path, tuple(result.values()), metadata)


def _unknown(path: Path, version: str) -> InputError:
    known = ", ".join(_VERSIONS)
    remedy = f"supported versions of Chakra's schema: {known}; use a converter for one of these"
    return InputError.single(path, "schema version", f"{version!r} is not supported", remedy)
