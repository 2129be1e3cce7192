"""The evaluator predicts the machine's time and peak to the nanosecond and the byte."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.machine.run import MachineRun
from simgpu.planning.options import Action
from simgpu.timeline.model import SpanKind
from tests.planning.evaluated import Case, cases, iteration_ns, peak_of, smallest_budget, tight_cases

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)


def agrees(case: Case) -> MachineRun | None:
    """The run, None if it runs out of memory; asserts that evaluator and machine agree on OOM, time and peak."""
    costs, run = case.costs, case.run()
    assert case.evaluator.why_not is None
    assert (run is None) == (costs.short[0] > 0)
    if run is not None:
        assert iteration_ns(run) == costs.time_ns[0]
        assert peak_of(run) == costs.peak[0]
    return run


@many
@given(cases())
def test_with_ample_memory_evaluator_and_machine_agree_on_time_and_peak(case: Case):
    assert agrees(case)


@pytest.mark.slow
def test_within_a_budget_evaluator_and_machine_agree_on_time_peak_and_oom():
    seen: Counter[str] = Counter()

    @settings(many, max_examples=300, derandomize=True)  # so that the counts below are reproducible
    @given(tight_cases())
    def check(case: Case) -> None:
        run = agrees(case)
        assert (run is not None) == (case.evaluator.budget >= smallest_budget(case))
        if run is None:
            seen["does not fit"] += 1
            return
        seen["fits"] += 1
        seen["waits for memory"] += any(span.label == "stall_device_memory" for span in run.timeline)
        seen["takes longer"] += bool(case.costs.time_ns[0] > case.within(10**12).costs.time_ns[0])

    check()
    assert seen["does not fit"] > 20, seen
    assert seen["waits for memory"] * 2 > seen["fits"], seen
    assert seen["takes longer"] * 5 > seen["fits"], seen


@pytest.mark.slow
@many
@given(st.one_of(cases(), tight_cases()))
def test_step_time_is_the_sum_of_kernels_waits_relaunches_and_codecs(case: Case):
    costs, evaluator = case.costs, case.evaluator
    graph, decisions = evaluator.graph, evaluator.decisions
    chosen = [options[number] for options, number in zip(decisions.options, case.vector, strict=True)]
    blocks = [(graph.blocks[each.block], option.encoding) for each, option in zip(decisions.maps, chosen, strict=True)]
    codecs = sum(graph.costs.encode_ns(b, e) + graph.costs.decode_ns(b, e) for b, e in blocks if e is not None)
    parts = graph.ideal_ns() + int(costs.waited_ns[0]) + int(costs.relaunched_ns[0]) + codecs
    assert costs.time_ns[0] == parts
    assert costs.time_ns[0] == graph.ideal_ns() + sum(evaluator.overheads(case.vector))
    run = case.run()
    if run is not None:
        last = [span for span in run.timeline if span.iteration == 1]
        assert costs.relaunched_ns[0] == sum(s.end_ns - s.start_ns for s in last if s.kind is SpanKind.RECOMPUTE)
        if Action.RECOMPUTE not in {option.action for option in chosen}:
            assert costs.relaunched_ns[0] == 0
