"""Data-parallel training on several GPUs of one node: the batch shares, and the rates of the gradient exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simgpu.errors import InputError, OutOfMemoryError, Problem
from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.sharing import too_few_gpus
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.memory.transfer import NANO


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Train on several GPUs, each with an equal share of the batch (moDNN, section 6); not by NCCL's collectives.

    exchange: with `none`, each GPU trains the whole batch of the trace, and only shares switches and the host with the
    others. With `gather`, GPU 0 adds up the gradients and updates the weights at the end; with `host`, the host's
    cores do so, overlapped with the last sub-batch. cores: the number of these cores.
    """

    gpus: int
    exchange: Exchange = Exchange.HOST
    cores: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        """The argument of `simgpu.simulate`."""
        return {"gpus": self.gpus, "exchange": str(self.exchange), "cores": self.cores}

    def share(self, batch: int) -> int:
        """Samples per GPU of a trace with this batch."""
        return batch if self.exchange is Exchange.NONE else batch // self.gpus

    def total(self, batch: int) -> int:
        """Samples of all GPUs of a trace with this batch.

        >>> DataParallel(4).total(64), DataParallel(4, Exchange.NONE).total(64)
        (64, 256)
        """
        return self.gpus * batch if self.exchange is Exchange.NONE else batch

    @property
    def description(self) -> str:
        """The gradient exchange, as text."""
        if self.exchange is Exchange.NONE:
            return "gradients are not exchanged"
        if self.exchange is Exchange.GATHER:
            return "GPU 0 gathers the gradients and updates the weights"
        if self.cores == 1:
            return "one core of the host adds up the gradients and updates the weights"
        return f"{self.cores} cores of the host add up the gradients and update the weights"


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """Reference values of a run on several GPUs.

    single_ideal_ns: the ideal iteration of the full batch on one GPU. alone_ns: one GPU's iteration on its share of the
    batch under the same policy, with its own optimizer and an idle link; graph: its tasks.
    """

    how: DataParallel
    single_ideal_ns: int
    alone_ns: int
    graph: TaskGraph


def share_of(batch: int, how: DataParallel, node: NodeSpec) -> int:
    """Samples per GPU.

    Raises `InputError` for more GPUs or cores than the node has, and for a batch that does not divide evenly: the GPUs
    would run different programs, and their gradients would need weights.

    >>> from simgpu.hardware.spec import LinkSpec
    >>> node = NodeSpec("server", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10), gpus=4)
    >>> share_of(256, DataParallel(4), node)
    64
    """
    problems = []
    if how.gpus > node.gpus:
        problems.append(too_few_gpus(node, how.gpus))
    if node.host.cores is not None and how.cores > node.host.cores:
        what = f"the host of node {node.name} has {node.host.cores} cores, not {how.cores}"
        problems.append(Problem("", "argument cores", what, "give as many as it has, or fewer"))
    if batch % how.gpus and how.exchange is not Exchange.NONE:
        near = sorted({n for n in (batch // how.gpus * how.gpus, -(-batch // how.gpus) * how.gpus) if n})
        what = f"a batch of {batch} cannot be divided evenly among {how.gpus} GPUs"
        problems.append(
            Problem("", "argument gpus", what, f"take a batch of {' or '.join(map(str, near))}, or other GPUs")
        )
    if problems:
        raise InputError(problems)
    return how.share(batch)


def explained(error: OutOfMemoryError, how: DataParallel, graph: TaskGraph) -> OutOfMemoryError:
    """The same error, with an explanation where GPU 0 ran out of memory for a gradient of another GPU.

    graph: of one GPU.
    """
    fetched = {f"copy of block {each.gradient}.gpu{gpu} on" for each in graph.exchanged for gpu in range(1, how.gpus)}
    copy = error.waiting.rpartition(" ")[0]
    if how.exchange is not Exchange.GATHER or error.space != "GPU 0's device" or copy not in fetched:
        return error
    why = "which GPU 0 fetches to add it up, in addition to the policy's plan (not needed with exchange: host),"
    return OutOfMemoryError(f"{error.waiting}, {why}", *error.args[1:])


def priced(how: DataParallel, node: NodeSpec) -> Replicate:
    """The exchange with the rates of this node.

    GPU 0 adds up at the speed of elementwise kernels in its time model, or at its DRAM's peak without one. Raises
    `InputError` where the node lacks the speed of its host or its DRAM.
    """
    if how.exchange is Exchange.NONE:
        return Replicate(how.gpus, how.exchange, 0)
    if how.exchange is Exchange.HOST:
        rate = node.host.accumulating(how.cores)
        if rate is None:
            what = f"is not set for node {node.name}, so the time of adding up gradients on its host is unknown"
            remedy = "set it, such as '12 GB/s' for one core, or use the exchange gather"
            raise InputError.single("", "node.host.accumulate_bandwidth", what, remedy)
        return Replicate(how.gpus, how.exchange, rate)
    return Replicate(how.gpus, how.exchange, *elementwise_rate(node.gpu))


def elementwise_rate(gpu: GpuSpec) -> tuple[int, int]:
    """Bytes per second of a long elementwise kernel, and the fixed time of each (ns)."""
    from simgpu.workloads.timemodel.model import time_model
    from simgpu.workloads.timemodel.operation import Operation, OperationKind

    if gpu.dram_bandwidth is None:
        what = f"is not set for {gpu.name}, so the time of adding up gradients is unknown"
        raise InputError.single("", "node.gpu.dram_bandwidth", what, "give it, such as '900 GB/s'")
    try:
        model = time_model(gpu)
    except InputError:
        return gpu.dram_bandwidth, 0
    large = 2**30
    empty_ns, large_ns = (
        model.duration_ns(Operation(OperationKind.ELEMENTWISE, 0, size, size // 4)) for size in (0, large)
    )
    return large * NANO // (large_ns - empty_ns), empty_ns
