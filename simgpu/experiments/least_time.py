"""How fast an iteration can be at best, whatever a policy decides about its feature maps.

Lives here: `least_time`. Does not live here: the bound (`simgpu.evaluate.bound`), or the actions that it is over
(`simgpu.policies.joint.actions`).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.evaluate.bound import Bound, lower_bound, quick_bound
from simgpu.policies.joint.policy import Joint
from simgpu.policies.placing import evaluator_of
from simgpu.simulation import planning
from simgpu.trace.model import Trace

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec


def least_time(
    trace: Trace,
    node: NodeSpec,
    *,
    budget: int | str | None = None,
    alignment: int | str | None = None,
    epoch: int = 0,
) -> Bound:
    """A bound from below on the time of every placement of the trace's feature maps that fits.

    Each feature map may be kept, swapped, fetched at several moments, swapped encoded, or made again, as policy `joint`
    has it; kernels run in the recorded order, by the recorded algorithms, and copies wait for nothing but what they
    need. The arguments are those of `simgpu.simulate`. With SciPy (extra ``calibrate``) by a linear program, of which
    the multipliers are checked in whole numbers; without it a weaker bound.

    Raises `InputError` where nothing exact is known of the times on the node, and `OutOfMemoryError` where no placement
    fits.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 850), LinkSpec("pcie", 10**10, 10**10))
    >>> least_time(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]), node).ns
    94
    """
    policy = Joint()
    context = planning(trace, node, policy, budget=budget, alignment=alignment, epoch=epoch)
    evaluator = evaluator_of(context, policy.decisions(context))
    if evaluator.why_not is not None:
        remedy = "choose a node with a full-duplex link, two copy engines and no compressing DMA engine"
        raise InputError.single("", f"node {node.name}", f"no bound is known: {evaluator.why_not}", remedy)
    bound = lower_bound(evaluator.tables) if find_spec("scipy") else quick_bound(evaluator.tables)
    if not bound.fits:
        kernel = "" if bound.kernel is None else context.graph.kernels[bound.kernel].id
        waiting, limit = f"kernel {kernel}, whatever has left,", context.budget
        raise OutOfMemoryError(waiting, "device", bound.least_peak, limit, limit, limit, 0, (), kernel)
    return bound
