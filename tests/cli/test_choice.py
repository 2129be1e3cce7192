"""A trace and a node named by options in place of a scenario: the same run, and messages that name the option."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NAMED = ["--trace", "chain", "--node", "node.yaml"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_options_give_the_same_run_as_a_scenario_with_the_same_values(here: Path) -> None:
    changed = ["--set", "budget=700 kB", "--set", "policies=[ideal, vdnn: {mode: conv}]"]
    assert simgpu("run", "study.yaml", *changed, "-o", "by-file").exit_code == 0
    options = ["--memory", "700 kB", "--policy", "ideal", "--policy", "vdnn: {mode: conv}"]
    done = simgpu("run", *NAMED, *options, "-o", "by-options")
    assert done.exit_code == 0, done.stderr
    by_file, by_options = files(here / "by-file"), files(here / "by-options")
    first, second = (json.loads(result.pop("report.json")) for result in (by_file, by_options))
    assert by_file == by_options
    assert (second.pop("scenario"), second.pop("description")) == ("chain on node", "given on the command line")
    assert (first.pop("scenario"), first.pop("description")) == ("study", "a hand-made chain")
    assert first == second
    assert first["results"][1]["budget_bytes"] == 700_000


@pytest.mark.parametrize(
    ("command", "shown", "other"),
    [
        (["run", *NAMED, "--policy", "vdnn"], "--memory", "--budget"),
        (["compare", *NAMED, "--policy", "vdnn"], "--memory", "--budget"),
        (["search", "study.yaml", "--policy", "superneurons"], "--budget", "--memory"),
        (["max-batch", "study.yaml", "--policy", "none"], "--budget", "--memory"),
        (["memory-bound", "study.yaml"], "--budget", "--memory"),
    ],
)
def test_memory_and_budget_are_the_same_option(command: list[str], shown: str, other: str) -> None:
    first, second = (simgpu(*command, "--json", option, "2 MiB") for option in (shown, other))
    assert first.exit_code == second.exit_code == 0, first.stderr + second.stderr
    documents = [json.loads(done.stdout) for done in (first, second)]
    for document in documents:
        document.pop("wall_clock", None)
    assert documents[0] == documents[1]
    assert re.search(r'"budget(_bytes)?": 2097152\b', second.stdout)
    message = simgpu(command[0], "--help").stdout
    assert f"\n  {shown} SIZE " in message and f"{other} SIZE" not in message


def test_the_defaults_are_all_memory_and_the_usual_policies() -> None:
    results = json.loads(simgpu("compare", *NAMED, "--json").stdout)["results"]
    assert [result["label"] for result in results] == ["ideal", "none", "vdnn"]
    assert {result["budget_bytes"] for result in results} == {8 * 2**30}
    assert {result["iterations"] for result in results} == {3}


def test_the_header_names_the_source() -> None:
    lines = simgpu("run", *NAMED, "--set", "iterations=2").stdout.splitlines()
    assert lines[:2] == ["chain on node", "about   given on the command line"]
    assert any(line.startswith("run     2 iterations") for line in lines)


def test_problems_are_reported_together_at_their_options() -> None:
    done = simgpu(
        *("run", "--trace", "chian", "--node", "v10", "--memory", "8"),
        *("--policy", "vdn", "--policy", "vdnn: {mode: some}", "--policy", "[", "--policy", "vdnn:mode=conv"),
        *("--set", "seed=-1"),
    )
    assert done.exit_code == 2
    message = done.stderr.splitlines()
    for start in (
        "Error: --trace: no shipped trace is called 'chian'",
        "Error: --node: no shipped node is called 'v10'; did you mean 'v100'?",
        "Error: --budget (--memory): '8' has no unit",
        "Error: --policy: unknown policy 'vdn'; did you mean 'vdnn'?",
        "Error: --policy vdnn.mode: 'some': should be 'all', 'conv' or 'dynamic'",
        "Error: --policy: unknown policy '['",
        "Error: --policy: unknown policy 'vdnn:mode=conv'; write parameters as in 'vdnn(parameter=value)'; simgpu list",
        "Error: override: seed: -1 is too small",
    ):
        assert sum(line.startswith(start) for line in message) == 1, start
    assert len(message) == 8
    done = simgpu("run", *NAMED, "--memory", "9 GiB")
    assert done.stderr.startswith("Error: --budget (--memory): 9 GiB is more than the 8 GiB that node bench has")


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'SCENARIO': give a scenario, or --trace and --node."),
        (["--trace", "chain"], "Missing option '--node': --trace needs it."),
        (["--node", "v100"], "Missing option '--trace': --node needs it."),
        (["study.yaml", "--node", "v100"], "or change the scenario with --set node=v100."),
        (["study.yaml", *NAMED], "--trace replaces SCENARIO, but study.yaml is given too: leave out one of them"),
        (
            ["study.yaml", "--policy", "vdnn"],
            "--policy needs --trace and --node; for scenario study.yaml write --set pol",
        ),
        (
            ["study.yaml", "--memory", "8 GiB"],
            "--budget (--memory) needs --trace and --node; for scenario study.yaml write --set bud",
        ),
    ],
)
def test_conflicting_arguments_are_refused(command: str, arguments: list[str], message: str) -> None:
    done = simgpu(command, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not done.stdout


def test_policy_names_are_never_wrapped() -> None:
    requested = ["ideal", "none", "vdnn", "vdnn: {mode: conv}", "vdnn: {algorithms: smallest}"]
    requested += ["vdnn: {mode: conv, algorithms: smallest}", "vdnn: {mode: dynamic}"]
    for count in range(1, len(requested) + 1):
        policies = [part for policy in requested[:count] for part in ("--policy", policy)]
        shown = simgpu("compare", *NAMED, *policies).stdout
        assert max(map(len, shown.splitlines())) <= 80
        table = shown.partition("policy ")[2].partition("\n\n")[0].splitlines()[1:]
        names = [line for line in table if not line.startswith(" ")]
        labels = ["ideal", "none", "vdnn", "vdnn(mode=conv)", "vdnn(algorithms=smallest)"]
        labels += ["vdnn(mode=conv, algorithms=smallest)", "vdnn(mode=dynamic)"]
        for line, label in zip(names, labels[:count], strict=True):
            assert line == label or line.startswith(f"{label} ")
        assert len([line for line in table if re.search(r" [0-9.]+ (us|ms) .* [KM]iB$", line)]) == count
