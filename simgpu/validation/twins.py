"""Each method's twin: the policy that does in the simulation what PyTorch does under that method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.validation.calibration import Calibration
from simgpu.validation.measured import MeasuredRun, Method

#: The policy that is a method's twin; its parameters are the method's settings, in the same words.
POLICY_OF: Mapping[Method, str] = {
    Method.PLAIN: "none",
    Method.CHECKPOINT: "checkpoint",
    Method.SAVE_ON_CPU: "save_on_cpu",
    Method.ASYNC_OFFLOAD: "async_offload",
}
#: Methods under which the host waits for every copy.
_BLOCKING = (Method.SAVE_ON_CPU,)


class Numbers(NamedTuple):
    """What is compared of a run, measured or simulated.

    step_ns: of an iteration. peak_bytes: the most device memory that was in use at once, as the allocator rounds it.
    d2h_bytes, h2d_bytes: copied to and from the host in one iteration.
    """

    step_ns: int
    peak_bytes: int
    d2h_bytes: int
    h2d_bytes: int

    @classmethod
    def measured(cls, run: MeasuredRun) -> Numbers:
        """Those of a measured run; the step that counts is the median."""
        return cls(run.median_ns, run.peak_bytes, run.d2h_bytes, run.h2d_bytes)


@dataclass(frozen=True, slots=True)
class Twin:
    """A simulated run: its numbers and everything that happened, or why there are none.

    failure: ``out of memory`` or ``refused`` where it has no result, and why: in words.
    """

    policy: str
    parameters: Mapping[str, Any]
    numbers: Numbers | None = None
    result: Result | None = None
    failure: str = ""
    why: str = ""


def simulate_twin(calibration: Calibration, method: Method, settings: Mapping[str, Any]) -> Twin:
    """The twin of a run under a method with these settings.

    Its peak counts what is held all the time (`Calibration.held`), as the framework's allocator does.

    >>> from simgpu.trace.chain import chain
    >>> from simgpu.validation.calibration import calibrate
    >>> from simgpu.validation.measured import Copies, MeasuredMachine
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, Copies(9, 9, 9, 9, 0, 0), 5, "a CPU", "2026-01-31")
    >>> plain = MeasuredRun(Method.PLAIN, {}, (30,), peak_bytes=2048, held_bytes=1536, d2h_bytes=0, h2d_bytes=0)
    >>> simulate_twin(calibrate(machine, chain([5], [10], [1000]), plain), Method.PLAIN, {}).numbers
    Numbers(step_ns=30, peak_bytes=1536, d2h_bytes=0, h2d_bytes=0)
    """
    policy = POLICY_OF[method]
    node = calibration.blocking_node if method in _BLOCKING else calibration.node
    try:
        result = simulate(calibration.trace, node, policy, parameters=settings)
    except OutOfMemoryError as error:
        return Twin(policy, settings, failure="out of memory", why=str(error))
    except InputError as error:
        return Twin(policy, settings, failure="refused", why=str(error))
    metrics = result.metrics
    peak = metrics.device_peak_used_bytes + calibration.held
    return Twin(policy, settings, Numbers(result.iteration_ns, peak, metrics.d2h_bytes, metrics.h2d_bytes), result)
