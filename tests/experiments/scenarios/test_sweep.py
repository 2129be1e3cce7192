"""Sweeps: points are generated in order, and all mistakes in the block are reported before anything runs."""

from __future__ import annotations

import pickle
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.load_sweep import load_sweep, make_sweep
from simgpu.experiments.scenarios.sweep_axes import SweepSection, axes_of, count_of, steps_of
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace

BASE = """\
schema: simgpu.scenario/2
trace: chain
node: laptop-2gb
policies: [none, vdnn]
"""


def sweep_file(folder: Path, block: str, base: str = BASE) -> Path:
    if not (folder / "chain").exists():
        write_trace(chain([5, 7], [10, 14], [100, 200]), folder / "chain")
    path = folder / "try.yaml"
    path.write_text(base + block, encoding="utf-8")
    return path


def problems_of(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_sweep(path, overrides)
    return [str(problem).replace(f"{path}: ", "") for problem in caught.value.problems]


LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(LENGTHS)
def test_points_are_all_combinations_with_the_last_axis_fastest(lengths: list[int]) -> None:
    axes = axes_of(SweepSection(grid={f"seed{n}": list(range(length)) for n, length in enumerate(lengths)}))
    count = count_of(axes)
    points = [steps_of(axes, point) for point in range(count)]
    assert count == prod(lengths) == len(set(points))
    assert points == sorted(points), "the first axis is the slowest"
    assert all(0 <= step < length for point in points for step, length in zip(point, lengths, strict=True))
    with pytest.raises(IndexError):
        steps_of(axes, count)


def test_a_huge_sweep_is_not_expanded(tmp_path: Path) -> None:
    paths = ["seed", "epoch", "iterations", "node.gpu.copy_engines"]
    values = [list(range(1, 1001)), list(range(1000)), list(range(1, 1001)), [1, 2]]
    sweep = make_sweep(
        {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none"}
        | {"sweep": {"grid": dict(zip(paths, values, strict=True))}},
        "a test",
    )
    assert sweep.count == 2_000_000_000
    assert sweep.values(1_234_567_891) == {"seed": 618, "epoch": 283, "iterations": 946, "node.gpu.copy_engines": 2}
    assert len(pickle.dumps(sweep)) < 100_000


def test_grid_zip_and_points_are_combined_in_this_order(tmp_path: Path) -> None:
    block = """\
sweep:
  grid:
    budget: [1 MiB, 2 MiB]
    policies[1].vdnn.mode: [conv, all]
  zip:
    - {node: [v100, k40], node.link.d2h_bandwidth: [10 GB/s, 8 GB/s]}
  points:
    - {seed: 1}
    - {seed: 2, iterations: 5}
"""
    sweep = load_sweep(sweep_file(tmp_path, block))
    assert sweep.count == 16
    assert sweep.values(0) == {
        "budget": "1 MiB",
        "policies[1].vdnn.mode": "conv",
        "node": "v100",
        "node.link.d2h_bandwidth": "10 GB/s",
        "seed": 1,
    }
    scenario = sweep.scenario(15)
    assert (scenario.budget, scenario.seed, scenario.iterations) == (2 * 2**20, 2, 5)
    assert scenario.policies[1] == ("vdnn", {"mode": "all"})
    assert (scenario.node.link.d2h_bandwidth, scenario.node.gpu.name) == (8 * 10**9, "Tesla K40")
    assert sweep.scenario(14).iterations == 3, "a point that leaves a path out has the file's own value"


def test_points_that_share_loaded_files_equal_points_loaded_alone(tmp_path: Path) -> None:
    block = "sweep:\n  grid:\n    trace: [chain, {zoo: resnet20, batch: 4}]\n    node: [k40, v100]\n    seed: [1, 2]\n"
    sweep = load_sweep(sweep_file(tmp_path, block))
    points = sweep.points()
    together = [points.scenario(point) for point in range(sweep.count)]
    assert together == [sweep.scenario(point) for point in range(sweep.count)]
    assert together[0].trace is together[1].trace is together[2].trace
    assert together[4].trace is together[5].trace is not together[6].trace, "modelled anew for another GPU"


def test_sweep_paths_are_relative_to_the_file_and_in_overrides_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweep_file(tmp_path, "sweep:\n  grid:\n    trace: [chain, ./chain]\n")
    others = tmp_path / "elsewhere"
    others.mkdir()
    monkeypatch.chdir(others)
    assert load_sweep(path).scenario(1).trace.name == "chain"
    assert "no such folder" in problems_of(path, {"sweep.grid.trace": ["./chain"]})[0]
    write_trace(chain([5], [10], [100]), others / "chain")
    sweep = load_sweep(path, {"sweep.grid.trace": ["./chain"]})
    monkeypatch.chdir(tmp_path)
    assert len(sweep.scenario(0).trace.kernels) == 2, "where the sweep was loaded, not where it runs"


def test_a_scenario_may_omit_values_given_by_its_sweep(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, "sweep:\n  grid: {trace: [chain]}\n", BASE.replace("trace: chain\n", ""))
    assert load_sweep(path).scenario(0).trace.name == "chain"
    with pytest.raises(InputError, match=r"trace: is missing; add it, or run the sweep: simgpu sweep .*try\.yaml"):
        load_scenario(path)


def test_a_scenario_with_a_sweep_runs_without_it_and_prints_a_note(tmp_path: Path) -> None:
    scenario = load_scenario(sweep_file(tmp_path, "sweep:\n  grid: {seed: [1, 2, 3]}\n"))
    assert scenario.seed == 0
    assert dict(scenario.facts())["sweep"].startswith("3 points, run by: simgpu sweep ")


def test_the_sweep_can_be_overridden(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, "sweep:\n  grid: {seed: [1, 2, 3], node.gpu.memory: [1 GiB, 2 GiB]}\n")
    assert load_sweep(path, {"sweep.grid.seed": [7]}).count == 2
    assert load_sweep(path, {"sweep.grid.node.gpu.memory": None}).paths == ("seed",)
    assert load_sweep(path, {"sweep.points": [{"epoch": 1}, {"epoch": 2}]}).count == 12
    assert load_sweep(path, {"iterations": 5}).scenario(0).iterations == 5
    (message,) = problems_of(path, {"seed": 4})
    assert "it is also set by an override; keep one of them" in message
    (message,) = problems_of(path, {"sweep.grid.seed": ["x"]})
    assert message == "override: seed: 'x' is not a whole number; write digits only, without quotes"


def test_all_mistakes_of_the_sweep_are_reported_with_their_lines(tmp_path: Path) -> None:
    block = """\
sweep:
  grid:
    budget: [4 MiB, 6 GB8]
    policies[1].vdnn.mode: [conv, al]
    policies[0].vdnn.mode: [conv]
    policies[7]: [home]
    nod.gpu.memory: [1 GiB]
    gpu.memory: [1 GiB]
    node.gpu.memry: [1 GiB]
    node: [v100, v10]
    trace: [chain, {zoo: vgg61, batch: 64}, nope]
    trace.batch: [3]
    iterations: [0, 3]
    outputs.folder: [here]
  zip:
    - {epoch: [1, 2], pool: [counting]}
  points:
    - {seed: 1, epoch: 3}
"""
    message = problems_of(sweep_file(tmp_path, block))
    starts = [
        "line 20, sweep.zip[0]: its values vary together, but epoch has 2, pool has 1; give the same number of each",
        "line 9, sweep.grid.policies[0].vdnn.mode: that policy is none, not vdnn;",
        "line 10, sweep.grid.policies[7]: there is no entry 7: the scenario has 2, counted from 0;",
        "line 11, sweep.grid.nod.gpu.memory: unknown key; did you mean 'node'?",
        "line 12, sweep.grid.gpu.memory: unknown key; did you mean 'node.gpu.memory'?",
        "line 16, sweep.grid.trace.batch: the key that contains it is also varied at sweep.grid.trace; keep one of",
        "line 18, sweep.grid.outputs.folder: cannot be varied: it does not change results; remove it",
        "line 22, sweep.points[0].epoch: it is also varied at sweep.zip[0].epoch; keep one of them",
        "line 13, overrides.node.gpu.memry: unknown key; did you mean 'memory'?",
        "line 7, budget: '6 GB8' is not a size",
        "line 17, iterations: 0 is too small; write at least 1",
        "line 8, policies[1].vdnn.mode: 'al': should be 'all', 'conv' or 'dynamic'",
        "line 14, node: no shipped node is called 'v10'; did you mean 'v100'?",
        "line 15, trace.zoo: 'vgg61' is not in the zoo; did you mean 'vgg16'?",
        "line 15, trace: no shipped trace is called 'nope'",
    ]
    missing = [start for start in starts if not any(text.startswith(start) for text in message)]
    assert not missing
    assert len(message) == len(starts)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("sweep:\n  grid: {seed: []}\n", "line 6, sweep.grid.seed: [] is too short; write at least 1"),
        (
            "sweep:\n  grid: {seed: 3}\n",
            "line 6, sweep.grid.seed: 3 is not a list; write [a, b], or '- ' before each entry",
        ),
        ("sweep: {}\n", "line 5, sweep: has no grid, zip or points; write for example"),
        ("sweep:\n  pints: [{seed: 1}]\n", "line 6, sweep.pints: unknown key; did you mean 'points'?"),
        ("sweep:\n  zip: [{}]\n", "line 6, sweep.zip[0]: {} is too short; write at least 1"),
        (
            "sweep:\n  grid: {budget.x: [1]}\n",
            "line 6, sweep.grid.budget.x: budget has no subkeys; vary budget itself",
        ),
        (
            "outputs: {plots: [nice]}\nsweep:\n  grid: {seed: [1]}\n",
            "line 5, outputs.plots[0]: 'nice' is not one of the",
        ),
        ("", "has no sweep; write a block 'sweep:' (scenarios/README.md), or use: simgpu run "),
    ],
)
def test_an_invalid_sweep_is_refused(tmp_path: Path, block: str, message: str) -> None:
    assert any(text.startswith(message) for text in problems_of(sweep_file(tmp_path, block)))


