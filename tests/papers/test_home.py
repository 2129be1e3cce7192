"""Checks of HOME's claims on a small network, and on changed evaluators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.papers.checks import home
from simgpu.papers.checks.home import NETWORKS, Modelled, plain, slowed, swept
from simgpu.planning.evaluator import Evaluator
from simgpu.policies.home import Home
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain

#: Seven feature maps, of which little fits: there is something to decide.
SMALL = Modelled(
    "small",
    (chain([5, 7, 9, 9, 8, 7, 6, 6], [10, 14, 18, 18, 16, 14, 12, 12], [100, 200, 300, 400, 300, 200, 300, 100]),),
    NodeSpec("example", GpuSpec("gpu", 1500), LinkSpec("pcie", 10**10, 10**10)),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small network in place of the six."""
    monkeypatch.setattr(home, "swept", lambda: iter([SMALL]))


@pytest.mark.slow
def test_networks_are_at_the_batches_of_table_2() -> None:
    assert tuple(each.name for each in swept()) == NETWORKS
    assert [each.traces[-1].info.batch for each in swept()] == [4200, 2926, 4347, 5125, 2576, 365]
    assert [each.traces[0].info.batch for each in plain()] == [2012, 1040, 1667, 2759, 1255, 125]
    assert all(each.node.gpu.memory == 11 * 10**9 for each in (*swept(), *plain()))


@pytest.mark.rule
def test_the_swarm_has_500_particles_and_at_most_500_iterations() -> None:
    """Section 3.3, of the policy as it ships."""
    assert (Home().particles, Home().iterations) == (500, 500)


@pytest.mark.usefixtures("small")
def test_a_swarm_agrees_no_sooner_than_it_finds_its_best() -> None:
    best, agreed = (home.convergence(until=until, searches=3) for until in ("best", "agreement"))
    assert 1 <= best["small"] < agreed["small"] <= 500
    curve = [share for _, share in best["curves"]["curves"]["small"]]
    assert curve[-1] == 1.0
    assert curve == sorted(curve, reverse=True)


@pytest.mark.usefixtures("small")
def test_a_network_that_is_left_out_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(SMALL, name="other")
    monkeypatch.setattr(home, "swept", lambda: iter([SMALL, other]))
    result = home.convergence(searches=1, without="other")
    assert "other" not in result
    assert result["others"] == result["small"]


@pytest.mark.usefixtures("small")
def test_a_search_takes_longer_where_nothing_is_compiled() -> None:
    compiled, plainly = (home.seconds(compiled=each)["small"] for each in (True, False))
    assert 0 < compiled < plainly


@pytest.mark.usefixtures("small")
def test_predictions_of_runs_as_figure_4_draws_them_are_exact() -> None:
    result = home.prediction()
    assert (result["mean"], result["largest"]) == (0, 0)
    assert result["placements"] > 1


@pytest.mark.usefixtures("small")
def test_a_wrong_prediction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(self: Any, rows: Any) -> Any:
        result = costs(self, rows)
        return replace(result, time_ns=result.time_ns * 11 // 10)

    costs = Evaluator.costs
    monkeypatch.setattr(Evaluator, "costs", slower)
    assert home.prediction()["mean"] == pytest.approx(0.1, abs=0.01)


def test_runs_as_the_text_has_them_are_no_faster_than_those_that_are_predicted() -> None:
    """Copies out begin later, and more is waited for."""
    (trace,), node = SMALL.traces, SMALL.node
    policies = (Home(), Home(offload="after", drain=True))
    drawn, said = (simulate(trace, node, policy).iteration_ns for policy in policies)
    assert drawn <= said


def test_only_depthwise_convolutions_are_slowed() -> None:
    trace = next(plain()).traces[0]
    longer = {
        kernel.id
        for kernel, slow in zip(trace.kernels, slowed(trace, 3).kernels, strict=True)
        if slow.duration_ns != kernel.duration_ns
    }
    assert slowed(trace, 1) == trace
    assert len(longer) == 13 * 3
    assert all(".depthwise" in each and "conv2d" in each for each in longer)
