"""``simgpu search``: arguments, output and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.search import search_placement
from tests.cli.cli_helpers import make_study, simgpu


def shown(*arguments: object) -> list[str]:
    done = simgpu("search", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def refused(*arguments: object) -> str:
    done = simgpu("search", *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    return " ".join(done.stderr.split())


@pytest.mark.compiles
def test_search_shows_the_convergence_and_result_of_a_scenario() -> None:
    lines = shown("quickstart", "--policy", "home(particles=20, iterations=30)")
    names = [line.split()[0] for line in lines[:12] if line]
    assert names[:4] == ["quickstart", "network", "origin", "node"]
    assert names[4:] == ["home(particles=20,", "feature", "evaluations", "stopped", "predicted", "simulated", "wall"]
    text = "\n".join(lines)
    for heading in ("iteration", "worst", "mean", "best", "share fitting", "action", "overhead", "feature map"):
        assert heading in text
    assert max(map(len, lines)) <= 80


def test_a_zoo_network_has_the_requested_batch() -> None:
    lines = shown("zoo:squeezenet", "--batch", 12, "--node", "2080ti", "--policy", "superneurons")
    assert "batch 12" in lines[1]
    assert "Missing option '--batch'" in refused("zoo:squeezenet", "--node", "2080ti")
    assert "TRACE: 'squeznet' is not in the zoo; did you mean 'squeezenet'" in refused(
        "zoo:squeznet", "--batch", 2, "--node", "2080ti"
    )


def test_a_trace_of_another_batch_needs_a_node(tmp_path: Path) -> None:
    make_study(tmp_path)
    assert "batch 3" in shown(tmp_path / "chain", "--batch", 3, "--node", tmp_path / "node.yaml")[1]
    assert "Missing option '--node'" in refused(tmp_path / "chain")


def test_every_requested_policy_has_its_own_section() -> None:
    lines = shown("quickstart", "--policy", "superneurons", "--policy", "home(particles=20, iterations=2)")
    assert "superneurons" in lines and "home(particles=20, iterations=2)" in lines
    assert any("after iteration 2: the limit" in line for line in lines)
    message = refused("quickstart", "--policy", "vdnn")
    assert "policy vdnn does not decide about one feature map at a time; choose home" in message
    assert "choose home, superneurons, capuchin(version=home) or joint" in message
    assert "--policy: unknown policy 'hme'" in refused("resnet20-cifar-cpu", "--node", "laptop-2gb", "--policy", "hme")


@pytest.mark.slow
def test_json_has_all_results_and_a_separate_wall_time() -> None:
    done = simgpu("search", "quickstart", "--json", "--seed", 5, "--budget", "39 MiB")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    scenario = load_scenario("quickstart")
    result = search_placement(scenario.trace, scenario.node, "home", budget="39 MiB", seed=5)
    assert document["searches"] == json.loads(json.dumps([result.to_dict()]))
    assert document["budget_bytes"] == 39 * 2**20
    assert set(document["wall_clock"][0]) == {"planning_s", "evaluation_s", "threads"}


def test_written_files_do_not_contain_wall_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = shown("quickstart", "-o", out, "--policy", "home(particles=20, iterations=3)")
    assert lines[-1] == f"written to {out}"
    assert {path.name for path in out.rglob("*.*")} == {
        "report.json",
        "placement.csv",
        "convergence.csv",
        "convergence.png",
    }
    assert "wall_clock" not in json.loads((out / "report.json").read_text())
    assert len((out / "home-particles-20-iterations-3" / "convergence.csv").read_text().splitlines()) == 4


def test_a_foreign_output_folder_is_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr("simgpu.cli.search.search_placement", lambda *given, **more: pytest.fail("searched"))
    assert "contains files that are not from an earlier search" in refused("quickstart", "-o", tmp_path)


def test_all_policies_are_checked_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgpu.cli.search.search_placement", lambda *given, **more: pytest.fail("searched"))
    message = refused("quickstart", *(f"--policy={each}" for each in ("home", "vdnn", "home(particles=0)")))
    assert "policy vdnn does not decide about one feature map" in message
    assert "policy home(particles=0): particles: 0 is less than 1" in message


@pytest.mark.slow
def test_a_search_without_a_curve_prints_a_note(tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = shown(
        "quickstart", "--policy", "joint(evaluations=5000, lower_bound=false)", "--budget", "15 MiB", "-o", out
    )
    assert any(re.fullmatch(" +convergence +none: the search uses no swarm", line) for line in lines)
    assert {path.name for path in out.rglob("*.*")} == {"report.json", "placement.csv"}


def test_a_search_without_a_fit_exits_with_3_and_names_the_shortage() -> None:
    done = simgpu("search", "quickstart", "--budget", "3 MiB", "--policy", "superneurons")
    assert done.exit_code == 3
    assert "no placement fits; the best lacks" in done.stdout
    assert "out of device memory" in done.stderr


def test_the_exit_code_is_0_if_one_of_several_policies_fits() -> None:
    done = simgpu("search", "quickstart", "--budget", "15 MiB", "--policy", "superneurons", "--policy", "capuchin")
    assert done.exit_code == 0
    assert "\nsuperneurons: out of device memory" in done.stderr
    assert "capuchin: " not in done.stderr


def test_bytes_are_counted_whatever_the_scenarios_pool() -> None:
    """Also for a budget in percent: a part of the counted peak, not of what an allocator reserves."""
    plain = simgpu("search", "resnet20-addressed", "--budget", "60%", "--policy", "superneurons", "-q")
    assert "49.51 MiB" in plain.stdout  # with addresses it is 50.17 MiB
    refused = simgpu("search", "quickstart", "--set", "pool=caching", "-q")
    assert refused.exit_code == 2
    assert "search counts bytes, without an allocator: leave out --set pool=caching." in refused.stderr
