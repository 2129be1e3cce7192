"""Studies over batches and time breakdowns: small versions of HOME's figures 6 and 7."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path

import pytest

from simgpu.analysis.breakdown import PARTS
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.modelled import ModelledTrace
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_measures import MEASURES, StudyCell
from simgpu.experiments.study_tables import failures, published_rows, study_tables, table_notes
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import Result, simulate
from simgpu.trace.folder import load_trace
from simgpu.workloads.rescale import at_batch
from tests.cli.cli_helpers import simgpu

#: In 580 MB AlexNet fits the largest batch by offloading alone; 1 MB is too little for any.
FILE = """\
schema: simgpu.study/2
name: try
description: throughput against batch
node: v100
overrides: {node.gpu.memory: 580 MB}
traces:
  AlexNet: {zoo: alexnet, input: cifar10, batches: [1024, 128, 4096]}
  recorded: {trace: resnet20-cifar-cpu, batches: [32, 16]}
  alone: {zoo: plain20, input: cifar10, batch: 64}
runs:
  none: {policy: none}
  vDNN: {policy: vdnn}
  tiny: {policy: none, budget: 1 MB}
  ideal: {policy: ideal, per_trace: {AlexNet: {policy: {vdnn: {mode: conv}}}, AlexNet 4096: {policy: ideal}}}
baseline: none
tables: [samples_per_s, largest_batch, best_throughput, swapping, breakdown]
published:
  - {run: vDNN, aggregate: AlexNet, measure: largest_batch, value: 4096, source: section 1}
  - {run: vDNN, aggregate: AlexNet, measure: best_throughput, value: 1.5, source: section 1}
  - {run: vDNN, aggregate: AlexNet 128, measure: overlap, value: 0.5, source: figure 7}
  - {run: vDNN, aggregate: AlexNet, value: 0.5, source: figure 6}
  - {run: vDNN, aggregate: max, measure: samples_per_s, excluding: [AlexNet], value: 1000, source: figure 6}
  - {run: none, aggregate: mean, measure: computation,
      excluding: [AlexNet 128, alone, recorded], value: 1, source: figure 7}
