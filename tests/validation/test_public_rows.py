"""The published rows that ship, and the rule that selects them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from simgpu.cli.validate_public import public
from simgpu.validation.public.coverage import coverage
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.selection import (
    DIVIDED,
    MIXED,
    MODELLED,
    UNSTATED,
    Reason,
    Subject,
    baselines,
    pairs,
    reasons,
)

SOURCE = Path(__file__).parents[3] / "shared" / "data" / "measured" / "tables.yaml"
ROWS = published_rows()


@pytest.mark.skipif(not SOURCE.exists(), reason="the tables of measurements are not at hand (../shared/data)")
def test_the_rows_say_what_was_published() -> None:
    names = {"length": "seq_len", "memory": "peak_memory", "kind": "memory_kind", "time": "step_time_or_throughput"}
    shipped = json.loads((Path(__file__).parents[2] / "simgpu/validation/public/rows.json").read_text())["rows"]
    published = yaml.load(SOURCE.read_text(), yaml.CSafeLoader)["rows"]
    fields = ("id", "source", "model", "gpu", "gpus", "batch", "precision", "options", *names)
    assert [[row.get(name) for name in fields] for row in shipped] == [
        [row[names.get(name, name)] for name in fields] for row in published
    ]


def test_ids_are_unique_and_groups_have_rows_of_one_model() -> None:
    assert max(Counter(row.id for row in ROWS).values()) == 1
    for group in {row.group for row in ROWS if row.group}:
        assert len({row.config for row in ROWS if row.group == group}) == 1


def test_a_row_has_either_reasons_of_its_own_or_of_simgpu() -> None:
    ours = {Reason.OPTION, Reason.MODEL, Reason.TIMES}
    for row in ROWS:
        for subject in Subject:
            found = set(reasons(row, subject))
            assert found <= ours or not found & ours


def test_the_rule_looks_at_no_measured_value() -> None:
    """Other values of the same kinds do not change what is selected."""
    for row in ROWS:
        other = replace(
            row,
            peaks={kind: 7 * size + 1 for kind, size in row.peaks.items()},
            step_ns=None if row.step_ns is None else 2 * row.step_ns,
            tokens_per_second=None if row.tokens_per_second is None else row.tokens_per_second / 3,
        )
        assert [reasons(row, subject) for subject in Subject] == [reasons(other, subject) for subject in Subject]


def test_a_baseline_has_fewest_options_of_its_group_and_no_baseline() -> None:
    found, rows = baselines(ROWS), {row.id: row for row in ROWS}
    for name, baseline in found.items():
        assert baseline.id not in found and len(baseline.uses) <= len(rows[name].uses)
        assert (baseline.group, baseline.config, baseline.tokens) == (
            rows[name].group,
            rows[name].config,
            rows[name].tokens,
        )
    assert Counter(baseline.id for baseline in found.values()) == {
        "t-148": 6,
        "t-039": 2,
        "t-052": 1,
        "t-088": 1,
        "t-205": 1,
        "t-231": 1,
        "t-237": 1,
    }


def test_pairs_are_ordered_by_the_measured_value_within_a_group() -> None:
    """Of 1, 1.01, 2 and 3 in a group, the first two are not ordered; another group has no part in it."""
    values = {"t-149": 3.0, "t-150": 1.01, "t-151": 1.0, "t-152": 2.0, "t-039": 0.5}
    ordered = {("t-150", "t-152"), ("t-150", "t-149"), ("t-151", "t-152"), ("t-151", "t-149"), ("t-152", "t-149")}
    assert {(smaller.id, larger.id) for smaller, larger in pairs(ROWS, values)} == ordered


def test_comparable_rows_are_those_of_the_first_rule() -> None:
    """What simgpu models grows; which rows are comparable stays. Of several GPUs: those with sizes, of one project."""
    of_one = [row for row in ROWS if row.gpus == 1]
    assert [coverage(of_one, subject).comparable for subject in Subject] == [79, 31]
    divided = [row for row in ROWS if row.project in DIVIDED and row.config is not None]
    assert [coverage(ROWS, subject).comparable for subject in Subject] == [79 + len(divided), 31]


def test_every_option_is_a_word_that_is_known() -> None:
    words = {word for row in ROWS for word in row.uses}
    assert words >= MODELLED and {MIXED, UNSTATED} <= words


def test_the_command_counts_every_row() -> None:
    document = json.loads(CliRunner().invoke(public, ["--json"]).output)
    for part in document["coverage"]:
        assert sum(part["reasons"].values()) + part["covered"] == part["rows"] == len(ROWS)
