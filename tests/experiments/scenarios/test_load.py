"""Scenarios: a valid one is loaded; all mistakes in it and in its files are reported together."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.experiments.scenarios.catalogue import shipped_scenarios
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.scenarios.model import PolicyChoice
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace

GOOD = """\
schema: simgpu.scenario/2
name: try
trace: chain
node: laptop-2gb
policies: [ideal, vdnn: {mode: conv}]
"""


def scenario_file(folder: Path, text: str) -> Path:
    if not (folder / "chain").exists():
        write_trace(chain([5, 7], [10, 14], [100, 200]), folder / "chain")
    path = folder / "try.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [str(problem).replace(str(path.parent) + "/", "") for problem in caught.value.problems]


def test_a_scenario_is_loaded_with_its_defaults(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path, GOOD))
    assert [kernel.id for kernel in scenario.trace.kernels] == ["F1", "F2", "B2", "B1"]
    assert scenario.node.name == "laptop-2gb"
    assert scenario.policies == (PolicyChoice("ideal", {}), PolicyChoice("vdnn", {"mode": "conv"}))
    assert (scenario.budget, scenario.iterations, scenario.seed) == (None, 3, 0)
    assert (scenario.pool, scenario.alignment, scenario.outputs.folder) == (None, None, None)


def test_the_default_name_of_a_scenario_is_that_of_its_file(tmp_path: Path) -> None:
    assert load_scenario(scenario_file(tmp_path, GOOD.replace("name: try\n", ""))).name == "try"
    assert problems_of(scenario_file(tmp_path, GOOD.replace("name: try\n", "name: ''\n")))


def test_explicit_default_parameters_of_a_policy_change_nothing(tmp_path: Path) -> None:
    text = GOOD.replace("[ideal, vdnn: {mode: conv}]", "[vdnn, vdnn: {mode: all}]")
    (message,) = problems_of(scenario_file(tmp_path, text))
    assert "policies[1]: vdnn is given twice; keep one of them" in message


def test_parameters_may_be_written_as_in_tables(tmp_path: Path) -> None:
    text = GOOD.replace("[ideal, vdnn: {mode: conv}]", "[ideal, vdnn(mode=conv)]")
    assert load_scenario(scenario_file(tmp_path, text)).policies[1] == PolicyChoice("vdnn", {"mode": "conv"})


def test_repr_fits_one_screen(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path, GOOD + "budget: 1 MiB\n"))
    lines = repr(scenario).splitlines()
    assert lines[0].split() == ["scenario", "try"]
    assert "origin      modelled, not recorded, for hand-made, by simgpu.trace.chain" in lines
    assert "policies    ideal, vdnn(mode=conv)" in lines
    assert "budget      1 MiB" in lines
    assert max(map(len, lines)) <= 100
    assert scenario._repr_html_().count("<tr>") == len(lines)
    assert repr(scenario.trace).splitlines()[0] == "trace   chain, batch 1, float32; 4 kernels, 36 ns of compute"
    assert scenario.trace._repr_html_().startswith("<pre>trace ")


def test_a_single_policy_needs_no_list(tmp_path: Path) -> None:
    text = GOOD.replace("[ideal, vdnn: {mode: conv}]", "none")
    assert load_scenario(scenario_file(tmp_path, text)).policies == (PolicyChoice("none", {}),)


def test_a_command_line_override_has_priority_over_the_file(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, GOOD + "budget: 1 MiB\noverrides:\n  node.gpu.memory: 1 GiB\n")
    assert load_scenario(path).node.budget == 2**30
    changed = load_scenario(path, {"node.gpu.memory": "4 GiB", "budget": "3 GiB", "outputs.folder": "here"})
    assert (changed.node.budget, changed.budget, changed.outputs.folder) == (4 * 2**30, 3 * 2**30, Path("here"))


def test_paths_are_relative_to_the_file_and_in_overrides_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scenario_file(tmp_path, GOOD)
    others = tmp_path / "elsewhere"
    others.mkdir()
    write_trace(chain([1], [1], [1]), others / "short")
    monkeypatch.chdir(others)
    assert len(load_scenario(path).trace.kernels) == 4
    assert len(load_scenario(path, {"trace": "short"}).trace.kernels) == 2


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        "schema: simgpu.node/1\nname: n\ngpu: {name: g, memory: 8}\n"
        "link: {kind: k, d2h_bandwidth: -1 GB/s, h2d_bandwidth: 1 GB/s}\n",
        encoding="utf-8",
    )
    text = """\
schema: simgpu.scenario/2
name: try
trace: chian
node: node.yaml
overrides:
  node.link.dupplex: half
  budget: 1 GiB
