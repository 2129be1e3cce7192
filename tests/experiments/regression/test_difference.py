"""Differences between stored and current timings: which count, and which are only reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.experiments.compare import compare
from simgpu.experiments.regression.difference import ABSENT, PolicyDifference, compare_timings
from simgpu.experiments.regression.timings import timings_of, units
from simgpu.experiments.regression.tolerances import parse_tolerances
from simgpu.policies.vdnn import Vdnn
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.experiments.regression.examples import CHAIN, example_timings, longer, node, with_policy

TIMES = st.lists(st.integers(1, 10**6), min_size=3, max_size=3)


def by_label(*arguments: object, **settings: object) -> dict[str, PolicyDifference]:
    return {policy.label: policy for policy in compare_timings(*arguments, **settings).policies}  # type: ignore[arg-type]


@settings(max_examples=25)
@given(TIMES, TIMES, st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
def test_equal_runs_never_differ(forward: list[int], backward: list[int], sizes: list[int]) -> None:
    one, other = (example_timings(chain(forward, backward, sizes)) for _ in range(2))
    assert compare_timings(one, other).empty


def test_a_slower_link_changes_only_policies_that_copy() -> None:
    difference = compare_timings(example_timings(), example_timings(on=node(99 * 10**8)))
    assert difference.counts
    assert [policy.label for policy in difference.policies] == ["vdnn"]
    assert [change.key for change in difference.inputs] == ["node.link.d2h_bandwidth", "node.link.h2d_bandwidth"]
    values = {value.key: value for value in difference.policies[0].values}
    stored, now = (example_timings(on=on)["vdnn"].values for on in (node(), node(99 * 10**8)))
    assert set(values) == {key for key in stored if stored[key] != now[key]}
    time = values["iteration_ns"]
    before, after = stored["iteration_ns"], now["iteration_ns"]
    assert before is not None
    assert after is not None
    assert (time.stored, time.now, time.by, time.share) == (before, after, after - before, (after - before) / before)


def test_changed_inputs_without_effect_are_reported_and_do_not_count() -> None:
    difference = compare_timings(
        example_timings(), example_timings(on=replace(node(), description="the same, in other words"))
    )
    assert not difference.counts
    assert not difference.empty
    assert [change.key for change in difference.inputs] == ["node.description"]
    assert difference.changed == ("node.description",)


def test_out_of_memory_is_a_changed_outcome_with_a_reason() -> None:
    enough, short = example_timings(), example_timings(on=node(memory=550_000))
    result = by_label(enough, short)
    outcome, *why = result["none"].facts
    assert outcome == ("outcome", "ran", "out of memory")
    assert {change.key: change.stored for change in why} == dict.fromkeys(
        ("waiting", "requested", "free", "at_ns"), ABSENT
    )
    assert result["none"].counts
    assert not result["none"].values
    assert result["none"].events is None
    assert [change.key for change in result["vdnn"].facts] == ["budget_bytes"]
    back = by_label(short, enough)["none"].facts
    assert back[0] == ("outcome", "out of memory", "ran")


def test_out_of_memory_at_another_kernel_is_a_difference() -> None:
    result = by_label(example_timings(on=node(memory=550_000)), example_timings(on=node(memory=250_000)))
    changed = {change.key for change in result["none"].facts}
    assert {"waiting", "kernel", "at_ns", "capacity"} <= changed
    assert "outcome" not in changed


def test_a_policy_with_other_parameters_is_compared_with_itself() -> None:
    stored = example_timings(policies=["none", "vdnn"])
    now = example_timings(policies=["none", ("vdnn", {"mode": "conv"})])
    difference = compare_timings(stored, now)
    assert difference.only_stored == difference.only_now == ()
    (result,) = difference.policies
    assert result.label == "vdnn(mode=conv)"
    assert ("parameter mode", "all", "conv") in result.facts
    assert result.counts


def test_ambiguous_policies_are_not_matched() -> None:
    stored = example_timings(policies=["vdnn"])
    now = example_timings(policies=[("vdnn", {"mode": "conv"}), ("vdnn", {"mode": "dynamic"})])
    difference = compare_timings(stored, now)
    assert difference.only_stored == ("vdnn",)
    assert difference.only_now == ("vdnn(mode=conv)", "vdnn(mode=dynamic)")
    assert difference.counts


def test_added_and_removed_policies_count_and_their_order_does_not() -> None:
    more = compare_timings(example_timings(policies=["ideal", "none"]), example_timings(policies=["ideal", "vdnn"]))
    assert (more.only_stored, more.only_now, more.counts) == (("none",), ("vdnn",), True)
    assert more.changed == ("vdnn is new", "none is removed")
    turned = compare_timings(example_timings(policies=["ideal", "none"]), example_timings(policies=["none", "ideal"]))
    assert (turned.reordered, turned.counts, turned.empty) == (True, False, False)


def test_changed_settings_are_reported_even_if_all_numbers_are_equal() -> None:
    stored, now = (timings_of(compare(CHAIN, node(), ["ideal"], seed=seed)) for seed in (0, 1))
    (result,) = compare_timings(stored, now).policies
    assert (result.facts, result.values, result.events, result.counts) == ((("seed", 0, 1),), (), None, True)
    changed = compare_timings(example_timings(), replace(example_timings(), overrides={"seed": 0}))
    assert changed.overrides == (("seed", ABSENT, 0),)
    assert changed.counts


def test_a_new_metric_is_reported_and_a_missing_one_counts() -> None:
    now = example_timings(policies=["vdnn"])
    values = dict(now["vdnn"].values)
    del values["slowdown"]
    older = with_policy(now, "vdnn", replace(now["vdnn"], values=values))
    (result,) = compare_timings(older, now).policies
    assert (result.not_stored, result.values, result.counts) == (("slowdown",), (), False)
    (removed,) = compare_timings(now, older).policies
    assert [(value.key, value.now, value.by) for value in removed.values] == [("slowdown", None, None)]
    assert removed.counts


def test_steadiness_and_counts_are_compared() -> None:
    now = example_timings(policies=["vdnn"])
    policy = now["vdnn"]
    (steady,) = compare_timings(with_policy(now, "vdnn", replace(policy, steady=False)), now).policies
    assert steady.facts == (("steady", False, True),)
    for count in ("retired_instructions", "spans", "ideal_ns", "high_water_bytes"):
        fewer = replace(policy, values={**policy.values, count: 1})
        (result,) = compare_timings(with_policy(now, "vdnn", fewer), now).policies
        assert [value.key for value in result.values] == [count]
        assert result.counts


def test_without_tolerances_a_changed_timeline_alone_counts() -> None:
    now = example_timings(policies=["vdnn"])
    policy = now["vdnn"]
    renamed = replace(policy, events=(policy.events[0]._replace(name="other"), *policy.events[1:]))
    for tolerances, counts in (({}, True), ({"*": 0}, True), ({"iteration_ns": "1%"}, False)):
        result = compare_timings(now, with_policy(now, "vdnn", renamed), parse_tolerances(tolerances)).policies[0]
        assert (result.values, result.counts) == ((), counts)
        assert result.events is not None


def test_only_metrics_outside_their_tolerances_count() -> None:
    stored, now = example_timings(policies=["vdnn"]), example_timings(longer("B1", 10), policies=["vdnn"])
    every = compare_timings(stored, now, parse_tolerances({"*": "1%"})).policies[0]
    assert not every.counts
    assert all(value.tolerated for value in every.values)
    assert every.events is not None
    one = compare_timings(stored, now, parse_tolerances({"iteration_ns": "1%"})).policies[0]
    assert one.counts
    assert [value.key for value in one.values if value.tolerated] == ["iteration_ns"]
    exact = compare_timings(stored, now, parse_tolerances({"*": "1%", "iteration_ns": 0})).policies[0]
    assert [value.key for value in exact.values if not value.tolerated] == ["iteration_ns"]


def test_a_refusal_and_a_changed_reason_for_it_count() -> None:
    def refused(why: str) -> object:
        runs = compare(CHAIN, node(), ["ideal", "vdnn"])
        ideal, vdnn = runs.runs
        return timings_of(replace(runs, runs=(ideal, replace(vdnn, outcome=InputError.single("", "", why)))))

    (result,) = compare_timings(refused("one reason"), refused("another")).policies  # type: ignore[arg-type]
    assert result.facts == (("why", "one reason", "another"),)
    (outcome,) = compare_timings(example_timings(policies=["ideal", "vdnn"]), refused("no")).policies  # type: ignore[arg-type]
    assert [change.key for change in outcome.facts] == ["outcome", "why"]


def test_timings_of_a_result_equal_those_of_its_comparison() -> None:
    result = simulate(CHAIN, node(), Vdnn(mode="conv"))
    assert timings_of(result) == example_timings(policies=[Vdnn(mode="conv")])


def test_values_that_are_not_results_are_refused() -> None:
    with pytest.raises(InputError, match="is not a result, comparison or scenario"):
        timings_of(CHAIN)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="two runs have the label none"):
        example_timings(policies=["none", "none"])


def test_every_value_has_a_unit() -> None:
    for policy in example_timings().policies:
        assert set(policy.values) <= set(units())
