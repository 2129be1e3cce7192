"""What fits a budget by simulation: a sub-batch under the policies that would choose it, and undivided batches.

Equation 8 of moDNN counts the live data of some tasks in a row and runs nothing, so what it allows is a choice to start
from. `what_fits` says whether the policies that start from it run so, and how far those come that divide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.max_batch import max_batch
from simgpu.graph.bounds import first_reason
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace

#: Policies that take equation 8's sub-batch, and policies that run the whole batch.
DIVIDING, UNDIVIDED = ("modnn", "vdnn+"), ("none", "vdnn")


@dataclass(frozen=True, slots=True)
class WhatFits:
    """By simulation, each by the policy's name.

    sub_batch: why the sub-batch does not run, ``out of memory`` or the policy's reason; empty where it does.
    largest_batch: samples of the largest undivided batch that fits, None where not even one sample does or the policy
    refuses the trace. The next larger batch was tried and does not fit.
    """

    sub_batch: Mapping[str, str]
    largest_batch: Mapping[str, int | None]


def what_fits(
    trace: Trace,
    node: NodeSpec,
    budget: int,
    sub_batch: int,
    *,
    alignment: int | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> WhatFits:
    """Simulate `DIVIDING` at a sub-batch of the trace's batch, and search the largest batch of `UNDIVIDED`.

    budget, alignment: bytes; alignment by default the node's. progress: called before each run. Raises `InputError`
    where arguments are wrong, as `simgpu.simulation.run.simulate`.

    >>> from dataclasses import replace
    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    >>> trace = replace(trace, info=replace(trace.info, batch=4))
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> what_fits(trace, node, 500, 2)
    WhatFits(sub_batch={'modnn': '', 'vdnn+': ''}, largest_batch={'none': 3, 'vdnn': 4})
    """
    verdicts = {}
    for policy in DIVIDING:
        progress(f"{policy}: sub-batches of {sub_batch}")
        try:
            simulate(trace, node, policy, parameters={"sub_batch": sub_batch}, budget=budget, alignment=alignment)
            verdicts[policy] = ""
        except OutOfMemoryError:
            verdicts[policy] = "out of memory"
        except InputError as error:
            verdicts[policy] = first_reason(error)
    try:
        found = max_batch(trace, node, UNDIVIDED, budget=budget, alignment=alignment, progress=progress)
        largest = {each.run.policy: each.batch for each in found}
    except InputError:
        largest = dict.fromkeys(UNDIVIDED)  # both refuse the trace, as `simulate` has said above
    return WhatFits(verdicts, largest)