policies: [nune, vdnn: {mod: all}, vdnn: {mode: cnv}, ideal, ideal, 5]
polices: none
iterations: 0
pool: heap
budget: 3
outputs: {timeline: [cvs]}
"""
    message = "\n".join(problems_of(scenario_file(tmp_path, text)))
    for expected in (
        "try.yaml: line 12, budget: 3 has no unit",
        "try.yaml: line 8, policies[5]: 5 is not a policy: write a name, or 'name: {parameter: value}'",
        "try.yaml: line 10, iterations: 0 is too small; write at least 1",
        "try.yaml: line 11, pool: 'heap' is not one of the choices; known: addressed, caching, counting",
        "try.yaml: line 13, outputs.timeline[0]: 'cvs' is not one of the choices; did you mean 'csv'? "
        "known: csv, parquet, perfetto",
        "try.yaml: line 9, polices: unknown key; did you mean 'policies'?",
        "try.yaml: line 7, overrides.budget: is not a key of the node",
        "node.yaml: line 3, gpu.memory: 8 has no unit",
        "node.yaml: line 4, link.d2h_bandwidth: '-1 GB/s' is negative",
        "try.yaml: line 6, overrides.node.link.dupplex: unknown key; did you mean 'duplex'?",
        "try.yaml: line 3, trace: no shipped trace is called 'chian'",
        "try.yaml: line 8, policies[0]: unknown policy 'nune'; did you mean 'none'?",
        "try.yaml: line 8, policies[1].vdnn.mod: policy 'vdnn' has no such parameter; did you mean 'mode'?",
        "try.yaml: line 8, policies[2].vdnn.mode: 'cnv'",
        "try.yaml: line 8, policies[4]: ideal is given twice; keep one of them",
    ):
        assert expected in message
    assert len(message.splitlines()) == 15


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"iteration": 4}, "override: iteration: unknown key; did you mean 'iterations'?"),
        ({"seed": "one"}, "override: seed: 'one' is not a whole number; write digits only, without quotes"),
        ({"node.gpu.memory": 8}, "override: node.gpu.memory: 8 has no unit"),
        ({"gpu.memory": "1 GiB"}, "override: gpu.memory: unknown key; did you mean 'node.gpu.memory'?"),
        ({"node": "laptop-2bg"}, "override: node: no shipped node is called 'laptop-2bg'; did you mean 'laptop-2gb'?"),
        ({"policies": "vdn"}, "override: policies: unknown policy 'vdn'; did you mean 'vdnn'?"),
        ({"policies": {"vdnn": {"mode": 5}}}, "override: policies.vdnn.mode: 5"),
        ({"policies": []}, "override: policies: [] is too short; write at least 1"),
        ({"outputs.image": "gif"}, "override: outputs.image: 'gif' is not one of the choices; known: pdf, png, svg"),
        ({"budget": "3 GiB"}, "override: budget: 3 GiB is more than the 2 GiB that node laptop-2gb has; lower it, or"),
        ({"trace": 5}, "override: trace: 5 is neither a name"),
    ],
)
def test_a_bad_override_is_reported_as_an_override(tmp_path: Path, overrides: dict[str, object], expected: str) -> None:
    (message,) = problems_of(scenario_file(tmp_path, GOOD), overrides)
    assert message.startswith(expected)


def test_missing_keys_and_an_unknown_schema_are_reported(tmp_path: Path) -> None:
    message = problems_of(scenario_file(tmp_path, "schema: simgpu.scenario/2\n"))
    assert message == [f"try.yaml: {key}: is missing; add it" for key in ("trace", "node", "policies")]
    (version_message,) = problems_of(scenario_file(tmp_path, GOOD.replace("scenario/2", "scenario/3")))
    assert version_message == (
        "try.yaml: line 1, schema: 'simgpu.scenario/3' is another version; this simgpu reads version 2; "
        "write 'schema: simgpu.scenario/2'"
    )


@pytest.mark.parametrize("name", shipped_scenarios())
def test_shipped_scenarios_load_and_have_their_file_names(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description


def test_a_budget_in_percent_is_in_bytes_once_loaded(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path, GOOD + "budget: 75%\n"), {"alignment": "100 B"})
    assert (scenario.budget, scenario.available) == (225, 225)
    assert "225 B (75% of the peak without offloading, 300 B)" in repr(scenario)


def test_mistakes_of_a_budget_in_percent_name_file_and_line(tmp_path: Path) -> None:
    (message,) = problems_of(scenario_file(tmp_path, GOOD + "budget: 0%\n"))
    assert message == "try.yaml: line 6, budget: '0%' is not a percentage above 0%: write for example '50%'"
    (message,) = problems_of(scenario_file(tmp_path, GOOD + "budget: 1000000000%\n"))
    expected = "budget: 1000000000% (2.794 GiB) is more than the 2 GiB that node laptop-2gb has; lower it, or raise"
    assert message.startswith(f"try.yaml: line 6, {expected}")
