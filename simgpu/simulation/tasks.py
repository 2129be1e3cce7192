"""The task graph of a trace on a node, for planning and verification."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from threading import Lock

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.trace.check import cannot_change
from simgpu.trace.entries import is_of_entries
from simgpu.trace.epochs import nearest_epoch
from simgpu.trace.model import Trace


def task_graph(trace: Trace, node: NodeSpec, epoch: int = 0) -> TaskGraph:
    """The task graph, with the encoding costs of the node and the copy sizes of its DMA engine.

    Other batch sizes use the time model of the trace's GPU: the node's, or else the shipped one of that name.
    """
    used = _used(trace, node, epoch)
    with _LOCK:
        for place, known in enumerate(_LAST):
            if known[0] is trace and known[1] == used:
                del _LAST[place]
                _LAST.appendleft(known)
                return known[2]
    graph = _task_graph(trace, node, epoch)
    if cannot_change(trace):
        with _LOCK:
            _LAST.appendleft((trace, used, graph))
            kernels = sum(len(each.kernels) for _, _, each in _LAST)
            while len(_LAST) > _LEAST and (len(_LAST) > _MOST or kernels > _MOST_KERNELS):
                kernels -= len(_LAST.pop()[2].kernels)
    return graph


#: The last results, with what was used of node and epoch: comparisons of policies, searches of batch sizes, and other
#: links request the same graphs again; `simgpu.fit` those of a batch and of two and three micro-batches, and of sizes
#: at which it tries several options. A graph keeps those of other batches itself.
_LAST: deque[tuple[Trace, tuple[object, ...], TaskGraph]] = deque()
#: So many are kept in any case; more, up to the second number, while they have no more kernels than the third in all.
_LEAST, _MOST, _MOST_KERNELS = 3, 12, 50_000
#: Threads may simulate side by side.
_LOCK = Lock()


def _used(trace: Trace, node: NodeSpec, epoch: int) -> tuple[object, ...]:
    """What the task graph uses of a node and an epoch: of a trace without sizes in any codec only the GPU's own time
    model."""
    if _has_no_codec(trace) and node.gpu.buddy is None:
        return (_own(trace, node),)
    return node, epoch


def _own(trace: Trace, node: NodeSpec) -> GpuSpec | None:
    """The node's GPU if the trace is of it, and it has a time model."""
    return node.gpu if node.gpu.is_called(trace.info.device) and node.gpu.architecture else None


def _has_no_codec(trace: Trace) -> bool:
    return not trace.sparsity and all(map(is_of_entries, trace.compressibility))


def _task_graph(trace: Trace, node: NodeSpec, epoch: int) -> TaskGraph:
    def rescaled(batch: int) -> TaskGraph:
        from simgpu.workloads.rescale import at_batch

        return _task_graph(at_batch(trace, batch, _own(trace, node)), node, epoch)

    graph = replace(TaskGraph.of(trace), rescaled=cache(rescaled))
    if _has_no_codec(trace):
        return _footprints(graph, node, epoch)
    from simgpu.compression.codecs.costs import NodeCosts

    costs = NodeCosts(trace, node, epoch)
    sizes = graph.copy_sizes
    if (cdma := node.gpu.cdma) is not None:
        sizes = tuple(
            costs.encoded_bytes(block, cdma.codec) if costs.is_known(block, cdma.codec) else block.bytes
            for block in trace.blocks
        )
    return _footprints(replace(graph, costs=costs, copy_sizes=sizes), node, epoch)


def _footprints(graph: TaskGraph, node: NodeSpec, epoch: int) -> TaskGraph:
    """The task graph in the node's compressed memory, if it has one, with targets by all epochs of the trace."""
    if node.gpu.buddy is None:
        return graph
    from simgpu.compression.buddy.footprints import WithFootprints
    from simgpu.compression.buddy.histograms import trace_histograms

    known = trace_histograms(graph.trace)
    profiled = {block: tuple(epochs.values()) for block, epochs in known.items()}
    now = {block: epochs[nearest_epoch(epochs, epoch)] for block, epochs in known.items()}
    return WithFootprints(node, profiled, now).apply(graph)
