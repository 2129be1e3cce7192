"""A study: ratios of throughput, their means, cells out of memory, and published numbers next to simulated ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.training import train
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import read_trace, write_trace
from tests.cli.cli_helpers import simgpu

#: The link is slow, so that the modes of vDNN differ; `none` fits the short chain alone.
FILE = """\
schema: simgpu.study/2
name: try
description: two chains
paper: a paper
notes: [a choice]
node: v100
overrides: {node.gpu.memory: 1 MB, node.link.d2h_bandwidth: 1 GB/s}
traces:
  short: short
  long: long
runs:
  vDNN: {policy: vdnn}
  conv: {policy: {vdnn: {mode: conv}}}
  plain: {policy: none}
  fast: {policy: vdnn, overrides: {node.link.d2h_bandwidth: 100 GB/s, node.link.h2d_bandwidth: 100 GB/s}}
  ideal: {policy: ideal}
baseline: [vDNN, ideal]
published:
  - {run: fast, value: 1.5, source: section 1}
  - {run: fast, aggregate: max, value: 2, source: section 1, note: doubtful}
  - {run: fast, aggregate: min, excluding: [long], value: 0.5, measure: time_saved, source: figure 2}
  - {run: plain, vs: ideal, value: 1, source: figure 2, note: doubtful}
  - {run: plain, aggregate: long, value: 3, source: figure 3}
