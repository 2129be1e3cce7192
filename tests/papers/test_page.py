"""The page of a reproduction: every claim with its numbers, its verdict, its causes and its figures; no request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.papers import tasks
from simgpu.papers.checks.results import bars, cells, condition, lines
from simgpu.papers.page.figures import figures_of
from simgpu.papers.page.page import check_target, page, write_page
from simgpu.papers.page.views import MEANINGS, bar_views, paper_views
from simgpu.papers.recordings import Compared, NotCompared, Recordings
from simgpu.papers.reproduce import Run
from simgpu.papers.reproduction import Reproduction
from simgpu.papers.verdicts import Verdict
from tests.papers.sample_paper import NASTY, sample, sample_paper

RESULT = sample()


class _Parser(HTMLParser):
    """Elements, and the texts of those that are seen."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.seen = ""
        self._raw = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        self.seen += "" if self._raw else data

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


def body_of(text: str, claim: str) -> str:
    """The part of the page that is about a claim, as it is read."""
    result = re.search(rf'<tbody id="{re.escape(claim)}".*?</tbody>', text, re.DOTALL)
    assert result is not None, claim
    return " ".join(_Parser(re.sub("<(td|th|span|tr|p)", r" <\1", result[0])).seen.split())


TEXT = page(RESULT, {})
PARSED = _Parser(TEXT)


def test_every_claim_has_an_anchor_and_its_verdict() -> None:
    for outcome in RESULT.claims:
        text = body_of(TEXT, outcome.claim.id)
        assert str(outcome.verdict) in text
        assert outcome.claim.section.states in text
        assert outcome.claim.section.where in text


def test_every_part_shows_both_numbers_their_ratio_and_its_note() -> None:
    assert "mean 1.25 1.43 1.14 within 25% (+14.4%)" in body_of(TEXT, "sample.speed")
    assert "11.7 GB/s 11.7 GB/s 1 Measured on the machine" in body_of(
        TEXT, "sample.rates.a_very_long_name.of_a_claim.that_takes_room"
    )
    assert "a bound ≤ 3 2.5 0.833 holds" in body_of(TEXT, "sample.broken")
    assert "an order window 7 ends after 12 ns, not 11 broken" in body_of(TEXT, "sample.broken")
    assert "published MAX1, MAX2, ReLU7, ReLU8 simulated MAX1, MAX2, ReLU8, ReLU9 0.6" in body_of(TEXT, "sample.layers")
    assert "a simulator meets no readers" in body_of(TEXT, "sample.opinion")
    assert "Note: read off a picture" in body_of(TEXT, "sample.half")
    assert "ValueError: there is nothing to divide by" in body_of(TEXT, "sample.missing")


def test_a_rule_lists_its_tests_and_failures() -> None:
    text = body_of(TEXT, "sample.rule")
    assert "kept 3 tests/papers/test_sample.py::test_kept of three" in text
    assert "size tests/papers/test_sample.py::test_size broken: sizes are rounded up" in text
    assert "Rules held by tests: 0 of 1" in PARSED.seen


def test_a_page_of_rules_alone_has_no_table_of_numbers() -> None:
    text = page(Reproduction((), RESULT.rules), {})
    assert 'id="sample.rule"' in text and '<table class="claims">' not in text


def test_marks_show_fitted_inferred_and_quick_claims() -> None:
    long = body_of(TEXT, "sample.rates.a_very_long_name.of_a_claim.that_takes_room")
    assert " fit " in long and " quick " in long and "Fitted: the node's bandwidth out, to this very number" in long
    assert " inferred " in body_of(TEXT, "sample.opinion")
    assert " fit " not in body_of(TEXT, "sample.speed")


def test_claims_that_are_off_show_their_causes_or_that_none_is_known() -> None:
    text = body_of(TEXT, "sample.speed")
    assert "Why. The link is taken to be 12 GB/s" in text
    for row in ("as it is 1.43 1.14 1.2 0.6 off", "16 GB/s 1.28 1.02 1.96 0.98 within 10%", "published 1.25 2"):
        assert row in text
    assert "No assumption is known to affect it" in body_of(TEXT, "sample.layers")
    assert "No assumption" not in body_of(TEXT, "sample.half"), "within 25% is not off"


def test_places_on_scales_are_where_ratios_are() -> None:
    (paper,) = paper_views(RESULT)
    mean, best = paper.claims[0].parts
    assert mean.place is not None and best.place is not None
    assert 50 < mean.place.at < 75 and 0 < best.place.at < 25
    (cause,) = paper.claims[0].causes
    for at, goal in enumerate(cause.goals):
        assert goal is not None
        distances = [abs(place.at - goal.at) for step in cause.steps if (place := step.parts[at].place)]
        assert distances == sorted(distances, reverse=True), "each step comes nearer"


def test_text_of_users_is_escaped() -> None:
    assert NASTY in PARSED.seen
    assert "</script><b>" not in TEXT
    assert TEXT.count("<script>") == 1


def test_the_summary_counts_claims_by_verdict_and_fits_separately() -> None:
    bars = bar_views(RESULT)
    assert [(bar.sort, bar.claims) for bar in bars] == [("predictions", 7), ("fitted", 1)]
    for bar in bars:
        assert sum(count for _, _, count, _ in bar.parts) == bar.claims
    assert sum(width for _, _, _, width in bars[0].parts) == pytest.approx(100, abs=0.01)
    assert "Predictions, 7: 1 met (holds, or within 10%), 1 within 25%, 2 off by more" in PARSED.seen
    assert "Fitted, 1: 1 met (holds, or within 10%)" in PARSED.seen
    for verdict in Verdict:
        assert MEANINGS[verdict] in PARSED.seen


