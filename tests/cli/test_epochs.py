"""``simgpu epochs``: means over a training and the map of decisions, printed and as files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu

SHORT = ["--trace", "vgg16-b128-v100", "--node", "v100", "--epochs", "0,5-6,40"]
POLICIES = ["--policy", "vdnn: {mode: conv}", "--policy", "static: {launch: expert}"]


def test_means_and_decisions_are_shown() -> None:
    done = simgpu("epochs", *SHORT, *POLICIES, "-q")
    assert done.exit_code == 0, done.stderr
    assert "means over 4 epochs, 0 to 40" in done.stdout
    assert "static(launch=expert): # compressed, . uncompressed" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["image", "...."] in rows and ["conv1_1", "####"] in rows
    assert "compressed: 12 at epoch 0" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.slow
def test_numbers_and_figures_are_written_atomically(tmp_path: Path) -> None:
    folder = tmp_path / "training"
    done = simgpu("epochs", *SHORT, *POLICIES, "-q", "-o", str(folder))
    assert done.exit_code == 0, done.stderr
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    homes = ("static-launch-expert", "vdnn-mode-conv")
    assert names == ["report.json", *(f"{home}/{name}" for home in homes for name in ("decisions.png", "epochs.csv"))]
    with (folder / homes[0] / "epochs.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "5", "6", "40"]
    report = json.loads((folder / "report.json").read_text())
    assert [training["policy"] for training in report["trainings"]] == ["vdnn(mode=conv)", "static(launch=expert)"]


@pytest.mark.slow
def test_printed_json_equals_report_json(tmp_path: Path) -> None:
    done = simgpu("epochs", *SHORT, *POLICIES, "--json", "-o", str(tmp_path / "t"))
    assert json.loads(done.stdout) == json.loads((tmp_path / "t" / "report.json").read_text())


@pytest.mark.parametrize("text", ["", "x", "3-", "5-3", "-1", "1,,2", "1e3", "100000"])
def test_invalid_epochs_are_refused(text: str) -> None:
    done = simgpu("epochs", "--trace", "vgg16-b128-v100", "--node", "v100", f"--epochs={text}")
    assert done.exit_code == 2
    assert "--epochs" in done.stderr and "Traceback" not in done.stderr


def test_a_trace_without_epochs_is_refused(tmp_path: Path) -> None:
    done = simgpu("epochs", make_study(tmp_path))
    assert done.exit_code == 2
    assert "no epoch" in done.stderr


def test_a_policy_out_of_memory_does_not_change_the_means_of_others() -> None:
    done = simgpu("epochs", *SHORT, *POLICIES, "--policy", "none", "-q", "--memory", "10300 MiB")
    assert done.exit_code == 0
    assert "static(launch=expert)" in done.stdout
    assert "none, epoch 0" in done.stderr and "out of" in done.stderr


def test_the_exit_code_is_3_if_nothing_fits() -> None:
    done = simgpu("epochs", *SHORT, "--policy", "none", "-q", "--memory", "2 GiB")
    assert done.exit_code == 3
    assert "none, epoch 0" in done.stderr


@pytest.mark.slow
def test_fitted_numbers_are_marked() -> None:
    assert "fitted to figures 5 and 12" in " ".join(simgpu("epochs", *SHORT, *POLICIES, "-q").stdout.split())


def test_a_refused_policy_does_not_change_the_means_of_others() -> None:
    done = simgpu("epochs", *SHORT, *POLICIES, "--policy", "cdma", "-q")
    assert done.exit_code == 0
    assert "static(launch=expert)" in done.stdout
    assert "cdma: " in done.stderr and "no compressing DMA engine" in done.stderr


def test_the_exit_code_is_2_if_all_policies_refuse() -> None:
    assert simgpu("epochs", *SHORT, "--policy", "cdma", "-q").exit_code == 2
