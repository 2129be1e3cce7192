"""``simgpu reproduce``: arguments, output, files and exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from simgpu.papers import tasks
from simgpu.papers.checks.results import bars, condition
from simgpu.papers.claims import Claim, select
from tests.cli.cli_helpers import simgpu
from tests.papers.sample_paper import sample_paper


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def reproduce(*arguments: object) -> Result:
    return simgpu("reproduce", *arguments, "-j", 1)


def refused(*arguments: object) -> str:
    done = reproduce(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    return " ".join(done.stderr.split())


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces all papers by a sample paper with some failing claims."""

    def speeds(rate: float = 12.0) -> dict[str, Any]:
        return {"mean": 1.43 - (rate - 12) / 25, "best": 1.2 + (rate - 12) / 5, "link": 11.7, "time": 118.0}

    def rules() -> dict[str, Any]:
        raise RuntimeError("on purpose")

    result: Mapping[str, Any] = {"speeds": speeds, "rules": rules}
    claims = [each for each in sample_paper(figures=[]).claims if not each.id.endswith("missing")]

    def chosen(what: list[str], quick: bool = False) -> tuple[Claim, ...]:
        return tuple(each for each in claims if not what or any(each.id.startswith(word) for word in what))

    monkeypatch.setattr("simgpu.cli.reproduce.select", chosen)
    monkeypatch.setattr(tasks, "checks", lambda _: result)
    monkeypatch.setattr("simgpu.papers.answers.checks", lambda _: result)
    monkeypatch.setattr(tasks, "_source", lambda _: "")


@pytest.mark.slow
def test_a_single_claim_is_shown_in_full() -> None:
    done = reproduce("cdma.sparsity.alexnet")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    (claim,) = select(["cdma.sparsity.alexnet"])
    assert lines[0] == claim.id
    assert [line.split()[0] for line in lines[1 : lines.index("")] if line[:1].strip()] == [
        "states",
        "paper",
        "here",
        "fit",
        "verdict",
    ]
    assert claim.section.states.split()[0] in lines[1] and claim.section.where in done.stdout
    assert "verdict  within 10%" in lines
    assert "simgpu.papers.checks.cdma" in done.stdout
    assert max(map(len, lines)) <= 80


def test_a_single_rule_is_shown_with_its_test() -> None:
    done = reproduce("cdma.batches")
    assert done.exit_code == 0, done.output
    assert "verdict  verified by tests" in done.stdout
    assert "    tests/papers/test_cdma_rules.py::test_batches_are_those_of_table_ii" in done.stdout.splitlines()


@pytest.mark.slow
def test_several_claims_are_shown_as_a_table_and_a_summary() -> None:
    done = reproduce("cdma.batches", "cdma.sparsity.alexnet", "cdma.sparsity.six")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cDMA (") and lines[1].split() == ["claim", "paper", "here", "ratio", "verdict"]
    assert "cdma.sparsity.alexnet" in lines[2] and "cdma.sparsity.six" in done.stdout
    assert ["cdma.batches", "as", "in", "table", "II", "input"] in [line.split() for line in lines]
    assert ["cDMA,", "fitted", "2"] in [line.split()[:3] for line in lines]
    assert any(line.startswith("Numbers and orders one by one") for line in lines)


def test_finished_work_is_cached_until_a_restart(broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reproduce("sample.speed", "-o", "work").exit_code == 0
    monkeypatch.setattr(tasks, "checks", lambda _: {})
    assert reproduce("sample.speed", "-o", "work").exit_code == 0
    assert reproduce("sample.speed", "-o", "work", "--restart").exit_code == 2


def test_causes_are_shown_on_request_and_for_a_single_claim(broken: None) -> None:
    both = ("sample.speed", "sample.half")
    assert "why: link" not in reproduce(*both).stdout
    for message in (reproduce(*both, "--explain"), reproduce("sample.speed")):
        assert message.exit_code == 0
        rows = [line.split() for line in message.stdout.splitlines()]
        assert "why: link" in message.stdout
        assert ["16", "GB/s", "1.27", "2", "within", "10%"] in rows
        assert ["paper", "1.25", "2"] in rows


@pytest.mark.slow
def test_failed_claims_are_reported_with_an_error_status(broken: None) -> None:
    done = reproduce()
    assert done.exit_code == 2
    message = " ".join(done.stderr.split())
    failed = "sample.order, sample.broken, sample.layers, sample.shapes"
    assert f"could not run {failed}: RuntimeError: on purpose" in message
    assert "1 + 4" in done.stdout, "the summary counts them"


def test_json_has_all_claims() -> None:
    done = reproduce("cdma.batches", "cdma.sparsity.alexnet", "--json")
    result = json.loads(done.stdout)
    assert [claim["id"] for claim in result["claims"]] == ["cdma.sparsity.alexnet"]
    assert result["claims"][0]["verdict"] == "within 10%"
    assert [rule["id"] for rule in result["rules"]] == ["cdma.batches"]
    assert result["rules"][0]["parts"][0]["test"].endswith("::test_batches_are_those_of_table_ii")
    assert set(result["counts"]) == {"fitted", "predicted"}
    assert "simgpu" in result and result["recordings"] is None


def test_the_page_contains_causes_and_is_reproducible(broken: None) -> None:
    done = reproduce("sample.speed", "sample.half", "--html", "a.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("written to a.html\n")
    reproduce("sample.speed", "sample.half", "--html", "b.html", "--restart")
    text = Path("a.html").read_text(encoding="utf-8")
    assert "data sheet" in text and 'id="sample.half"' in text
    assert Path("b.html").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_shipped_recordings_are_compared_by_name() -> None:
    done = reproduce("recordings")
    assert done.exit_code == 0, done.output
    assert "resnet20-cifar-cpu" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert json.loads(reproduce("recordings", "--json").stdout)["claims"] == []


def test_bad_input_is_an_error_before_anything_runs() -> None:
    assert "no paper or claim is called 'cdna'; did you mean 'cdma'" in refused("cdna")
    assert "did you mean 'cdma.batches'" in refused("cdma.batch")
    assert "does not end in .html or .htm; use a name that ends in .html" in refused("--html", "page.txt")
    assert "no is not a folder" in refused("--html", "no/page.html").replace(str(Path().absolute()) + "/", "")
    assert "no such folder" in refused("recordings", "--recordings", "nowhere")
    Path("mine").mkdir()
    Path("mine/data.txt").touch()
    assert "simgpu reproduce did not write" in refused("cdma.batches", "-o", "mine")
    assert not list(Path().rglob("*.json"))


def test_a_violated_ordering_is_reported_without_an_error_status(broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"rules": lambda: {"end": condition(False, "case 7"), "least": 2.5, "bars": bars("x", {})}}
    monkeypatch.setattr(tasks, "checks", lambda _: result)
    monkeypatch.setattr("simgpu.papers.answers.checks", lambda _: result)
    done = reproduce("sample.broken")
    assert done.exit_code == 0 and "case 7" in done.stdout


@pytest.mark.slow
def test_without_numba_a_note_warns_that_home_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "claims of HOME take very long without numba"
    assert message not in reproduce("home.pso").stderr
    monkeypatch.setattr("simgpu.cli.reproduce.find_spec", lambda name: None)
    assert message in reproduce("home.pso").stderr
    assert message not in reproduce("cdma.batches").stderr
