"""`simgpu.search_placement`: the chosen placement, its convergence, and its simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.outputs import write_searches
from simgpu.experiments.search import check_searched, search_placement
from simgpu.experiments.search_result import Search
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.columns import FETCHED_AT, OFFLOADED_AT
from simgpu.planning.evaluator import DOES_NOT_FIT, Chosen, Costs, Evaluator
from simgpu.planning.options import Decisions, Option, Vector
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.capuchin.policy import Capuchin
from simgpu.policies.common.placing import PlacingPolicy
from simgpu.policies.home import Home
from simgpu.policies.joint.policy import Joint, with_all_actions
from simgpu.policies.superneurons import SuperNeurons
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import plan_context, simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from simgpu.workloads.modelled import build_trace

#: Of which random placements fit some, so that a search has something to do.
BUDGET = 1_150_000_000


@pytest.fixture(scope="module")
def node() -> NodeSpec:
    return simgpu.load_node("2080ti")


@pytest.fixture(scope="module")
def plain20(node: NodeSpec) -> Trace:
    return build_trace("plain20", batch=284, gpu=node.gpu, framework="pytorch-1.5", width=4)


@pytest.fixture(scope="module")
def home(plain20: Trace, node: NodeSpec) -> Search:
    return search_placement(plain20, node, "home", budget=BUDGET)


@pytest.mark.slow
def test_the_search_result_equals_a_run_of_the_policy(home: Search, plain20: Trace, node: NodeSpec) -> None:
    result = simulate(plain20, node, "home", budget=BUDGET)
    assert home.fits
    assert home.iteration_ns == result.iteration_ns == home.predicted_ns
    assert home.notes == result.program.notes


@pytest.mark.slow
def test_equal_seeds_give_equal_searches_and_other_seeds_do_not(home: Search, plain20: Trace, node: NodeSpec) -> None:
    again = search_placement(plain20, node, Home(), budget=f"{BUDGET} B")
    assert again.to_dict() == home.to_dict()
    other = search_placement(plain20, node, "home", budget=BUDGET, seed=1)
    assert other.chosen.swarm is not None and home.chosen.swarm is not None
    assert not np.array_equal(other.chosen.swarm.costs[0], home.chosen.swarm.costs[0])


def test_convergence_curves_cover_only_particles_that_fit(home: Search) -> None:
    swarm, curves = home.chosen.swarm, home.convergence
    assert swarm is not None and curves is not None
    for n, costs in enumerate(swarm.costs.tolist()):
        fit = [cost for cost in costs if cost < DOES_NOT_FIT]
        assert curves.fitting[n] == len(fit) / len(costs)
        assert curves.worst_ns[n] == max(fit)
        assert curves.mean_ns[n] == pytest.approx(sum(fit) / len(fit), rel=1e-12)
    assert 0 < curves.fitting[0] < 1
    assert (np.diff(curves.best_ns) <= 0).all()
    assert curves.best_ns[-1] == curves.best_ns[swarm.converged_at - 1] == home.predicted_ns
    assert home.curve_text == ""


def test_if_nothing_fits_the_shortage_is_reported_instead_of_a_curve(plain20: Trace, node: NodeSpec) -> None:
    result = search_placement(plain20, node, Home(iterations=3), budget="400 MB")
    curves, frame = result.convergence, result.convergence_frame()
    assert not result.fits and result.iteration_ns is None and result.predicted_ns is None
    assert curves is not None and frame is not None
    assert np.isnan([curves.worst_ns, curves.mean_ns, curves.best_ns]).all() and not curves.fitting.any()
    assert frame[["worst_ns", "mean_ns", "best_ns"]].isna().all(axis=None)
    assert result.plot() is None and result.iteration_rows() == []
    assert dict(result.facts())["convergence"] == "none: no evaluated placement fits"
    costs: Costs = result.chosen.evaluator.costs([result.chosen.vector])
    assert f"lacks {simgpu.units.format_bytes(int(costs.short[0]))}" in repr(result)
    assert {each.offloaded_ns for each in result.maps} == {None}
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["swarm"]["convergence"]["best_ns"] == [None] * 3


def test_the_table_has_overheads_of_algorithm_2_and_times_of_the_run(home: Search) -> None:
    evaluator, vector = home.chosen.evaluator, home.chosen.vector
    assert vector is not None
    assert [each.overhead_ns for each in home.maps] == list(evaluator.overheads(vector))
    states = evaluator.details(vector)
    actions = {"keep": 0, "swap": 1, "recompute": 2}
    assert tuple(actions[each.action] for each in home.maps) == vector
    assert set(actions) == {each.action for each in home.maps}
    for each, state in zip(home.maps, states, strict=True):
        assert each.needed_ns is not None
        if each.action == "keep":
            assert each.offloaded_ns is None and each.prefetched_ns is None and each.overhead_ns == 0
        else:
            assert each.offloaded_ns is not None and each.prefetched_ns is not None
            assert each.offloaded_ns < each.prefetched_ns <= each.needed_ns
        if each.action == "swap":
            assert (each.offloaded_ns, each.prefetched_ns) == (state[OFFLOADED_AT], state[FETCHED_AT])


def test_a_recomputed_activation_is_resident_when_its_recomputation_ends(home: Search) -> None:
    outcome = home.outcome
    assert not isinstance(outcome, simgpu.OutOfMemoryError)
    begin = outcome.timeline.window(-1)[0]
    ends = {span.end_ns - begin for span in outcome.timeline if span.kind is SpanKind.RECOMPUTE}
    assert {each.prefetched_ns for each in home.maps if each.action == "recompute"} <= ends


def test_a_best_placement_of_zero_duration_has_no_curve(node: NodeSpec) -> None:
    result = search_placement(chain([0] * 8, [0] * 8, [100] * 8), node, Home(particles=50), budget=500)
    assert result.predicted_ns == 0
    assert result.plot() is None
    assert result.curve_text == "none: the best placement takes no time"


@pytest.mark.parametrize("policy", [SuperNeurons(), Capuchin()])
def test_policies_without_a_search_have_a_table_and_no_curve(policy: object, plain20: Trace, node: NodeSpec) -> None:
    result = search_placement(plain20, node, policy, budget=BUDGET)
    assert len(result.maps) == len(result.chosen.evaluator.decisions.maps)
    assert result.convergence is None and result.convergence_frame() is None and result.plot() is None
    assert result.iteration_ns == result.predicted_ns
    assert "evaluations" not in dict(result.facts()) and "stopped" not in dict(result.facts())
    assert result.curve_text == ""


class Encoding(PlacingPolicy):
    """Swaps and encodes everything, and fetches as early as possible."""

    name, summary, source = "encoding", "swap all", "a test"

    def decisions(self, context: PlanContext) -> Decisions:
        return with_all_actions(context, super().decisions(context))

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        def wish(option: Option) -> tuple[bool, int]:
            return option.encoding is not None, option.ahead

        return tuple(max(range(len(own)), key=lambda number: wish(own[number])) for own in decisions.options)


def test_encoded_swaps_and_early_fetches_are_reported() -> None:
    trace, node = simgpu.load_trace("vgg16-b128-v100"), simgpu.load_node("v100")
    result = search_placement(trace, node, Encoding(), epoch=30)
    options = [
        own[number]
        for own, number in zip(result.chosen.evaluator.decisions.options, result.chosen.vector or (), strict=True)
    ]
    assert {each.action for each in result.maps} > {"swap with zvc"}
    for each, option in zip(result.maps, options, strict=True):
        assert (each.prefetch_distance, each.offloaded_ns is None) == (option.ahead, False)
        assert each.action == (f"swap with {option.encoding.codec}" if option.encoding else "swap")
        assert each.prefetched_ns is not None and each.needed_ns is not None and each.prefetched_ns <= each.needed_ns


@pytest.mark.slow
def test_joint_reports_the_vector_of_its_program(plain20: Trace, node: NodeSpec) -> None:
    result = search_placement(plain20, node, Joint(evaluations=5000, lower_bound=False), budget=BUDGET)
    assert result.predicted_ns == result.iteration_ns
    assert result.chosen.evaluations is not None and result.chosen.evaluations >= 5000
    assert result.convergence is None and result.plot() is None
    assert result.curve_text == "none: the search uses no swarm"


def test_a_full_update_reports_its_savings(plain20: Trace, node: NodeSpec) -> None:
    result = search_placement(plain20, node, ("home", {"update": "full", "particles": 20}), budget=BUDGET)
    swarm = result.chosen.swarm
    assert swarm is not None and swarm.evaluations < swarm.as_printed
    assert f"{swarm.evaluations} ({swarm.as_printed} without caching), " in dict(result.facts())["evaluations"]


@pytest.mark.parametrize("policy", ["vdnn", "none", Capuchin(version="published")])
def test_policies_without_decisions_per_feature_map_are_refused(policy: object, plain20: Trace, node: NodeSpec) -> None:
    advice = r"choose home, superneurons, capuchin\(version=home\) or joint"
    with pytest.raises(InputError, match=f"does not decide about one feature map at a time; {advice}"):
        search_placement(plain20, node, policy)


@pytest.mark.parametrize("policies", [["home", "joint"], ("home", "joint"), {"home": {}, "joint": {}}, []])
def test_search_placement_accepts_only_one_policy(policies: Any, plain20: Trace, node: NodeSpec) -> None:
    with pytest.raises(InputError, match=r"argument policy: .* is not one policy; ask for one at a time"):
        search_placement(plain20, node, policies)


def test_all_policies_are_checked_before_any_searches() -> None:
    check_searched(["home", "joint", "superneurons", "capuchin", Encoding()])
    with pytest.raises(InputError) as caught:
        check_searched(["vdnn", Home(particles=0, iterations=-1), ("capuchin", {"version": "published"}), "hme"])
    message = [str(problem) for problem in caught.value.problems]
    assert len(message) == 5
    for text, start in zip(
        message,
        (
            "policy: policy vdnn does not decide",
            "policy home(particles=0, iterations=-1): particles: 0",
            "policy home(particles=0, iterations=-1): iterations: -1",
            "policy: policy capuchin(version=published) does not decide",
            "policy: unknown policy 'hme'",
        ),
        strict=True,
    ):
        assert text.startswith(start)


def test_an_external_policy_is_planned_by_its_own_method(plain20: Trace, node: NodeSpec) -> None:
    class Resident(Policy):
        name, summary, source = "resident", "keep all", "a test"

        def plan(self, context: PlanContext) -> Program:
            return lower(context.graph, Placement())

    check_searched([Resident()])
    with pytest.raises(InputError, match="policy resident does not decide about one feature map at a time"):
        search_placement(plain20, node, Resident())


def test_bad_arguments_are_refused_as_simulate_refuses_them(plain20: Trace, node: NodeSpec) -> None:
    with pytest.raises(InputError, match="unknown policy 'hme'"):
        search_placement(plain20, node, "hme")
    with pytest.raises(InputError, match="argument seed: -1"):
        search_placement(plain20, node, seed=-1, budget="1 GB")
    with pytest.raises(InputError, match="argument budget"):
        search_placement(plain20, node, budget="much")


@pytest.mark.slow
def test_written_files_are_reproducible_and_contain_no_wall_time(
    home: Search, plain20: Trace, node: NodeSpec, tmp_path: Path
) -> None:
    late = replace(home, wall_clock=replace(home.wall_clock, planning_s=1234.5, evaluation_s=6.789))
    for name, search in (("first", home), ("second", late)):
        write_searches([search, search], tmp_path / name, about={"simgpu": "0"})
    first, second = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("first", "second")
    )
    assert first == second
    assert {str(path) for path in first} == {
        "report.json",
        *(
            f"{of}/{file}"
            for of in ("home", "home-2")
            for file in ("placement.csv", "convergence.csv", "convergence.png")
        ),
    }
    placement = (tmp_path / "first" / "home" / "placement.csv").read_text().splitlines()
    assert (
        placement[0]
        == "activation,name,layer,bytes,action,prefetch_distance,overhead_ns,offloaded_ns,prefetched_ns,needed_ns"
    )
    assert len(placement) == 1 + len(home.maps)
    readme = (Path(__file__).parents[2] / "scenarios" / "README.md").read_text(encoding="utf-8")
    assert not [column for column in placement[0].split(",") if f"`{column}`" not in readme]


def test_a_foreign_folder_is_not_replaced(home: Search, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not from an earlier search"):
        write_searches([home], tmp_path, about={})


def test_wall_time_and_simulated_time_are_reported_separately(home: Search) -> None:
    clock = home.wall_clock
    assert clock.evaluation_s is not None and 0 < clock.evaluation_s < clock.planning_s
    assert "wall clock" in dict(home.facts())
    assert "wall_clock" not in home.to_dict()


def test_plan_context_equals_the_context_of_simulate(plain20: Trace, node: NodeSpec) -> None:
    message: list[str] = []
    policy = Home(particles=10, iterations=2)
    context = plan_context(plain20, node, policy, budget="1 GB", seed=3, alignment=512, progress=message.append)
    program = policy.plan(context)
    assert program == simulate(plain20, node, policy, budget="1 GB", seed=3, alignment=512).program
    assert context.trial(program).iteration_ns > 0
    assert message == [
        f"searching ──────────────────── iteration {n} of at most 2".replace("─", "━", 10 * n) for n in (1, 2)
    ]


def test_simulate_forwards_the_progress_of_a_policy(plain20: Trace, node: NodeSpec) -> None:
    message: list[str] = []
    simulate(plain20, node, Home(particles=10, iterations=2), budget=BUDGET, progress=message.append)
    assert len(message) == 2


def test_the_returned_placement_has_priority_over_a_reported_choice(plain20: Trace, node: NodeSpec) -> None:
    class Keeping(PlacingPolicy):
        name, summary, source = "keeping", "keep all", "a test"

        def place(self, context: PlanContext, decisions: Decisions) -> Vector:
            evaluator = Evaluator(context.graph, context.node, context.budget, decisions)
            context.chosen(Chosen(evaluator, (1,) * len(decisions.maps)))
            return (0,) * len(decisions.maps)

    result = search_placement(plain20, node, Keeping())
    assert {each.action for each in result.maps} == {"keep"}
    assert result.iteration_ns == result.ideal_ns