"""
SHORT, LONG = [100_000, 200_000], [100_000, 200_000, 300_000, 400_000, 400_000]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name, sizes in (("short", SHORT), ("long", LONG)):
        forward = [20_000 * (at + 1) for at in range(len(sizes))]
        write_trace(chain(forward, [2 * each for each in forward], sizes), tmp_path / name)
    file = tmp_path / "try.yaml"
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.fixture
def result(path: Path) -> StudyResult:
    return run_study(load_study(path))


@pytest.mark.slow
def test_a_cell_equals_a_training_under_its_policy() -> None:
    changes = {"epochs": [0, 48], "traces": {"VGG": {"zoo": "vgg16", "batch": 8, "epochs": 50}}, "published": []}
    study = load_study("cswap-6a", changes)
    study_run = {run.label: run for run in study.runs}["CSWAP"]
    outcome = run_study(study).cells["VGG", "CSWAP"]
    training = train(study.traces["VGG"], study_run.node, "cswap", parameters={"launch": "grid_search"}, epochs=[0, 48])
    assert outcome.samples_per_s == training.samples_per_s
    assert outcome.iteration_ns == tuple(epoch.result.iteration_ns for epoch in training.epochs)
    assert outcome.compressed == training.counts
    assert outcome.steady is True


def test_ratios_equal_the_ratios_of_simulated_throughputs(path: Path, result: StudyResult) -> None:
    slow = {"gpu.memory": "1 MB", "link.d2h_bandwidth": "1 GB/s"}
    fast = {**slow, "link.d2h_bandwidth": "100 GB/s", "link.h2d_bandwidth": "100 GB/s"}
    for label in ("short", "long"):
        trace = read_trace(path.parent / label)
        times = [simulate(trace, load_node("v100", changes), "vdnn").iteration_ns for changes in (fast, slow)]
        assert result.ratio(label, "fast", "vDNN") == pytest.approx(times[1] / times[0])
        assert times[0] < times[1]


def test_the_mean_covers_the_traces_completed_by_every_run(result: StudyResult) -> None:
    """`plain` is out of memory on the long chain, so only the short one is in the mean."""
    for run in ("fast", "plain"):
        assert result.mean(run, "vDNN") == pytest.approx(result.ratio("short", run, "vDNN"))
    assert result.mean("vDNN", "vDNN") == 1.0


def test_a_run_out_of_memory_empties_only_its_cell(result: StudyResult) -> None:
    cell = result.cells["long", "plain"]
    assert cell.samples_per_s is None
    assert cell.out_of_memory.startswith("out of device memory")
    assert result.ratio("long", "plain", "vDNN") is None
    assert result.mean("plain", "vDNN") == result.ratio("short", "plain", "vDNN")
    assert not result.nothing_fitted


def test_published_numbers_are_compared_with_simulated_ones(result: StudyResult) -> None:
    mean, largest, saved, plain, missing = result.comparisons()
    ratios = {label: result.ratio(label, "fast", "vDNN") or math.nan for label in ("short", "long")}
    assert mean.difference == pytest.approx(sum(ratios.values()) / 2 - 1.5)
    assert largest.simulated == max(ratios.values())
    assert saved.simulated == pytest.approx(1 - 1 / ratios["short"])
    assert (mean.traces, largest.traces, saved.traces) == (2, 2, 1)
    assert (plain.simulated, plain.traces) == (result.ratio("short", "plain", "ideal"), 1)
    assert (missing.simulated, missing.difference, missing.traces) == (None, None, 0)


def test_frame_and_plain_values_agree(result: StudyResult) -> None:
    frame = result.frame()
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["schema"] == "simgpu.study-report/3"
    assert document["traces"]["short"]["origin"] == "modelled"
    assert len(frame) == len(document["results"]) == 10
    for row in document["results"]:
        message = frame.loc[(row["trace"], row["run"])]
        assert row["vs"]["vDNN"] == result.ratio(row["trace"], row["run"], "vDNN")
        if row["samples_per_s"] is None:
            assert math.isnan(message["vs_vDNN"])
        else:
            assert message["vs_vDNN"] == row["vs"]["vDNN"]
    means = {each["vs"]: each["values"] for each in document["means"]}
    assert means["ideal"]["vDNN"] == result.mean("vDNN", "ideal")
    assert [row["simulated"] for row in document["published"]] == [row.simulated for row in result.comparisons()]


def test_the_command_shows_a_table_for_each_baseline_and_the_published_numbers(path: Path) -> None:
    done = simgpu("study", path, "-q", "-j", 1)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "origin  modelled, not recorded, for hand-made, by simgpu.trace.chain" in lines
    for title in ("throughput over vDNN", "throughput over ideal"):
        table = lines[lines.index(title) + 1 :][:5]
        assert table[0].split() == ["batch", "vDNN", "conv", "plain", "fast", "ideal"]
        assert [line.split()[0] for line in table[1:]] == ["short", "long", "geomean", "OOM"]
        assert "OOM" in table[2]
        assert table[3].startswith("geomean (1 of 2)")
        assert table[4].split() == ["OOM", "-", "-", "1", "of", "2", "-", "-"]
    assert "geomean: geometric mean of the stated number of traces, those with a value for every run" in " ".join(lines)
    assert any(line.startswith("plain over ideal, mean (1)") and line.endswith("figure 2 [1]") for line in lines)
    assert any(line.startswith("plain over vDNN, long") and "3.000" in line and " - " in line for line in lines)
    assert lines[-1] == "[1] doubtful"
    assert done.stderr.startswith("\nlong, plain: out of device memory")


def test_repr_contains_the_tables_of_the_command(result: StudyResult) -> None:
    shown = repr(result)
    assert shown.startswith("study       try\n")
    assert "OOM" in shown
    assert "throughput over ideal" in shown
    assert shown.endswith("[1] doubtful")


@pytest.mark.slow
def test_two_processes_print_as_json_what_one_calculates(path: Path, result: StudyResult) -> None:
    document = json.loads(simgpu("study", path, "-q", "-j", 2, "--json").stdout)
    document.pop("simgpu")
    assert document == json.loads(json.dumps(result.to_dict()))


def test_the_exit_code_is_3_if_nothing_fits(path: Path) -> None:
    done = simgpu("study", path, "-q", "-j", 1, "--set", "node.gpu.memory=50 kB")
    assert done.exit_code == 3
    assert done.stdout.count("  OOM") == 2 * 2 * 4
    assert "Traceback" not in done.stderr


def test_cells_that_are_not_steady_are_marked(result: StudyResult) -> None:
    fast = result.cells["long", "fast"]
    other = StudyResult(result.study, {**result.cells, ("long", "fast"): replace(fast, steady=False)})
    assert "unsteady" not in repr(result)
    (marked, _) = (line for line in repr(other).splitlines() if line.endswith("*") or " * " in line)
    assert marked.startswith("long")
    assert "\n* unsteady: the last two iterations differ; run more iterations" in repr(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cswap-6e"], "no shipped scenario or study is called 'cswap-6e'; did you mean"),
        (["quickstart"], "is a scenario, not a study; use: simgpu run quickstart"),
        (["missing.yaml"], "missing.yaml: no such file"),
        (["try.yaml", "--set", "epochs"], "override: 'epochs' is not KEY=VALUE"),
        (["try.yaml", "--set", "baseline=no"], "override: baseline: False is not a list"),
        ([], "Missing argument 'STUDY'"),
    ],
)
def test_a_mistake_exits_with_2_and_a_message(
    arguments: list[str], message: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    done = simgpu("study", *arguments, "-q", "-j", 1)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refused_trace_has_an_empty_cell_and_a_reason(path: Path) -> None:
    done = simgpu("study", path, "-q", "-j", 1, "--set", "runs.fast.policy=cswap")
    assert done.exit_code == 0
    assert done.stdout.count("refused") == 2 * 2
    message = " ".join(done.stderr.split())
    assert "short, fast: short: sparsity: the trace has neither sparsity nor compressed sizes, which" in message
    assert "Traceback" not in done.stderr


def test_the_exit_code_is_2_if_every_policy_refuses(path: Path) -> None:
    refuse = [f"runs.{label}.policy=cswap" for label in ("vDNN", "conv", "plain", "fast")]
    done = simgpu("study", path, "-q", "-j", 1, *(part for change in refuse for part in ("--set", change)))
    assert done.exit_code == 2, done.stderr


@pytest.mark.slow
def test_scenarios_and_studies_are_listed_separately() -> None:
    lines = simgpu("list", "scenarios").stdout.splitlines()
    at = lines.index("studies: simgpu study NAME")
    assert any(line.startswith("quickstart ") for line in lines[:at])
    assert any(line.startswith("cswap-6a ") for line in lines[at:])
    assert max(map(len, lines)) <= 80
