"""The plan of a case: for a budget halfway between the smallest peak of a plan and the peak of the plain step."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.plans.candidate import Candidate
from simgpu.plans.choices import Choices
from simgpu.plans.entry import plan
from simgpu.plans.regions import Steps
from simgpu.plans.search import smallest
from simgpu.torch.plan import Plan
from simgpu.trace.model import Trace
from simgpu.validation.calibration import calibrate
from simgpu.validation.measured import MeasuredMachine, MeasuredRun


def plan_halfway(machine: MeasuredMachine, trace: Trace, plain: MeasuredRun) -> Plan | str:
    """The plan, or the reason if there is none.

    It is planned with the kernel times and the link that its counterpart is simulated with, so that what it predicts
    is what a report compares. Memory is that of the trace's blocks, without what is reserved besides.
    """
    try:
        calibration = calibrate(machine, trace, plain)
        steps, node = Steps(calibration.trace), calibration.node
        least = smallest(Choices(steps), node).peak
        peak = Candidate(steps).trail(node).peak
        result = plan(calibration.trace, node, (least + peak) // 2)
    except InputError as error:
        return str(error)
    if not result.recompute and not result.offload:
        return "no plan has a smaller peak than the plain step"
    return result
