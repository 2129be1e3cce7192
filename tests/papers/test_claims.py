"""The list of claims is the papers': as many, with the same values, and each is simulated or says why not."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.errors import InputError
from simgpu.papers.answers import tasks_of
from simgpu.papers.claims import PAPERS, Claim, load_papers, read_paper, select
from simgpu.papers.claims_file import SCHEMA, PartSection
from simgpu.papers.tasks import Cell, Check, Memory, checks, outlined
from tests.papers.published import flat

#: The list that the claims of `simgpu.papers` follow; it is not part of the repository.
CLAIMS = Path(__file__).parents[3] / "shared" / "claims.yaml"

ALL = select([])
ROOT = Path(__file__).parents[2]
TEST = "tests/papers/test_a.py::test_b"
IDS = [claim.id for claim in ALL]


@pytest.fixture(scope="module")
def listed() -> dict[str, dict[str, Any]]:
    """By id, a row of the list of the papers' claims."""
    if not CLAIMS.exists():
        pytest.skip("the papers' claims are not next to the repository (../shared/claims.yaml)")
    document = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return {row["id"]: row for rows in document.values() if isinstance(rows, list) for row in rows}


def test_there_are_116_claims_of_five_papers() -> None:
    assert [paper.key for paper in load_papers()] == list(PAPERS)
    assert len(ALL) == len(set(IDS)) == 116


@pytest.mark.slow
def test_the_claims_are_those_of_the_list(listed: dict[str, dict[str, Any]]) -> None:
    assert sorted(IDS) == sorted(listed)


@pytest.mark.parametrize("claim", ALL, ids=IDS)
def test_values_and_kind_are_those_that_are_listed(claim: Claim, listed: dict[str, dict[str, Any]]) -> None:
    row = listed[claim.id]
    simulated = [each for part in claim.parts for each in flat(part.value)]
    if "value" in row:
        assert [str(each) if isinstance(each, str | list) else float(each) for each in simulated] == [
            str(each) if isinstance(each, str | list) else float(each) for each in flat(row["value"])
        ]
    else:
        # Some numbers are listed as text alone.
        assert all(str(each) in row["setup"] for each in simulated)
    assert claim.kind == (row["how"] if row["how"] in ("rule", "order") else "number")
    assert claim.section.inferred == row.get("inferred", False)
    assert claim.section.unit == row.get("unit", "")
    bounded = "bound" in row["how"] if isinstance(row["how"], list) else row["how"] == "bound"
    assert not bounded or any(part.comparison in ("at_most", "at_least") for part in claim.parts)


@pytest.mark.parametrize("claim", ALL, ids=IDS)
def test_sources_of_claims_exist(claim: Claim) -> None:
    for part in claim.parts:
        assert len(claim.parts) == 1 or part.name
        needed = list(tasks_of(claim, part))
        assert bool(needed) != bool(part.cannot or part.test)
        for task in needed:
            if isinstance(task, Check):
                assert task.name in checks(task.paper)
            else:
                assert isinstance(task, Cell | Memory)
                assert task.trace in outlined(task.study, task.changes).traces


def named_tests() -> dict[str, list[PartSection]]:
    """The parts of rules by the test that holds them."""
    parts: dict[str, list[PartSection]] = {}
    for claim in ALL:
        for part in claim.parts:
            if part.test is not None:
                parts.setdefault(part.test, []).append(part)
    return parts


def marks_of(test: object) -> dict[str, pytest.Mark]:
    return {mark.name: mark for mark in getattr(test, "pytestmark", [])}


def rule_tests() -> dict[str, object]:
    """Every test below tests/papers with the mark `rule`, by its id."""
    return {
        f"tests/papers/{path.name}::{name}": test
        for path in Path(__file__).parent.glob("test_*.py")
        for name, test in vars(import_module(f"tests.papers.{path.stem}")).items()
        if name.startswith("test_") and "rule" in marks_of(test)
    }


def test_every_rule_names_a_test_and_every_test_of_a_rule_is_named() -> None:
    assert sorted(named_tests()) == sorted(rule_tests())


def test_a_rule_is_broken_where_its_test_is_an_expected_failure() -> None:
    """Expected failures are strict: where a broken rule comes to hold, its test fails."""
    broken = {test for test, parts in named_tests().items() if any(part.broken for part in parts)}
    assert {id_ for id_, test in rule_tests().items() if "xfail" in marks_of(test)} == broken
    assert all("skip" not in marks_of(test) and "skipif" not in marks_of(test) for test in rule_tests().values())


@pytest.mark.slow
def test_pytest_collects_the_tests_of_rules() -> None:
    command = [
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-m",
        "rule",
        "tests/papers",
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line} == set(named_tests())


def test_a_file_of_the_first_version_is_refused_with_the_new_key(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("schema: simgpu.claims/1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"write 'test: tests/papers/FILE.py::NAME' in place of 'from'"):
        read_paper(path, "cdma")


@pytest.mark.parametrize(
    ("claim", "what"),
    [
        ({"kind": "rule", "parts": [{"from": "zvc.stream"}]}, "each part of a rule must name its test"),
        ({"kind": "rule", "parts": [{"test": TEST}], "quick": True}, "leave out causes and quick"),
        ({"parts": [{"test": TEST}]}, "test applies only to rules, and this is kind: number"),
    ],
)
def test_rules_alone_name_tests(claim: dict[str, Any], what: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    document = {"schema": SCHEMA, "paper": "P", "source": "S", "claims": {"a": {"where": "1", "states": "b", **claim}}}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InputError, match=what):
        read_paper(path, "p")


def test_parts_of_a_claim_have_names_of_their_own() -> None:
    for claim in ALL:
        names = [part.name for part in claim.parts]
        assert len(names) == len(set(names))


def test_traces_excluded_by_claims_exist() -> None:
    for claim in ALL:
        for part in claim.parts:
            if part.from_ is None or isinstance(part.from_, str):
                continue
            labels = {
                label
                for name in part.from_.study
                for study in [outlined(name, "{}")]
                for label in (*study.traces, *study.networks)
            }
            assert labels.issuperset(part.from_.without)


def test_claims_are_selected_by_paper_prefix_and_id() -> None:
    assert len(select(["cdma"])) == 20
    assert [claim.id for claim in select(["cdma.dram", "cdma.gain"])] == [
        "cdma.gain.maxwell",
        "cdma.gain.pascal",
        "cdma.gain.zlib",
        "cdma.dram",
    ]
    assert all(claim.section.quick or claim.is_rule for claim in select([], quick=True))
    assert {claim.id for claim in ALL if claim.is_rule} <= {claim.id for claim in select([], quick=True)}


def test_all_unknown_names_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        select(["cdmo", "cdma.gains", "home"])
    first, second = str(caught.value).splitlines()
    assert first == "no paper or claim is called 'cdmo'; did you mean 'cdma'? known: buddy, cdma, cswap, home, modnn"
    assert second.startswith("no paper or claim is called 'cdma.gains'; did you mean 'cdma.gain.")
