"""`simgpu plan`: made, shown and checked from the command line, with one line for a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

from simgpu.torch.plan import read_plan
from tests.cli.cli_helpers import simgpu
from tests.sets import slow_except

_MAKE = ("--batch", "16", "--node", "v100", "--budget", "16MB", "-q")


def test_a_plan_is_made_shown_and_checked(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    made = simgpu("plan", "resnet20", *_MAKE, "--here", "--no-offload", "-o", file)
    assert made.exit_code == 0, made.output
    assert "lower bound" in made.stdout and "recompute stage" in made.stdout
    assert simgpu("plan", "show", file).stdout == made.stdout
    assert read_plan(file).predicted.peak_bytes <= 16_000_000
    checked = simgpu("plan", "check", file, "resnet20", "-q")
    assert checked.exit_code == 0 and "DIFFERS" not in checked.stdout
    assert checked.stdout.count(" ok") == 6


@pytest.mark.slow
def test_a_plan_for_micro_batches_is_made_and_checked(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    budget = ("--micro-batches", "4", "--node", "v100", "--budget", "5MB", "--here", "-q", "-o", file)
    made = simgpu("plan", "resnet20", "--batch", "16", *budget)
    assert made.exit_code == 0, made.output
    assert "batch 16 in 4 calls of the model" in made.stdout
    checked = simgpu("plan", "check", file, "resnet20", "-q")
    assert checked.exit_code == 0 and checked.stdout.count(" ok") == 6


@pytest.mark.slow
def test_settings_of_other_frameworks_are_printed() -> None:
    made = simgpu(
        "plan", "gpt2-small", "--batch", "2", "--node", "v100", "--budget", "4GB", "-q", "--settings", "--no-offload"
    )
    assert made.exit_code == 0, made.output
    for framework in ("Transformers", "torchtitan", "Megatron-LM", "JAX"):
        assert framework in made.stdout


@pytest.mark.parametrize("json", slow_except([[], ["--json"]], []))
def test_without_equal_layers_there_are_no_settings_and_a_reason(json: list[str]) -> None:
    made = simgpu("plan", "resnet20", "--batch", "16", "--node", "v100", "-q", "--settings", *json)
    assert made.exit_code == 0, made.output
    shown = " ".join((made.stderr if json else made.stdout).split())
    why = "these frameworks choose among equal layers, and the model has no list of 4 or more equal layers"
    assert f"others no setting applies: {why}" in shown
    assert made.stdout.startswith("{") == bool(json)


def test_a_plan_follows_a_policy(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    made = simgpu("plan", "resnet20", "--batch", "16", "--node", "v100", "--policy", "vdnn", "-q", "-o", file)
    assert made.exit_code == 0, made.output
    assert "follows policy vdnn" in made.stdout and "offload" in made.stdout
    assert read_plan(file).policy == "vdnn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "resnet20", "--node", "v100"), "--batch: it is missing"),
        (("plan", "resnet20", *_MAKE[:-3], "--budget", "1B"), "no plan fits into 1 B"),
        (("plan", "resnet20", *_MAKE[:-3], "--budget", "-5MB"), "--budget: '-5MB' is negative"),
        (("plan", "resnet20", *_MAKE, "--micro-batches", "3"), "16 samples are not 3 equal micro-batches"),
        (("plan", "show", "nowhere.json"), "nowhere.json: no such file"),
        (("plan", "resnet20", *_MAKE, "--policy", "vdn"), "did you mean 'vdnn'"),
        (("plan", "resnet20", *_MAKE, "--policy", "um"), "um does more than to keep, offload and recompute"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = simgpu(*arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(4, 4)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    model = ("own_models:net", "--input", "input=Bx4", "-q")
    made = simgpu("plan", *model, "--batch", "2", "--node", "v100", "-o", "plan.json")
    assert made.exit_code == 0, made.output
    assert "keep everything" in made.stdout
    checked = simgpu("plan", "check", "plan.json", *model)
    assert checked.exit_code == 0, checked.output
