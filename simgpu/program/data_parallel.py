"""Several GPUs that train together on one node: who does what, and how fast the exchange of gradients is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simgpu.errors import InputError, OutOfMemoryError, Problem
from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.memory.transfer import NANO


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Train on several GPUs, each with an equal share of the batch (moDNN, section 6); not by NCCL's collectives.

    exchange: `gather`, GPU 0 adds up gradients and updates the weights at the end; or `host`, the host's cores do,
    next to the last sub-batch. cores: how many of them.
    """

    gpus: int
    exchange: Exchange = Exchange.HOST
    cores: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        """As `simgpu.simulate` takes it."""
        return {"gpus": self.gpus, "exchange": str(self.exchange), "cores": self.cores}

    @property
    def description(self) -> str:
        """Who exchanges gradients, in words."""
        if self.exchange is Exchange.GATHER:
            return "GPU 0 gathers the gradients and updates the weights"
        if self.cores == 1:
            return "one core of the host adds up the gradients and updates the weights"
        return f"{self.cores} cores of the host add up the gradients and update the weights"


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """What is known of a run on several GPUs next to its timeline.

    single_ideal_ns: the ideal iteration of the whole batch on one GPU. alone_ns: one GPU's iteration on its share of
    the batch under the same policy, with its own optimizer, no other GPU and the link to itself; graph: its tasks then.
    """

    how: DataParallel
    single_ideal_ns: int
    alone_ns: int
    graph: TaskGraph


def share_of(batch: int, how: DataParallel, node: NodeSpec) -> int:
    """Samples of the batch that each GPU trains.

    Raises `InputError` for more GPUs or cores than the node has, and for a batch that does not divide evenly: then the
    GPUs would run different programs, and their gradients would have to be weighted.

    >>> from simgpu.hardware.spec import LinkSpec
    >>> node = NodeSpec("server", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10), gpus=4)
    >>> share_of(256, DataParallel(4), node)
    64
    """
    problems = []
    if how.gpus > node.gpus:
        has = "one GPU" if node.gpus == 1 else f"{node.gpus} GPUs"
        problems.append(
            Problem("", "argument gpus", f"node {node.name} has {has}, not {how.gpus}", "choose a node that has them")
        )
    if node.host.cores is not None and how.cores > node.host.cores:
        what = f"the host of node {node.name} has {node.host.cores} cores, not {how.cores}"
        problems.append(Problem("", "argument cores", what, "give as many as it has, or fewer"))
    if batch % how.gpus:
        near = sorted({n for n in (batch // how.gpus * how.gpus, -(-batch // how.gpus) * how.gpus) if n})
        what = f"a batch of {batch} cannot be divided evenly among {how.gpus} GPUs"
        problems.append(
            Problem("", "argument gpus", what, f"take a batch of {' or '.join(map(str, near))}, or other GPUs")
        )
    if problems:
        raise InputError(problems)
    return batch // how.gpus


def explained(error: OutOfMemoryError, how: DataParallel, graph: TaskGraph) -> OutOfMemoryError:
    """The same error, saying so where it was a gradient of another GPU for which GPU 0 had no room.

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

    GPU 0 adds up as it runs any elementwise kernel, by its time model, or at its DRAM's peak where it has none. Raises
    `InputError` where the node does not say how fast its host or its DRAM is.
    """
    if how.exchange is Exchange.HOST:
        rate = node.host.accumulating(how.cores)
        if rate is None:
            what = f"is not stated for node {node.name}, so nobody can tell how long its host adds up gradients"
            remedy = "give it, such as '12 GB/s' for one core, or use the exchange gather"
            raise InputError.single("", "node.host.accumulate_bandwidth", what, remedy)
        return Replicate(how.gpus, how.exchange, rate)
    return Replicate(how.gpus, how.exchange, *_elementwise(node.gpu))


def _elementwise(gpu: GpuSpec) -> tuple[int, int]:
    """Bytes per second of a long elementwise kernel, and what every one takes during them."""
    from simgpu.workloads.timemodel.model import time_model
    from simgpu.workloads.timemodel.operation import Operation, OperationKind

    if gpu.dram_bandwidth is None:
        what = f"is not stated for {gpu.name}, so nobody can tell how long it adds up gradients"
        raise InputError.single("", "node.gpu.dram_bandwidth", what, "give it, such as '900 GB/s'")
    try:
        model = time_model(gpu)
    except InputError:
        return gpu.dram_bandwidth, 0
    moved = 2**30
    none, all_of_it = (
        model.duration_ns(Operation(OperationKind.ELEMENTWISE, 0, size, size // 4)) for size in (0, moved)
    )
    return moved * NANO // (all_of_it - none), none
