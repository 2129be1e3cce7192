"""The smallest budget in which a run fits, compared with a trial of every byte."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu import load_scenario
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.explain.smallest_budget import smallest_budget, smallest_budgets
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.base import PlanContext
from simgpu.policies.none import NoPolicy
from simgpu.program.instructions import Program
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain

LINK = LinkSpec("pcie", 10**10, 10**10)
QUICK = load_scenario("quickstart")


@settings(suppress_health_check=list(HealthCheck), max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from(["none", "vdnn"]), st.integers(1, 100))
def test_the_smallest_budget_is_exact_to_the_byte(sizes: list[int], policy: str, memory: int) -> None:
    trace = chain([5] * len(sizes), [7] * len(sizes), sizes)
    node = NodeSpec("example", GpuSpec("gpu", memory), LINK)
    result = smallest_budget(trace, node, policy)
    large = NodeSpec("large", GpuSpec("gpu", 10**4), LINK)
    assert simulate(trace, large, policy, budget=result.budget).iteration_ns == result.result.iteration_ns
    for budget in range(result.budget):
        with pytest.raises(OutOfMemoryError):
            simulate(trace, large, policy, budget=budget)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "vdnn", "modnn", "um"])
def test_the_smallest_budget_of_a_recorded_network_is_accurate_to_a_4096th(policy: str) -> None:
    result = smallest_budget(QUICK.trace, QUICK.node, policy, budget="4 MiB")
    assert result.result.budget == result.budget == result.result.high_water
    assert 0 < result.budget - result.below <= max(result.budget // 2**12, 1) + 1
    assert isinstance(result.error, OutOfMemoryError)
    with pytest.raises(OutOfMemoryError):
        simulate(QUICK.trace, QUICK.node, policy, budget=result.below)


def test_the_reported_tensors_occupy_the_memory_just_below_the_smallest_budget() -> None:
    result = smallest_budget(QUICK.trace, QUICK.node, "vdnn")
    assert isinstance(result.error, OutOfMemoryError)
    assert result.pinned_by == result.error.holders
    held = sum(size for _, size in result.pinned_by)
    assert held <= result.below < held + result.error.requested


@pytest.mark.slow
def test_a_failure_not_caused_by_memory_names_its_cause() -> None:
    with pytest.raises(InputError, match="codec times of GPU"):
        smallest_budget(QUICK.trace, QUICK.node, "cswap")


def test_a_shortage_of_pinned_host_memory_has_no_smallest_gpu_budget() -> None:
    node = load_scenario("quickstart", {"node.host.pinned_memory": "1 MiB"}).node
    tried: list[str] = []
    with pytest.raises(InputError, match=r"does not fit 1024 TiB either: out of host memory.*more host\.pinned_memory"):
        smallest_budget(QUICK.trace, node, "vdnn", progress=tried.append)
    assert tried == ["vdnn in 40 MiB", "vdnn in 1024 TiB"]


REFUSED = (650, 700)


@dataclass(frozen=True)
class Choosy(NoPolicy):
    """Fits from 600 bytes on, except for some refused budgets."""

    def plan(self, context: PlanContext) -> Program:
        if context.budget in range(*REFUSED):
            raise InputError.single("", "budget", "is not liked", "give another")
        return super().plan(context)


def test_the_failing_budget_is_below_the_smallest_budget_even_if_some_larger_ones_fail() -> None:
    """A larger budget that was refused during the search is not reported as the budget below the smallest one."""
    node = NodeSpec("example", GpuSpec("gpu", 690), LINK)
    result = smallest_budget(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, Choosy())
    assert (result.budget, result.below) == (600, 599)


def test_the_smallest_budget_prints_as_facts() -> None:
    result = smallest_budget(QUICK.trace, QUICK.node, "none", budget="4 MiB")
    assert repr(result).startswith("smallest budget  49.45 MiB (51849368 B), step time 110.1 ms")
    assert "resident then    bn1:native_batch_norm, 2 MiB, activation of bn1" in repr(result)


@pytest.mark.parametrize(("factor", "unit"), [(1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")])
def test_the_figure_has_the_unit_of_the_largest_budget(factor: int, unit: str) -> None:
    trace = chain([5, 7, 9], [10, 14, 18], [size * factor for size in (100, 200, 300)])
    budgets = smallest_budgets(trace, NodeSpec("example", GpuSpec("gpu", 600 * factor), LINK), ["none", "vdnn"])
    (ax,) = budgets.plot().axes
    assert ax.get_xlabel() == f"smallest budget ({unit})"
    drawn = [bar.get_width() for bar in ax.patches]
    assert drawn == pytest.approx([500, 600], rel=1 / 2**11)


def test_unlimited_memory_has_no_smallest_budget() -> None:
    with pytest.raises(InputError, match="ideal has unlimited memory"):
        smallest_budget(QUICK.trace, QUICK.node, "ideal")
