"""What the kernels, codecs and copies of a graph do to the hardware: operations, and bytes to and from device memory.

A graph with its transforms applied has the kernels that really run, with their own ids.

What the work that a timeline names does to the hardware, beside the time that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Kernel, Trace
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import OperationKind

_PRODUCTS = (OperationKind.CONVOLUTION, OperationKind.GEMM)
_PARTLY_READ = (OperationKind.GATHER, OperationKind.COPY)


def work_of(graph: TaskGraph) -> WorkDone:
    """The work that a graph's kernels, codecs and copies do.

    A kernel whose operations are not recorded does none: what multiplies no matrices moves far more than it computes;
    where products do not tell, see `not_told`. One whose traffic is not recorded reads and writes every block once,
    workspaces left out; what picks from a block reads as much as it writes. A codec reads the one form and writes the
    other.

    >>> from simgpu.trace.chain import chain
    >>> work_of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))).kernels["F1"]
    Work(flops=0, dram_bytes=300)
    """
    blocks = graph.blocks
    return WorkDone(
        kernels={kernel.id: Work(kernel.flops or 0, traffic_of(graph, kernel)) for kernel in graph.kernels},
        codecs={
            blocks[form].id: Work(0, blocks[form].bytes + blocks[of.block].bytes) for form, of in graph.encoded.items()
        },
        copies={block.id: block.bytes for block in blocks},
    )


def not_told(trace: Trace) -> str:
    """What a trace does not tell although the work of its kernels cannot be counted without it; empty for nothing.

    >>> from simgpu.trace.chain import chain
    >>> not_told(chain([5], [10], [100]))
    '2 of 2 convolutions and matrix products do not tell their operations'
    >>> not_told(chain([5], [10], [100], op="relu"))
    ''
    """
    products = [kernel for kernel in trace.kernels if kind_of(kernel.op) in _PRODUCTS]
    silent = sum(kernel.flops is None for kernel in products)
    if silent:
        return f"{silent} of {len(products)} convolutions and matrix products do not tell their operations"
    knows_blocks = trace.blocks and trace.tells_reads
    if not knows_blocks and any(kernel.dram_bytes is None for kernel in trace.kernels):
        return "the recording does not tell what its kernels read, nor how much they move"
    return ""


def traffic_of(graph: TaskGraph, kernel: Kernel) -> int:
    """Bytes that a kernel moves to and from device memory, as recorded, or counted as `work_of` says.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> traffic_of(graph, graph.kernels[0])
    100
    """
    if kernel.dram_bytes is not None:
        return kernel.dram_bytes
    written, read = _together(graph, kernel.writes), _together(graph, kernel.reads)
    return written + (min(read, written) if kind_of(kernel.op) in _PARTLY_READ else read)


def _together(graph: TaskGraph, names: tuple[str, ...]) -> int:
    """Bytes of these blocks but the workspaces."""
    blocks = (graph.blocks[graph.block_number[name]] for name in names)
    return sum(block.bytes for block in blocks if block.kind is not BlockKind.WORKSPACE)


class Work(NamedTuple):
    """Arithmetic operations, and bytes to and from device memory."""

    flops: int
    dram_bytes: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of spans, by the name that they carry.

    kernels: by kernel id, recomputed or not. codecs: by the id of an encoded form, to make it or to undo it alike.
    copies: by block id, bytes to or from device memory, whatever a DMA engine makes of them before they reach the link.
    """

    kernels: Mapping[str, Work]
    codecs: Mapping[str, Work]
    copies: Mapping[str, int]
