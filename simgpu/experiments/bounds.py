"""Lower bounds on memory and step time that hold for every policy."""

from __future__ import annotations

from typing import Unpack

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.bounds import MemoryBounds, memory_bounds
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.bound import Bound
from simgpu.policies.common.placing import evaluator_of
from simgpu.policies.joint.policy import Joint
from simgpu.policies.joint.time_bounds import TimeBounds, bounds_of
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import plan_context
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import Trace


def memory_lower_bound(trace: Trace, node: NodeSpec, *, alignment: int | str | None = None) -> MemoryBounds:
    """The memory of an iteration with everything resident, and its lower bound (``simgpu memory-bound``).

    The bound is for one sample at a time if the batch can be partitioned (moDNN, TPDS 2019, section 5.1.1).

    alignment: bytes that every allocation is rounded up to; by default the node's

    Raises `InputError` for invalid arguments.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10_000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = memory_lower_bound(chain([50, 70], [100, 140], [100, 200]), node)
    >>> result.all_at_once.bytes, result.bound.bytes, result.batch
    (300, 300, 1)
    """
    config = run_config(None, {"alignment": alignment}, trace=trace, node=node)
    return memory_bounds(task_graph(trace, node), config.on(node)[0].gpu.alignment)


def time_lower_bound(
    trace: Trace,
    node: NodeSpec,
    config: RunConfig | None = None,
    **settings: Unpack[RunSettings],
) -> Bound:
    """A lower bound on the step time of every placement of the trace's feature maps that fits.

    Each feature map may be kept, swapped with several prefetch times, swapped encoded, or recomputed, as in policy
    `joint`. Kernels run in the recorded order with the recorded algorithms; copies wait only for their dependencies.
    With SciPy (extra ``calibrate``) the bound comes from a linear program whose multipliers are checked in integer
    arithmetic; without it the bound is weaker. The arguments are those of `simgpu.simulate`.

    If no placement of activations fits, returns the bound on every program of the full batch (`time_lower_bounds`
    returns both). Raises `InputError` if times on the node are not exact, and `OutOfMemoryError` if a kernel's own
    blocks do not fit, so that no policy fits.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 850), LinkSpec("pcie", 10**10, 10**10))
    >>> time_lower_bound(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]), node).ns
    94
    """
    return time_lower_bounds(trace, node, config, **settings).tightest


def time_lower_bounds(
    trace: Trace,
    node: NodeSpec,
    config: RunConfig | None = None,
    **settings: Unpack[RunSettings],
) -> TimeBounds:
    """The bound on placements of feature maps, and the bound on every program of the full batch.

    Arguments and errors are those of `time_lower_bound`.
    """
    policy = Joint()
    context = plan_context(trace, node, policy, config, **settings)
    decisions = policy.decisions(context)
    evaluator = evaluator_of(context, decisions)
    if evaluator.why_no_bound is not None:
        remedy = "choose a node with a full-duplex link, two copy engines and no compressing DMA engine"
        raise InputError.single("", f"node {node.name}", f"no bound is known: {evaluator.why_no_bound}", remedy)
    both = bounds_of(evaluator)
    if not both.of_all.fits:
        kernel = "" if both.of_all.kernel is None else context.graph.kernels[both.of_all.kernel].id
        waiting, limit = f"kernel {kernel}, with all other blocks offloaded,", context.budget
        raise OutOfMemoryError(waiting, "device", both.of_all.peak_lower_bound, limit, limit, limit, 0, (), kernel)
    return both
