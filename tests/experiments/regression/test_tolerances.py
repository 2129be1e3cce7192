"""Tolerances: their format, the metrics that they name, and what they allow."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.experiments.regression.tolerances import parse_tolerances, read_tolerances, tolerance_for


def problems_of(written: dict[str, object]) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_tolerances(written)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("written", "amount", "unit", "share"),
    [
        ({"iteration_ns": "1%"}, Fraction(1, 100), "", True),
        ({"iteration_ns": "1.5 us"}, 1500, "ns", False),
        ({"*_ns": "7 ns"}, 7, "ns", False),
        ({"h2d_*bytes": "1 MiB"}, 2**20, "B", False),
        ({"samples_per_s": 0.5}, Fraction(1, 2), "", False),
        ({"samples_per_s": "0.1"}, Fraction(1, 10), "", False),
        ({"*": 0}, 0, "", False),
        ({"*": "250%"}, Fraction(5, 2), "", True),
    ],
)
def test_valid_tolerances_are_accepted(written: dict[str, object], amount: Fraction, unit: str, share: bool) -> None:
    (result,) = parse_tolerances(written)
    assert (result.amount, result.unit, result.share) == (amount, unit, share)


@pytest.mark.parametrize("value", ["", "-1%", "-3", "1 mile", "one", "nan", "inf%", "1.5 ns", None, [1], True, "% 1"])
def test_invalid_tolerances_are_refused(value: object) -> None:
    (message,) = problems_of({"iteration_ns": value})
    assert message.startswith("tolerance: iteration_ns: ")


def test_an_unknown_metric_is_refused_with_a_suggestion() -> None:
    (message,) = problems_of({"itertion_ns": "1%"})
    assert "matches no metric; did you mean 'iteration_ns'?" in message


def test_amounts_must_have_the_unit_of_their_metrics_and_all_problems_are_reported() -> None:
    message = problems_of({"d2h_bytes": "5 us", "iteration_ns": 5, "spans": "1 MiB", "*": "5 us"})
    assert message == [
        "tolerance: d2h_bytes: '5 us' is a time, but d2h_bytes is a size; write '1 MiB' or '1%'",
        "tolerance: iteration_ns: '5' is a number, but iteration_ns is a time; write '10 us' or '1%'",
        "tolerance: spans: '1 MiB' is a size, but spans is a number; write '0.5' or '1%'",
        "tolerance: *: '5 us' is a time, but samples_per_s is a number; write '0.5' or '1%'",
    ]


def test_the_last_tolerance_for_a_metric_applies() -> None:
    result = parse_tolerances({"*": "1%", "iteration_ns": 0, "stalled_*": "2%"})
    texts = {
        key: tolerance.text
        for key in ("iteration_ns", "stalled_other_ns", "spans")
        if (tolerance := tolerance_for(key, result))
    }
    assert texts == {"iteration_ns": "0", "stalled_other_ns": "2%", "spans": "1%"}
    assert tolerance_for("iteration_ns", ()) is None


@given(st.integers(0, 2**62), st.integers(1, 100), st.sampled_from([-1, 1]))
def test_a_share_is_exact_to_the_last_nanosecond(stored: int, percent: int, sign: int) -> None:
    (result,) = parse_tolerances({"iteration_ns": f"{percent}%"})
    limit = stored * percent // 100
    assert result.allows(stored, stored + sign * limit)
    assert not result.allows(stored, stored + sign * (limit + 1))


def test_a_share_of_zero_allows_nothing_and_an_amount_does() -> None:
    share, amount = parse_tolerances({"*": "100%", "*_ns": "5 ns"})
    assert (share.allows(0, 1), amount.allows(0, 5), amount.allows(0, 6)) == (False, True, False)
    assert not share.allows(None, 1)
    assert not share.allows(1, None)


def test_tolerances_of_a_folder_are_read(tmp_path: Path) -> None:
    assert read_tolerances(tmp_path) == ()
    (tmp_path / "tolerances.yaml").write_text(
        "schema: simgpu.tolerances/2\ntolerances:\n  iteration_ns: 1%\n  '*_bytes': 1 MiB\n"
    )
    assert [(each.pattern, each.text) for each in read_tolerances(tmp_path)] == [
        ("iteration_ns", "1%"),
        ("*_bytes", "1 MiB"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: simgpu.tolerances/2\nextra: 1\ntolerances: {}\n", "line 2, extra: unknown key"),
        ("schema: simgpu.tolerances/3\ntolerances: {}\n", "line 1, schema: 'simgpu.tolerances/3' is another version"),
        (
            "schema: simgpu.tolerances/2\ntolerances:\n  spans: 0\n  time: 1%\n",
            "line 4, tolerances.time: matches no metric",
        ),
        (
            "schema: simgpu.tolerances/2\ntolerances:\n  spans: 1%\n  spans: 2%\n",
            "line 4, tolerances.spans: given",
        ),
        ("schema: simgpu.tolerances/2\n", "tolerances: is missing"),
        ("schema: simgpu.tolerances/2\ntolerances: 1%\n", "line 2, tolerances: '1%' is not a mapping"),
    ],
)
def test_problems_of_the_file_are_reported_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tolerances.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_tolerances(tmp_path)
    assert f"{tmp_path / 'tolerances.yaml'}: {message}" in str(caught.value)


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "scenarios" / "README.md").read_text(encoding="utf-8")
    block = readme.split("```yaml\nschema: simgpu.tolerances/2\n")[1].split("```")[0]
    (tmp_path / "tolerances.yaml").write_text(f"schema: simgpu.tolerances/2\n{block}")
    assert [each.text for each in read_tolerances(tmp_path)] == ["0.1%", "20 us", "1 MiB", "0"]
