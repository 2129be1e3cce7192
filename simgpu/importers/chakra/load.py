"""Imports MLCommons Chakra execution traces: protobuf (``.et``) and the JSON forms of Chakra's tools, plain or gzip.

Times are whole microseconds in the schema. Recorded start times are imported, except in traces converted from PyTorch:
there they are launch times, and only order the kernels. The notes list what the recording does not contain (tensors,
streams, phases, lifetimes).
"""

from __future__ import annotations

from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers.chakra.forms import read_document
from simgpu.importers.chakra.kernels import Kernels
from simgpu.importers.chakra.memory import ChakraBlock, block, find_memory, samples
from simgpu.importers.chakra.nodes import ChakraNode
from simgpu.importers.drafts import printable, reads_and_writes
from simgpu.importers.options import ImportOptions
from simgpu.importers.quantities import shown
from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.units import format_time

_TOOL = "Chakra execution trace"


def load(path: Path, options: ImportOptions) -> Trace:
    """Returns the recording as a trace. Raises `InputError` for an invalid node."""
    kernels = Kernels(read_document(path))
    memories = find_memory(kernels)
    phases = [kernels.phases[node.id] or Phase.FORWARD for node in kernels.nodes]
    ids = [str(node.id) for node in kernels.nodes]
    rows = _kernels(kernels, phases, memories)
    batch = options.samples(path, samples(kernels))
    info = options.info(path, _TOOL, path.name.partition(".")[0], batch, _notes(kernels, memories, rows))
    return Trace(info, rows, tuple(block(memory, phases, ids, batch) for memory in memories))


def _kernels(kernels: Kernels, phases: list[Phase], memories: list[ChakraBlock]) -> tuple[Kernel, ...]:
    reads, writes = reads_and_writes(len(kernels.nodes), memories)
    has_starts = kernels.has_starts and not kernels.document.is_from_pytorch
    begin = min(node.start_ns for node in kernels.nodes)
    streams: dict[int | str | None, int] = {}
    return tuple(
        Kernel(
            str(node.id),
            printable(kernels.operator(node).name),
            phases[position],
            node.duration_ns,
            tuple(reads[position]),
            tuple(writes[position]),
            layer=kernels.layer(node),
            stream=streams.setdefault(_stream(kernels, node), len(streams)),
            start_ns=node.start_ns - begin if has_starts else None,
            pure=False if phases[position] is Phase.OPTIMIZER else kernels.pure(node),
            flops=_count(node, "num_ops"),
            dram_bytes=_count(node, "tensor_size"),
        )
        for position, node in enumerate(kernels.nodes)
    )


def _stream(kernels: Kernels, node: ChakraNode) -> int | str | None:
    """The node's stream number or name; None if not recorded."""
    stream = node.attributes.get("stream")
    if not isinstance(stream, int | str | None):
        what = f"node {node.label} has the stream {shown(stream)}, neither a number nor a name"
        raise InputError.single(kernels.document.path, node.place, what, "convert it again")
    return stream


def _count(node: ChakraNode, name: str) -> int | None:
    value = node.attributes.get(name)
    return value if type(value) is int and value > 0 else None


def _notes(kernels: Kernels, memories: list[ChakraBlock], rows: tuple[Kernel, ...]) -> str:
    """The trace's notes: what the import dropped, and what the recording does not contain."""
    notes = []
    if kernels.transfers:
        total = format_time(sum(node.duration_ns for node in kernels.transfers))
        notes.append(
            f"Copies over the link and fills of memory are left out: {len(kernels.transfers)}, {total} in all."
        )
    if empty := sum(not row.duration_ns for row in rows):
        notes.append(f"Kernels with 0 us, shorter than the format's resolution: {empty}.")
    if not kernels.is_known:
        notes.append("Nodes do not record whether they ran on the host; all compute nodes count as GPU kernels.")
    if unknown := sum(phase is None for phase in kernels.phases.values()):
        notes.append(f"Kernels whose phase is not recorded: {unknown}; they count as forward.")
    if not kernels.has_starts and len(rows) > 1:
        notes.append("Starts are not recorded; kernels are in the order of their dependencies and ids.")
    if not memories:
        notes.append("Tensors are not recorded, so there are no blocks.")
        if len({row.stream for row in rows}) > 1:
            notes.append("Dependencies between kernels on different streams are therefore unknown.")
    elif filled := sum(memory.is_filled_unseen for memory in memories):
        notes.append(f"Blocks filled by copies or fills that are left out: {filled}; each starts at its first reader.")
    notes.append("Lifetimes are not recorded.")
    return " ".join(notes)