def test_papers_have_bars_of_one_scale_and_all_of_them_one_of_their_own() -> None:
    other = sample(sample_paper(paper="OTHER"))
    views = bar_views(Reproduction((*RESULT.claims, *other.claims[:2])))
    widths = {(bar.name, bar.sort): sum(part[3] for part in bar.parts) for bar in views}
    assert widths["SAMPLE", "predictions"] == pytest.approx(100, abs=0.01)
    assert list(widths)[-2:] == [("all papers", "predictions"), ("all papers", "fitted")]


def test_the_page_loads_nothing_and_allows_its_script_by_hash() -> None:
    (policy,) = (tag["content"] for name, tag in PARSED.tags if name == "meta" and "http-equiv" in tag)
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
    for _, attributes in PARSED.tags:
        for name in ("src", "href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attributes)
    assert "url(http" not in TEXT and "@import" not in TEXT


def test_links_point_to_existing_anchors() -> None:
    ids = PARSED.ids()
    assert len(set(ids)) == len(ids)
    links = {tag["href"][1:] for name, tag in PARSED.tags if name == "a"}
    assert links <= set(ids)


def test_recordings_have_their_own_section() -> None:
    rows = Compared("a-trace", "recorded", "a GPU", "ideal", "kernel time", "ns", 12_345, 12_345)
    recordings = Recordings((rows,), (), (NotCompared("other", "nobody recorded it"),))
    seen = " ".join(_Parser(page(Reproduction((), recordings=recordings), {})).seen.split())
    assert "a-trace (recorded, a GPU)" in seen and "12,345 ns" in seen and "nobody recorded it" in seen
    assert "Recordings" not in PARSED.seen, "they were not requested"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The claims with checks that find them."""

    def speeds(rate: float = 12.0) -> dict[str, Any]:
        return {
            "mean": 1.43 - (rate - 12) / 25,
            "best": 1.2 + (rate - 12) / 5,
            "link": 11.7,
            "time": 118.0,
            "none": 1 / (rate - 12) if rate != 12 else 0.5,
            "bars": bars("speed", {"VGG16": {"ours": 1.2, "theirs": 1.1, "no one's": 1.0}}, {"VGG16": {"ours": 1.25}}),
            "lines": lines("speed", "rate (GB/s)", {"ours": [(10, 1.0), (16, 1.3)]}),
        }

    def rules() -> dict[str, Any]:
        return {
            "prefetch": condition(True, "cases"),
            "end": condition(False, "case 7"),
            "least": 2.5,
            "layers": ["MAX1"],
            "cells": cells(["ReLU1"], ["0", "1"], [["ZVC", "none"]]),
        }

    result: Mapping[str, Any] = {"speeds": speeds, "rules": rules}
    monkeypatch.setattr(tasks, "checks", lambda _: result)
    monkeypatch.setattr("simgpu.papers.answers.checks", lambda _: result)
    # Sources of checks are those of a paper that there is.
    monkeypatch.setattr(tasks, "_source", lambda _: "")
    return Run(sample_paper().claims)


def test_figures_are_inline_elements_next_to_their_claims(run: Run, tmp_path: Path) -> None:
    path = write_page(run, run.outcome(causes=True, figures=True), tmp_path / "papers.html")
    text = path.read_text(encoding="utf-8")
    parsed = _Parser(text)
    assert text.count("<svg role=") == 3
    ids = parsed.ids()
    assert len(set(ids)) == len(ids), "figures do not share ids"
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert reference in ids
    assert "Speed by network" in parsed.seen and ">1.20<" in text
    assert 'href="#figure-sample-1"' in re.search(r'<tbody id="sample.speed".*?</tbody>', text, re.DOTALL)[0]  # type: ignore[index]


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(run: Run, tmp_path: Path) -> None:
    result = run.outcome(causes=True, figures=True)
    once, again = (write_page(run, result, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert once == again


def test_some_claims_have_the_figures_that_show_them(run: Run) -> None:
    some = Run([claim for claim in run.claims if claim.id == "sample.layers"])
    some.outcome(causes=False, figures=True)
    assert [figure.title for figure in figures_of(some)["sample"]] == ["Who is compressed when"]


def test_a_figure_with_a_broken_check_gives_the_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> dict[str, Any]:
        raise ZeroDivisionError("by nothing")

    result = {"speeds": breaks, "rules": breaks}
    monkeypatch.setattr(tasks, "checks", lambda _: result)
    outcome = run.outcome(causes=False, figures=True)
    text = page(outcome, figures_of(run))
    assert text.count("Could not be drawn: ZeroDivisionError: by nothing") == 3
    assert {each.verdict for each in outcome.claims if each.claim.id != "sample.opinion"} == {Verdict.FAILED}


@pytest.mark.parametrize(
    ("name", "what"), [("", "is a folder"), ("p.txt", "does not end in .html or .htm"), ("no/p.html", "folder")]
)
def test_bad_places_are_refused(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=what):
        check_target(tmp_path / name)
    with pytest.raises(InputError, match=what):
        write_page(Run([]), RESULT, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
