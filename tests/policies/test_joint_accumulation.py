"""Gradient accumulation as an alternative to `joint`: its time, its peak, or the reason against it; never adopted."""

from __future__ import annotations

from dataclasses import replace

from simgpu.policies.joint.policy import accumulate
from simgpu.policies.none import NoPolicy
from simgpu.simulation.run import Result, plan_context, simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Kernel, Origin, Phase, Trace
from simgpu.units import format_bytes, format_time
from simgpu.workloads.rescale import at_batch
from tests.policies.contract import PLENTY, node_of

FORWARD, BACKWARD, SIZES = [30, 10, 40, 10, 30, 10], [60, 20, 80, 20, 60, 20], [240, 160, 240, 160, 240, 160]


def of_batch(batch: int, origin: Origin = Origin.MODELLED) -> Trace:
    built = chain(FORWARD, BACKWARD, SIZES)
    return replace(built, info=replace(built.info, batch=batch, origin=origin))


def joint(trace: Trace, budget: int) -> Result:
    return simulate(trace, node_of(PLENTY), "joint", budget=budget, parameters={"lower_bound": False})


def note(result: Result) -> str:
    (outcome,) = (each for each in result.notes if each.startswith("gradient accumulation"))
    return outcome


def peak(trace: Trace) -> int:
    return simulate(trace, node_of(PLENTY), "none").metrics.device_peak_bytes


def test_micro_batches_that_fit_are_suggested_with_time_and_peak():
    """Two micro-batches, each with the time and peak of an iteration of half the batch; nothing is offloaded."""
    trace = of_batch(8)
    half = simulate(at_batch(trace, 4), node_of(PLENTY), "none")
    result = joint(trace, peak(trace) - 1)
    cost = f"{format_time(2 * half.iteration_ns)}, peak {format_bytes(peak(at_batch(trace, 4)))}"
    assert note(result) == f"gradient accumulation, 2 micro-batches (vdnn+(sub_batch=4, mode=dynamic)): {cost}"


def test_accumulation_is_listed_with_the_rejected_candidates():
    result = joint(of_batch(8), peak(of_batch(8)) - 1)
    (tried,) = (each for each in result.notes if each.startswith("tried: "))
    assert f"search {format_time(result.iteration_ns)}, peak {format_bytes(result.metrics.device_peak_bytes)}" in tried
    assert "vdnn " in tried and "superneurons " in tried
    assert result.program.transforms == () and result.trace.batch == 8


def test_more_micro_batches_are_suggested_if_fewer_need_offloading():
    """Six maps of 240 B and a budget of 600 B: half a batch keeps 720 B, a quarter 360 B."""
    built = chain(FORWARD, BACKWARD, [240] * 6)
    trace = replace(built, info=replace(built.info, batch=8))
    assert (peak(trace), peak(at_batch(trace, 4)), peak(at_batch(trace, 2))) == (1440, 720, 360)
    assert "4 micro-batches (vdnn+(sub_batch=2, mode=dynamic))" in note(joint(trace, 600))


def test_rescaled_times_of_a_recorded_trace_are_marked_modelled():
    trace = of_batch(8, Origin.RECORDED)
    assert note(joint(trace, peak(trace) - 1)).endswith("; times of 4 samples are modelled, not recorded")


def test_other_changes_of_accumulation_are_reported():
    trace = of_batch(8)
    norm = tuple(replace(k, op="batch_norm") if k.id == "F2" else k for k in trace.kernels)
    assert note(joint(replace(trace, kernels=norm), peak(trace) - 1)).endswith("; batch norms see 4 samples at a time")


def test_an_unsplittable_batch_gives_the_reason():
    assert note(joint(of_batch(1), peak(of_batch(1)) - 1)) == (
        "gradient accumulation: not tried, a batch of 1 cannot be split"
    )
    trace = of_batch(8)
    step = Kernel("step", "sgd", Phase.OPTIMIZER, 1, pure=False)
    early = replace(trace, kernels=(*trace.kernels[:-1], step, trace.kernels[-1]))
    why = note(joint(early, peak(trace) - 1))
    assert why.startswith("gradient accumulation: not tried, ")
    assert why.endswith("kernel 'step' of the optimizer runs before backward has ended")


def test_the_note_reports_that_no_number_of_micro_batches_fits():
    context = plan_context(of_batch(64), node_of(PLENTY), NoPolicy(), budget=10)
    assert accumulate(context) == "not even 8 samples at a time fit the budget"


def test_accumulation_is_not_suggested_if_everything_fits():
    notes = joint(of_batch(8), PLENTY).notes
    assert not [each for each in notes if each.startswith(("tried: ", "gradient accumulation"))]
