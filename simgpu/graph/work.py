"""The work of a graph's kernels, codecs and copies: operations, and bytes to and from device memory.

Apply a graph's transforms first, so that it has the kernels that really run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind, Kernel, Trace
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import OperationKind

_PRODUCTS = (OperationKind.CONVOLUTION, OperationKind.GEMM, OperationKind.ATTENTION)
_PARTLY_READ = (OperationKind.GATHER, OperationKind.COPY)


class KernelWork(NamedTuple):
    """Arithmetic operations, and bytes to and from device memory."""

    flops: int
    dram_bytes: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of a timeline's spans, by their names.

    kernels: by kernel id, recomputed or not. codecs: by the id of the encoded form, the same to encode and to decode.
    copies: by block id, bytes to or from device memory, before a DMA engine compresses them.
    """

    kernels: Mapping[str, KernelWork]
    codecs: Mapping[str, KernelWork]
    copies: Mapping[str, int]


def work_of(graph: TaskGraph) -> WorkDone:
    """The work that a graph's kernels, codecs and copies do.

    A kernel without recorded operations counts as none, because kernels other than convolutions and matrix products
    move far more than they compute; for those see `missing_work`. A kernel without recorded traffic reads and writes
    every block but workspaces once; one that picks from a block reads as much as it writes. A codec reads one form and
    writes the other.

    >>> from simgpu.trace.chain import chain
    >>> work_of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))).kernels["F1"]
    KernelWork(flops=0, dram_bytes=300)
    """
    blocks = graph.blocks
    return WorkDone(
        kernels={kernel.id: KernelWork(kernel.flops or 0, traffic_of(graph, kernel)) for kernel in graph.kernels},
        codecs={
            blocks[form].id: KernelWork(0, blocks[form].bytes + blocks[of.block].bytes)
            for form, of in graph.encoded.items()
        },
        copies={block.id: block.bytes for block in blocks},
    )


def missing_work(trace: Trace) -> str:
    """Why the work of a trace's kernels cannot be counted; empty where it can.

    >>> from simgpu.trace.chain import chain
    >>> missing_work(chain([5], [10], [100]))
    'operation counts are missing for 2 of 2 convolutions and matrix products'
    >>> missing_work(chain([5], [10], [100], op="relu"))
    ''
    """
    products = [kernel for kernel in trace.kernels if kind_of(kernel.op) in _PRODUCTS]
    silent = sum(kernel.flops is None for kernel in products)
    if silent:
        return f"operation counts are missing for {silent} of {len(products)} convolutions and matrix products"
    knows_blocks = trace.blocks and trace.records_reads
    if not knows_blocks and any(kernel.dram_bytes is None for kernel in trace.kernels):
        return "the recording has neither the blocks that its kernels read nor their memory traffic"
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
    written, read = _bytes_of(graph, kernel.writes), _bytes_of(graph, kernel.reads)
    return written + (min(read, written) if kind_of(kernel.op) in _PARTLY_READ else read)


def _bytes_of(graph: TaskGraph, names: tuple[str, ...]) -> int:
    """Bytes of these blocks without workspaces."""
    blocks = (graph.blocks[graph.block_number[name]] for name in names)
    return sum(block.bytes for block in blocks if block.kind is not BlockKind.WORKSPACE)
