"""Predicted peaks of memory of 55 training runs that others measured.

`predicted_peaks.csv` has every prediction. It is compared with the measurements in all runs of the tests, and computed
again where PyTorch, torchvision and transformers are installed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml

from simgpu.validation.predicted.comparison import OURS, PredictedPeak, predict_peak, summaries
from simgpu.validation.predicted.measured import ESTIMATORS, Estimate, MeasuredPeak, measured_peaks

TABLE = Path(__file__).with_name("predicted_peaks.csv")
SOURCE = Path(__file__).parents[3] / "shared" / "data" / "measured" / "xmem.yaml"
MEASURED = {run.id: run for run in measured_peaks()}
#: The version of transformers whose models were measured; others allocate otherwise.
TRANSFORMERS = "4.51"


def predicted_table() -> Iterator[PredictedPeak]:
    """The stored predictions."""
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            estimate = Estimate(int(row["reserved"]), row["verdict"] == "OOM")
            yield PredictedPeak(MEASURED[row["id"]], estimate, int(row["allocated"]))


def installed(package: str, begins: str = "") -> bool:
    try:
        return version(package).startswith(begins)
    except PackageNotFoundError:
        return False


needs_networks = pytest.mark.skipif(
    not (installed("torch") and installed("torchvision") and installed("transformers", TRANSFORMERS)),
    reason=f"needs the extras 'record' and 'predict' with transformers {TRANSFORMERS}",
)


def test_every_measured_run_is_predicted() -> None:
    assert [run.measured.id for run in predicted_table()] == list(MEASURED)


def test_the_median_error_is_at_most_three_percent_and_nine_of_ten_verdicts_are_right() -> None:
    ours = summaries(predicted_table())[0]
    assert ours.estimator == OURS and ours.error is not None
    assert ours.error <= 0.03
    assert ours.right >= 0.9 * ours.verdicts


def test_no_other_estimator_has_a_smaller_median_error() -> None:
    ours, *others = summaries(predicted_table())
    assert [each.estimator for each in others] == list(ESTIMATORS)
    assert all(ours.error is not None and each.error is not None and ours.error < each.error for each in others)


@pytest.mark.parametrize("recorded", [True, False])
def test_runs_with_and_without_a_recorded_zero_grad_are_both_within_three_percent(recorded: bool) -> None:
    runs = [run for run in predicted_table() if (run.measured.zero_grad is not None) is recorded]
    error = summaries(runs)[0].error
    assert error is not None and error <= 0.03


@pytest.mark.skipif(
    not SOURCE.exists(), reason="the measurements are not next to the repository (../shared/data/measured)"
)
def test_shipped_measurements_are_those_of_the_source() -> None:
    modes = {0: "start", 1: "before-backward", 2: "end", None: None}
    rows = yaml.safe_load(SOURCE.read_text())
    assert [row["id"] for row in rows] == list(MEASURED)
    for row in rows:
        run = MEASURED[row["id"]]
        assert (run.peak, run.oom, run.batch) == (row["ground"], row["real_oom"], row["batch_size"])
        assert (run.gpu.name, run.gpu.memory) == (row["gpu"], row["total_gpu_memory"])
        assert run.optimizer == row["optimiser"].lower() and run.zero_grad == modes[row["zero_grad_mode"]]
        for name, key in zip(ESTIMATORS, ("solution", "DNNmem", "SchedTune"), strict=True):
            if name in run.estimates:
                assert run.estimates[name].bytes == pytest.approx(row[f"{key}_memory"], abs=2**20)
                assert run.estimates[name].oom == row[f"{key}_oom"]


def one_of_each_model() -> list[MeasuredPeak]:
    """The first run of each model; of the two largest none, which take longest."""
    first = {run.model: run for run in reversed(MEASURED.values())}
    return [run for run in MEASURED.values() if first[run.model] is run and run.gpu.name[7:11] != "A100"]


def check(run: MeasuredPeak) -> None:
    stored = {each.measured.id: each for each in predicted_table()}
    assert predict_peak(run) == stored[run.id]


@needs_networks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", one_of_each_model(), ids=lambda run: run.id)
def test_a_prediction_is_computed_again(run: MeasuredPeak) -> None:
    check(run)


@needs_networks
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", MEASURED.values(), ids=lambda run: run.id)
def test_every_prediction_is_computed_again(run: MeasuredPeak) -> None:
    check(run)


def test_the_readme_has_the_figures_of_the_table() -> None:
    ours = summaries(predicted_table())[0]
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    right = f"all {ours.verdicts}" if ours.right == ours.verdicts else f"{ours.right} of {ours.verdicts}"
    assert f"the median error of the predicted peak is {ours.error:.1%}, and {right} verdicts" in readme