@pytest.mark.parametrize("axis", ["grid: {trace.batch: [16, 32]}", "points: [{trace.batch: 16}]"])
def test_varying_the_batch_of_a_named_trace_is_refused_with_a_remedy(tmp_path: Path, axis: str) -> None:
    (message,) = problems_of(sweep_file(tmp_path, f"sweep:\n  {axis}\n"))
    assert (
        "trace.batch: the trace 'chain' is given by its name and has one batch; trace.batch applies to a network"
        in message
    )
    assert "'traces: {LABEL: {trace: chain, batches: [16, 32]}}' (simgpu study)" in message
    assert "trace: {zoo: NETWORK, batch: N}" in message


def test_a_key_inside_a_trace_given_by_name_is_refused() -> None:
    for load, changes, key in (
        (load_scenario, {"trace.batch": 16}, "trace.batch"),
        (load_scenario, {"trace.input": "cifar10"}, "trace.input"),
        (load_study, {"traces": {"cg": "hpc-cg"}, "published": [], "traces.cg.batch": 16}, "traces.cg.batch"),
    ):
        with pytest.raises(InputError) as caught:
            load("quickstart" if load is load_scenario else "modnn-14", changes)
        problem, *_ = caught.value.problems
        assert (problem.file, problem.place) == ("override", key)
        assert "is given by its name" in problem.what and "zoo: NETWORK" in problem.remedy


