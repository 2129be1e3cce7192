"""How little memory an iteration can run in, whatever a schedule does."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.graph.bounds import MemoryBounds, memory_bounds
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.config import run_config
from simgpu.simulation.tasks import task_graph
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace


def least_memory(trace: Trace, node: NodeSpec, *, alignment: int | str | None = None) -> MemoryBounds:
    """What ``simgpu memory-bound`` tells: memory of an iteration where everything stays, and the least under any
    schedule.

    The latter is for one sample at a time where the batch can be partitioned (moDNN, TPDS 2019, section 5.1.1).
    alignment: bytes every allocation is rounded up to, by default the node's. Raises `InputError` for bad arguments.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10_000), LinkSpec("pcie", 10**10, 10**10))
    >>> found = least_memory(chain([50, 70], [100, 140], [100, 200]), node)
    >>> found.all_at_once.bytes, found.bound.bytes, found.batch
    (300, 300, 1)
    """
    config = run_config(None, {"alignment": alignment}, trace=trace, node=node)
    if problems := check_trace(trace):
        raise InputError(problems)
    return memory_bounds(task_graph(trace, node), config.on(node)[0].gpu.alignment)