"""


def study_file(folder: Path) -> Path:
    path = folder / "try.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_file(tmp_path_factory.mktemp("batches"))


@pytest.fixture(scope="module")
def result(path: Path) -> StudyResult:
    return run_study(load_study(path))


@cache
def alexnet(batch: int, policy: str, mode: str | None = None) -> Result:
    node = load_node("v100", {"gpu.memory": "580 MB"})
    trace = ModelledTrace(zoo="alexnet", input="cifar10", batch=batch).trace(node.gpu, "v100")
    return simulate(trace, node, policy, parameters={"mode": mode} if mode else None)


def test_a_modelled_network_is_modelled_at_each_batch(result: StudyResult) -> None:
    for batch in (128, 1024, 4096):
        expected = alexnet(batch, "vdnn")
        cell = result.cells[f"AlexNet {batch}", "vDNN"]
        assert (cell.batch, cell.iteration_ns) == (batch, (expected.iteration_ns,))
        assert cell.samples_per_s == pytest.approx(batch * 1e9 / expected.iteration_ns)


def test_a_recorded_trace_is_rescaled_to_each_batch(result: StudyResult) -> None:
    node, recorded = load_node("v100", {"gpu.memory": "580 MB"}), load_trace("resnet20-cifar-cpu")
    assert recorded.info.batch == 32
    for batch in (32, 16):
        expected = simulate(at_batch(recorded, batch), node, "none")
        assert result.cells[f"recorded {batch}", "none"].iteration_ns == (expected.iteration_ns,)
    origins = [result.study.traces[f"recorded {batch}"].info.origin.value for batch in (32, 16)]
    assert origins == ["recorded", "modelled"]


def test_a_cell_out_of_memory_is_marked(result: StudyResult) -> None:
    cell = result.cells["AlexNet 4096", "none"]
    assert (cell.samples_per_s, cell.failure, cell.batch) == (None, "out of memory", 4096)
    assert result.cells["AlexNet 1024", "none"].failure == ""


def test_settings_of_a_sweep_apply_to_all_batches_without_their_own_settings(result: StudyResult) -> None:
    for batch, *policy in ((128, "vdnn", "conv"), (1024, "vdnn", "conv"), (4096, "ideal")):
        assert result.cells[f"AlexNet {batch}", "ideal"].iteration_ns == (alexnet(batch, *policy).iteration_ns,)


def test_the_parts_of_a_cell_equal_the_breakdown_of_its_iteration(result: StudyResult) -> None:
    expected = alexnet(1024, "vdnn").metrics.breakdown.parts
    cell = result.cells["AlexNet 1024", "vDNN"]
    assert cell.parts == expected
    assert sum(cell.parts.values()) == sum(cell.iteration_ns)
    for part in PARTS[:-1]:
        share = expected[part] / sum(expected.values())
        assert result.value(part, "AlexNet 1024", "vDNN") == pytest.approx(share)
    assert result.value("overlap", "AlexNet 4096", "none") is None


def test_parts_of_several_epochs_are_added_up() -> None:
    network = {"zoo": "alexnet", "input": "cifar10", "batch": 256, "epochs": 3}
    changes = {"traces": {"AlexNet": network}, "epochs": [0, 2], "published": []}
    runs = {"vDNN": {"policy": "vdnn"}, "static": {"policy": {"static": {"launch": "grid_search"}}}}
    cell = run_study(load_study("cswap-6a", {**changes, "runs": runs})).cells["AlexNet", "static"]
    assert len(cell.iteration_ns) == 2
    assert sum(cell.parts.values()) == sum(cell.iteration_ns)
    assert cell.parts["codec"] > 0


def test_largest_batch_and_best_throughput_cover_all_batches(result: StudyResult) -> None:
    assert result.value("largest_batch", "AlexNet", "none") == 1024
    assert result.value("largest_batch", "AlexNet", "vDNN") == 4096
    assert result.value("largest_batch", "AlexNet", "tiny") is None
    assert result.value("largest_batch", "alone", "none") == 64

    def best(run: str) -> float:
        rates = [result.cells[f"AlexNet {batch}", run].samples_per_s for batch in (128, 1024, 4096)]
        return max(rate for rate in rates if rate is not None)

    assert result.value("best_throughput", "AlexNet", "vDNN", "none") == pytest.approx(best("vDNN") / best("none"))
    assert result.value("best_throughput", "AlexNet", "vDNN", "tiny") is None


def test_published_numbers_may_concern_sweeps_single_batches_and_shares(result: StudyResult) -> None:
    largest, best, overlap, throughput, fastest, computation = result.comparisons()
    assert (largest.simulated, largest.expected) == (4096, 1)
    assert best.simulated == result.value("best_throughput", "AlexNet", "vDNN", "none")
    assert overlap.simulated == result.value("overlap", "AlexNet 128", "vDNN")
    ratios = [result.ratio(f"AlexNet {batch}", "vDNN", "none") or 0 for batch in (128, 1024)]
    assert throughput.simulated == pytest.approx(sum(ratios) / 2)
    assert (throughput.values, throughput.points) == (2, 3)
    rates = [result.cells[trace, "vDNN"].samples_per_s for trace in ("recorded 32", "recorded 16", "alone")]
    assert fastest.simulated == max(rate for rate in rates if rate is not None)
    assert (computation.simulated, computation.values, computation.points) == (1, 1, 2)
    assert [row[0] for row in published_rows(result)] == [
        "vDNN, AlexNet, largest batch",
        "vDNN over none, AlexNet, highest throughput",
        "vDNN, AlexNet 128, overlap",
        "vDNN over none, AlexNet (2 of 3)",
        "vDNN, max, samples/s, without AlexNet",
        "none, mean, computation, without AlexNet 128, alone, recorded (1 of 2)",
    ]
    assert published_rows(result)[0][1:4] == ("4096", "4096", "+0")


def test_tables_have_a_row_per_batch_or_per_network(result: StudyResult) -> None:
    rates, largest, best, swapping, *breakdowns = study_tables(result)
    assert rates.title == "samples per second"
    assert [row[:2] for row in rates.rows] == [
        ("AlexNet", "1024"),
        ("AlexNet", "128"),
        ("AlexNet", "4096"),
        ("recorded", "32"),
        ("recorded", "16"),
        ("alone", "64"),
    ], "rates of different batches have no mean"
    assert rates.rows[2][2] == "OOM"
    assert largest.headings == ("", "batches", "none", "vDNN", "tiny", "ideal")
    assert [row[:4] for row in largest.rows[:3]] == [
        ("AlexNet", "128-4096", "1024", "4096"),
        ("recorded", "16-32", "32", "32"),
        ("alone", "64", "64", "64"),
    ]
    assert [row[0] for row in best.rows] == ["AlexNet", "recorded", "alone", "geomean", "OOM"]
    assert [row[0] for row in swapping.rows[-2:]] == ["mean (5 of 6)", "OOM"]
    assert len(breakdowns) == 6
    assert breakdowns[0].title == "AlexNet, batch 1024: time breakdown"
    assert breakdowns[0].headings == ("", "step time", "computation", "overlap", "swapping", "recomputation")
    assert breakdowns[2].rows[0] == ("none", "OOM", "-", "-", "-", "-")
    shares = [float(text.removesuffix("%")) for text in breakdowns[0].rows[1][2:]]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert table_notes(result)[0].startswith("geomean: geometric mean; mean: arithmetic mean of the stated number")


def test_only_the_smallest_batch_of_a_sweep_that_does_not_fit_is_explained(result: StudyResult) -> None:
    message = [text.split(": ")[0] for text in failures(result)]
    assert message == ["AlexNet 128, tiny", "AlexNet 4096, none", "recorded 16, tiny", "alone, tiny"]


def test_measures_over_batches_are_none_without_completed_batches() -> None:
    lost, fits = StudyCell(None, out_of_memory="lost", batch=8), StudyCell(2.0, batch=4)
    largest, best = (MEASURES[name].of_sweep for name in ("largest_batch", "best_throughput"))
    assert largest is not None
    assert best is not None
    assert largest([lost, fits], []) == 4
    assert largest([lost], []) is None
    assert best([fits, lost], [lost]) is None
    assert best([fits, lost], [fits]) == 1


def test_figures_have_a_panel_per_sweep_or_per_trace(result: StudyResult) -> None:
    lines = result.plot("throughput")
    shown = [ax.get_title(loc="left") for ax in lines.axes if ax.get_visible()]
    assert shown == ["AlexNet", "recorded"]
    title = lines.get_suptitle()
    assert title.startswith("try: throughput against batch\nmodelled, not recorded, for Tesla V100 PCIe; recorded on")
    assert "tiny" in [text.get_text() for text in lines.legends[0].get_texts()]
    assert all("OOM: tiny" in " ".join(ax.get_xlabel().split()) for ax in lines.axes)
    bars = result.plot("breakdown")
    assert [ax.get_title(loc="left") for ax in bars.axes][:2] == ["AlexNet, batch 1024", "AlexNet, batch 128"]
    assert len(bars.axes) == 6


@pytest.mark.slow
def test_a_study_without_a_sweep_has_no_plot_of_throughput_against_batch(path: Path) -> None:
    one = run_study(load_study(path, {"traces.AlexNet": None, "traces.recorded": None, "published": []}))
    with pytest.raises(InputError, match="try: traces: none is a sweep of batches; give a trace batches in place of"):
        one.plot("throughput")


@pytest.mark.slow
def test_the_command_writes_report_table_and_figures(path: Path, result: StudyResult, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = simgpu("study", path, "-q", "-j", 1, "-o", folder)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.endswith(f"\nwritten to {folder}\n")
    assert sorted(file.name for file in folder.iterdir()) == [
        "breakdown.png",
        "measures.png",
        "report.json",
        "results.csv",
        "throughput.png",
    ]
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    report.pop("simgpu")
    assert report == json.loads(json.dumps(result.to_dict()))
    assert report["networks"]["recorded"] == ["recorded 32", "recorded 16"]
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["trace"], row["run"]): row for row in csv.DictReader(file)}
    assert len(rows) == 6 * 4
    row, lost = rows["AlexNet 1024", "vDNN"], rows["AlexNet 4096", "none"]
    cell = result.cells["AlexNet 1024", "vDNN"]
    assert (row["network"], row["batch"], float(row["samples_per_s"])) == ("AlexNet", "1024", cell.samples_per_s)
    assert {part: int(row[f"{part}_ns"]) for part in PARTS} == cell.parts
    assert (lost["failure"], lost["batch"], lost["samples_per_s"]) == ("out of memory", "4096", "")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert simgpu("study", path, "-q", "-j", 1, "-o", folder).exit_code == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_folder_with_other_files_is_not_replaced(path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    done = simgpu("study", path, "-q", "-j", 1, "-o", tmp_path)
    assert done.exit_code == 2
    assert "contains files that are not from an earlier study of simgpu" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