def test_a_sweep_may_replace_a_trace_name_by_a_network(tmp_path: Path) -> None:
    values = {"trace.zoo": ["alexnet"], "trace.batch": [1, 2], "trace.gpu": ["v100"]}
    grid = ", ".join(f"{path}: {steps}" for path, steps in values.items())
    sweep = load_sweep(sweep_file(tmp_path, f"sweep:\n  grid: {{{grid}}}\n"))
    assert [sweep.scenario(point).trace.info.batch for point in (0, 1)] == [1, 2]


def test_a_wrong_axis_does_not_hide_mistakes_of_other_values(tmp_path: Path) -> None:
    message = problems_of(sweep_file(tmp_path, "sweep:\n  grid: {seed: [], budget: [1 GiB, big]}\n"))
    assert len(message) == 2 and "'big' is not a size" in message[1]


def test_a_value_valid_for_only_some_nodes_fails_only_at_those_points(tmp_path: Path) -> None:
    block = "sweep:\n  grid:\n    node: [v100, buddy-gpu]\n    node.gpu.buddy.threshold: [10%, 30%]\n"
    sweep = load_sweep(sweep_file(tmp_path, block))
    assert sweep.scenario(3).node.gpu.buddy is not None
    with pytest.raises(InputError, match=r"gpu\.buddy"):
        sweep.scenario(0)


def test_each_value_is_checked_once_and_not_in_all_combinations(tmp_path: Path) -> None:
    block = "sweep:\n  grid:\n" + "".join(
        f"    {path}: [{', '.join(map(str, range(1, 201)))}]\n" for path in ("seed", "epoch", "iterations")
    )
    assert load_sweep(sweep_file(tmp_path, block)).count == 8_000_000
