"""Lower bounds of the memory and the time of an iteration, whatever a policy decides."""

from __future__ import annotations

from typing import Unpack

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.bounds import MemoryBounds, memory_bounds
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.bound import Bound
from simgpu.policies.common.placing import evaluator_of
from simgpu.policies.joint.lower_bounds import LowerBounds, bounds_of
from simgpu.policies.joint.policy import Joint
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import plan_context
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import Trace


def least_memory(trace: Trace, node: NodeSpec, *, alignment: int | str | None = None) -> MemoryBounds:
    """Memory of an iteration with everything resident, and its lower bound (``simgpu memory-bound``).

    The bound is for one sample at a time where the batch can be partitioned (moDNN, TPDS 2019, section 5.1.1).
    alignment: bytes every allocation is rounded up to, by default the node's. Raises `InputError` for bad arguments.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10_000), LinkSpec("pcie", 10**10, 10**10))
    >>> found = least_memory(chain([50, 70], [100, 140], [100, 200]), node)
    >>> found.all_at_once.bytes, found.bound.bytes, found.batch
    (300, 300, 1)
    """
    config = run_config(None, {"alignment": alignment}, trace=trace, node=node)
    return memory_bounds(task_graph(trace, node), config.on(node)[0].gpu.alignment)


def least_time(
    trace: Trace,
    node: NodeSpec,
    config: RunConfig | None = None,
    **settings: Unpack[RunSettings],
) -> Bound:
    """A lower bound on the time of every placement of the trace's feature maps that fits.

    Each feature map may be kept, swapped, fetched at several moments, swapped encoded, or recomputed, as policy `joint`
    has it; kernels run in the recorded order, by the recorded algorithms, and copies wait only for what they
    need. The arguments are those of `simgpu.simulate`. With SciPy (extra ``calibrate``) by a linear program, of which
    the multipliers are checked in whole numbers; without it a weaker bound.

    Where no placement of feature maps fits, a program may that moves more: then it is the bound on every program that
    runs the whole batch (`lower_bounds` gives both). Raises `InputError` where nothing exact is known of the times on
    the node, and `OutOfMemoryError` where not even a kernel's own blocks fit, so that no policy does.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 850), LinkSpec("pcie", 10**10, 10**10))
    >>> least_time(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]), node).ns
    94
    """
    return lower_bounds(trace, node, config, **settings).main


def lower_bounds(
    trace: Trace,
    node: NodeSpec,
    config: RunConfig | None = None,
    **settings: Unpack[RunSettings],
) -> LowerBounds:
    """The bound on placements of feature maps, and the one on whatever a program of the whole batch moves.

    Arguments and errors are those of `least_time`.
    """
    policy = Joint()
    context = plan_context(trace, node, policy, config, **settings)
    decisions = policy.decisions(context)
    evaluator = evaluator_of(context, decisions)
    if evaluator.why_not is not None:
        remedy = "choose a node with a full-duplex link, two copy engines and no compressing DMA engine"
        raise InputError.single("", f"node {node.name}", f"no bound is known: {evaluator.why_not}", remedy)
    both = bounds_of(evaluator)
    if not both.of_all.fits:
        kernel = "" if both.of_all.kernel is None else context.graph.kernels[both.of_all.kernel].id
        waiting, limit = f"kernel {kernel}, whatever has left,", context.budget
        raise OutOfMemoryError(waiting, "device", both.of_all.least_peak, limit, limit, limit, 0, (), kernel)
    return both
