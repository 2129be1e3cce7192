"""Claims in columns of a terminal: all numbers, no line too wide, no word broken."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.papers.claims_file import PartSection
from simgpu.papers.lines import table_lines
from simgpu.papers.outcome import PartOutcome, claim_lines, experiment_lines, says_lines
from simgpu.papers.page.views import paper_views
from simgpu.papers.reproduction import Reproduction, rule_lines, summary
from simgpu.papers.verdicts import Verdict, judge
from tests.papers.sample_paper import VALUES, sample, sample_paper

RESULT = sample()


def texts(reproduction: Reproduction = RESULT, *, every: bool = False) -> list[str]:
    return [line.full for line in claim_lines(reproduction.claims, every=every)]


def row_of(label: str) -> list[str]:
    (line,) = (line for line in texts() if line.split("  ")[0].strip() == label or line.strip().startswith(f"{label} "))
    return line.split()


def test_a_claim_of_several_parts_has_a_row_of_its_own_and_one_for_each() -> None:
    lines = texts()
    at = next(number for number, line in enumerate(lines) if line.startswith("sample.speed"))
    assert lines[at].split() == ["sample.speed", "off"]
    assert lines[at + 1].split() == ["mean", "1.25", "1.43", "1.14", "within", "25%", "(+14.4%)"]
    assert lines[at + 2].split() == ["best", "2", "1.2", "0.6", "off", "(-40.0%)"]


def test_fitted_claims_are_marked_and_units_are_shown_once() -> None:
    lines = texts()
    long = "sample.rates.a_very_long_name.of_a_claim.that_takes_room*, GB/s"
    at = lines.index(long)
    assert lines[at + 1].split() == ["11.7", "11.7", "1", "within", "10%"]


def test_sets_are_below_their_row() -> None:
    lines = texts()
    at = next(number for number, line in enumerate(lines) if line.startswith("sample.layers"))
    assert [line.strip() for line in lines[at + 1 : at + 4]] == [
        "paper: MAX1, MAX2, ReLU7, ReLU8",
        "here: MAX1, MAX2, ReLU8, ReLU9",
        "only here: ReLU9; only published: ReLU7",
    ]


def test_broken_failed_and_unsimulated_parts_have_reasons() -> None:
    text = "\n".join(texts())
    for why in ("window 7 ends after 12 ns, not 11", "a simulator meets no readers", "there is nothing to divide by"):
        assert why in text
    assert "2000 random schedules" not in text, "details of what holds are shown for single claims only"
    assert "2000 random schedules" in "\n".join(texts(every=True))
    assert "note: read off a picture" in "\n".join(texts(every=True))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_wrap_at_the_width_between_words(width: int) -> None:
    lines = [line.full for line in claim_lines(RESULT.claims, width, every=True)]
    assert max(map(len, lines)) <= width
    words = set(" ".join(lines).split())
    assert {"sample.rates.a_very_long_name.of_a_claim.that_takes_room*,", "MAX1,", "(+14.4%)"} <= words


def test_an_experiment_is_a_row_a_step_between_what_is_and_what_is_published() -> None:
    speed = RESULT["sample.speed"]
    rows = [line.full.split() for line in experiment_lines(speed, speed.experiments[0])]
    assert rows == [
        ["sample.speed", "mean", "best"],
        ["as", "it", "is", "1.43", "1.2", "off"],
        ["14", "GB/s", "1.35", "1.6", "within", "25%"],
        ["16", "GB/s", "1.28", "1.96", "within", "10%"],
        ["paper", "1.25", "2"],
    ]
    says = " ".join(line.full.strip() for line in says_lines(speed.experiments[0]))
    assert says == speed.experiments[0].assumption.says


def test_a_long_experiment_is_divided() -> None:
    speed = RESULT["sample.speed"]
    lines = [line.full for line in experiment_lines(speed, speed.experiments[0], 32)]
    assert max(map(len, lines)) <= 32
    assert [line.split()[-1] for line in lines if "sample.speed" in line] == ["mean", "best"]


def test_verdicts_are_the_ends_of_lines_to_be_coloured() -> None:
    for line in claim_lines(RESULT.claims):
        assert line.verdict is None or line.ending.startswith(str(line.verdict))


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.text("abc ", max_size=30).map(str.strip)] * 3), min_size=1),
    st.integers(75, 120),
)
def test_a_table_has_every_cell_whatever_its_width(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table_lines(("what", "number", "said"), rows, width)
    assert re.sub(r"\s", "", "".join(line.full for line in lines)) == "whatnumbersaid" + re.sub(
        r"\s", "", "".join("".join(row) for row in rows)
    )


def test_the_summary_counts_every_claim_once_and_fits_separately() -> None:
    headings, rows, below = summary(RESULT)
    assert [len(row) for row in rows] == [len(headings)] * 2
    assert headings[-1] == "not simulated"
    assert below.startswith("Numbers and orders one by one") and "Rules held by tests: 0 of 1." in below
    assert below.endswith("inputs or arithmetic and cannot fail: 1.")
    assert rows == [
        ("SAMPLE", "0 of 1", "7", "1", "", "1", "2", "1", "1 + 1 failed"),
        ("  fitted", "", "1", "", "1", "", "", "", ""),
    ]


def test_an_input_that_does_not_agree_counts() -> None:
    wrong = sample(values=VALUES | {"shapes": [5.0]})
    assert wrong["sample.shapes"].verdict is Verdict.OFF
    assert wrong.counts()[Verdict.OFF] == RESULT.counts()[Verdict.OFF] + 1
    assert not wrong.inputs


def test_a_column_of_what_is_not_simulated_needs_one_that_is_not() -> None:
    simulated = [each for each in RESULT.claims if each.verdict not in (Verdict.CANNOT, Verdict.FAILED)]
    headings, rows, _ = summary(Reproduction(tuple(simulated)))
    assert headings[-1] == "broken"
    assert {len(row) for row in rows} == {len(headings)}


def test_several_papers_are_counted_together_too() -> None:
    other = sample(sample_paper(paper="OTHER"))
    rows = summary(Reproduction((*RESULT.claims, *other.claims))).rows
    assert [row[0] for row in rows] == ["SAMPLE", "  fitted", "OTHER", "  fitted", "all papers", "  fitted"]


def test_a_reproduction_prints_as_its_claims_and_the_summary() -> None:
    text = repr(RESULT)
    assert "sample.half, ms" in text and "1 + 1 failed" in text
    assert max(map(len, text.splitlines())) <= 88


def test_a_notebook_shows_every_part_and_the_summary() -> None:
    html = RESULT._repr_html_()
    assert html.count("<tr>") == 3 + 2 + sum(len(each.parts) for each in RESULT.claims) + len(summary(RESULT).rows)
    assert "(fit)" in html and "1 + 1 failed" in html


def test_a_note_of_neighbouring_parts_is_shown_once() -> None:
    noted = [{"name": name, "value": 1.0, "from": f"c.{name}", "note": "once"} for name in ("one", "two")]
    other = {"name": "three", "value": 1.0, "from": "c.three", "note": "another"}
    parts = tuple(PartOutcome(part, 1.0, judge(part, 1.0)) for part in map(PartSection.model_validate, [*noted, other]))
    shown = [
        line.full.strip() for line in claim_lines([replace(RESULT.claims[0], parts=parts, experiments=())], every=True)
    ]
    assert [line for line in shown if line.startswith("note")] == ["note: once", "note: another"]
    (paper,) = paper_views(Reproduction((replace(RESULT.claims[0], parts=parts, experiments=()),)))
    assert [part.note for part in paper.claims[0].parts] == ["", "once", "another"]


def test_a_rule_is_listed_with_its_test_and_why_it_is_broken() -> None:
    lines = [line.full for line in rule_lines(RESULT.rules)]
    assert lines == [
        "rule, checked by test",
        "sample.rule  kept",
        "    tests/papers/test_sample.py::test_kept",
        "sample.rule  size  broken",
        "    tests/papers/test_sample.py::test_size",
        "    sizes are rounded up",
    ]
    assert "    note: of three" in [line.full for line in rule_lines(RESULT.rules, every=True)]
    assert rule_lines(()) == []
