"""What counts as within 10%, within 25%, off; what holds, and what is broken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.papers.checks.results import condition
from simgpu.papers.claims_file import PartSection
from simgpu.papers.verdicts import Judgement, Verdict, judge, worst


def part(**values: Any) -> PartSection:
    return PartSection.model_validate({"from": "check.name", **values})


@pytest.mark.parametrize(
    ("published", "simulated", "verdict", "detail"),
    [
        (2.0, 2.0, Verdict.CLOSE, "+0.0%"),
        (2.0, 2.2, Verdict.CLOSE, "+10.0%"),
        (2.0, 1.8, Verdict.CLOSE, "-10.0%"),
        (2.0, 2.21, Verdict.NEAR, "+10.5%"),
        (2.0, 1.5, Verdict.NEAR, "-25.0%"),
        (2.0, 2.51, Verdict.OFF, "+25.5%"),
        (2.0, 20.0, Verdict.OFF, "10 times"),
        (2.0, 0.1, Verdict.OFF, "0.05 times"),
        (0.01, -0.02, Verdict.OFF, "by -0.03"),
    ],
)
def test_numbers_are_graded_by_how_far_they_are(
    published: float, simulated: float, verdict: Verdict, detail: str
) -> None:
    assert judge(part(value=published), simulated) == Judgement(verdict, simulated / published, detail)


def test_zero_is_met_as_closely_as_it_was_printed() -> None:
    zero = part(value=0, resolution=0.01)
    assert judge(zero, 0.004).verdict is Verdict.CLOSE
    assert judge(zero, 0.006) == Judgement(Verdict.OFF, None, "by +0.006")


def test_effects_are_compared_where_a_value_without_any_exists() -> None:
    gain = part(value=1.055, no_effect=1)
    assert judge(gain, 1.013).verdict is Verdict.OFF
    assert judge(gain, 1.013).ratio == pytest.approx(0.013 / 0.055)
    assert judge(gain, 1.05).verdict is Verdict.CLOSE
    none = part(value=1.0, no_effect=1, resolution=0.01)
    assert judge(none, 0.9995).verdict is Verdict.CLOSE
    assert judge(none, 1.2) == Judgement(Verdict.OFF, None, "by +0.2")


def test_an_input_that_agrees_is_no_success_and_one_that_does_not_is_a_failure() -> None:
    read = part(value=8, input="arithmetic")
    assert judge(read, 8).verdict is Verdict.INPUT
    assert judge(read, 12).verdict is Verdict.OFF
    assert worst([Verdict.INPUT, Verdict.CLOSE]) is Verdict.CLOSE


def test_an_exact_claim_holds_or_is_broken() -> None:
    exact = part(value=11.7, **{"is": "exactly"})
    assert judge(exact, 11.7).verdict is Verdict.HOLDS
    assert judge(exact, 11.7000001).verdict is Verdict.BROKEN
    listed = part(value=["a", "b"], **{"is": "exactly"})
    assert judge(listed, ["a", "b"]).verdict is Verdict.HOLDS
    assert judge(listed, ["b", "a"]).verdict is Verdict.BROKEN


def test_bounds_hold_on_their_side_and_are_graded_on_the_other() -> None:
    most, smallest = part(value=0.3, **{"is": "at_most"}), part(value=0.3, **{"is": "at_least"})
    assert judge(most, 0.0).verdict is judge(smallest, 9.0).verdict is judge(most, 0.3).verdict is Verdict.HOLDS
    assert judge(most, 0.32).verdict is judge(smallest, 0.28).verdict is Verdict.CLOSE
    assert judge(most, 0.36).verdict is Verdict.NEAR
    assert judge(smallest, 0.1).verdict is Verdict.OFF


def test_a_condition_holds_or_is_broken() -> None:
    assert judge(part(), condition(True, "3 cases")) == Judgement(Verdict.HOLDS, detail="3 cases")
    assert judge(part(), condition(False, "case 2")) == Judgement(Verdict.BROKEN, detail="case 2")


def test_sets_are_graded_by_what_they_share() -> None:
    published = part(value=["a", "b", "c"])
    assert judge(published, ["c", "b", "a"]) == Judgement(Verdict.CLOSE, 1.0, "the same")
    assert judge(published, ["a", "b", "c", "d"]) == Judgement(Verdict.NEAR, 0.75, "only here: d")
    assert judge(published, ["a", "x"]) == Judgement(Verdict.OFF, 0.25, "only here: x; only published: b, c")


def test_no_value_is_not_a_match() -> None:
    assert judge(part(value=1.0), None).verdict is Verdict.OFF
    assert judge(part(), None).verdict is Verdict.BROKEN


def test_an_unsimulated_claim_has_a_reason() -> None:
    cannot = PartSection.model_validate({"value": 2.0, "cannot": "it is a picture"})
    assert judge(cannot, None) == Judgement(Verdict.CANNOT, detail="it is a picture")


@pytest.mark.parametrize("simulated", ["text", ["a"]])
def test_texts_are_refused_as_numbers(simulated: object) -> None:
    with pytest.raises(TypeError):
        judge(part(value=1.0), simulated)  # type: ignore[arg-type]


def test_the_worst_part_decides() -> None:
    ranked = [Verdict.CANNOT, Verdict.HOLDS, Verdict.CLOSE, Verdict.NEAR, Verdict.OFF, Verdict.BROKEN, Verdict.FAILED]
    for at, verdict in enumerate(ranked):
        assert worst(ranked[: at + 1]) is worst(reversed(ranked[: at + 1])) is verdict


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_a_verdict_does_not_depend_on_the_unit(published: float, simulated: float) -> None:
    one = judge(part(value=published), simulated)
    other = judge(part(value=published * 1024), simulated * 1024)
    assert one.verdict is other.verdict


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ({"value": float("nan")}, "finite"),
        ({"value": float("inf")}, "finite"),
        ({"value": 3.0, "is": "holds"}, "holds applies only to parts without a value"),
        ({"value": ["a"], "is": "at_most"}, "not to a list"),
        ({"is": "at_least"}, "needs a value"),
        ({"cannot": "a picture"}, "needs exactly one of: from"),
        ({"from": None}, "needs exactly one of: from"),
        ({"from": None, "test": "tests/papers/test_a.py::test_b", "is": "exactly", "value": 1.0}, "a test decides"),
        ({"broken": "no"}, "name its test"),
        ({"from": None, "test": "test_b"}, "should match pattern"),
    ],
)
def test_parts_that_cannot_be_compared_are_refused(written: dict[str, Any], detail: str) -> None:
    with pytest.raises(ValueError, match=detail):
        part(**written)


def test_a_rounded_number_agrees_within_half_its_step() -> None:
    share = part(value=0.01, resolution=0.01)
    assert judge(share, 0.0051).verdict is judge(share, 0.0149).verdict is Verdict.CLOSE
    assert judge(share, 0.0151).verdict is Verdict.OFF
