"""``simgpu validate record``: calls of the harness, and the output for its result. Nothing is really recorded."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpu.validation.harness import CASES, SMALL_CASES, CasePlan, Recorded
from simgpu.validation.measured import Recording
from tests.cli.cli_helpers import simgpu
from tests.validation.test_folder import MACHINE, case

SHORT = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings passed to a fake harness, which returns one case and one skipped case."""
    seen: dict[str, Any] = {}

    def record(folder: Path, plans: tuple[CasePlan, ...], **options: Any) -> Recorded:
        seen.update(folder=folder, plans=plans, **options)
        return Recorded(Recording("mine", MACHINE, seen.get("cases", (case(),))), {"big-b1": SHORT})

    monkeypatch.setattr("simgpu.cli.validate_record.record_cases", record)
    return seen


def test_without_options_all_cases_are_recorded_on_a_gpu(settings: dict[str, Any]) -> None:
    done = simgpu("validate", "record", "-o", "mine")
    assert done.exit_code == 0, done.output
    assert settings["plans"] == CASES
    message = {name: settings[name] for name in ("folder", "device", "repetitions", "warmup", "seed", "force")}
    expected = {"device": "cuda", "repetitions": 20, "warmup": 5, "seed": 0, "force": False}
    assert message == {"folder": Path("mine"), **expected}


def test_options_reach_the_harness(settings: dict[str, Any]) -> None:
    chosen = "--small --case gpt-small-b4 --case resnet50-small-b4"
    words = f"{chosen} --device cpu --repetitions 5 --warmup 1 --seed 2 --force"
    assert simgpu("validate", "record", "-o", "mine", *words.split()).exit_code == 0
    assert [plan.name for plan in settings["plans"]] == ["resnet50-small-b4", "gpt-small-b4"]
    assert (settings["device"], settings["repetitions"], settings["warmup"]) == ("cpu", 5, 1)
    assert (settings["seed"], settings["force"]) == (2, True)


def test_each_method_of_each_case_is_a_row(settings: dict[str, Any]) -> None:
    done = simgpu("validate", "record", "-o", "my folder")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["net-b4"] in rows
    assert ["plain", "30", "ns", "6.7%", "500", "B", "0", "B", "0", "B"] in rows
    assert ["checkpoint", "30", "ns", "6.7%", "500", "B", "0", "B", "0", "B"] in rows
    assert ["save_on_cpu", *["-"] * 5] in rows
    assert done.stdout.endswith("simgpu validate report 'my folder'\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    message = " ".join(done.stderr.split())
    assert "net-b4: method save_on_cpu was not run: out of memory" in message
    assert f"big-b1 was skipped: {SHORT}" in message


@pytest.mark.parametrize(("steps", "warns"), [((100, 102, 105), False), ((100, 102, 106), True)])
def test_widely_varying_steps_print_a_warning(steps: tuple[int, ...], warns: bool, settings: dict[str, Any]) -> None:
    once = case()
    runs = {method: replace(run, step_ns=steps) for method, run in once.runs.items()}
    settings["cases"] = (replace(once, runs=runs),)
    message = " ".join(simgpu("validate", "record", "-o", "mine").stderr.split())
    assert ("Warning: step times vary by over 5%; record again with --case net-b4 --force" in message) is warns


def test_recording_no_case_is_an_error(settings: dict[str, Any]) -> None:
    settings["cases"] = ()
    done = simgpu("validate", "record", "-o", "mine")
    assert done.exit_code == 2
    assert "mine: none of the cases could be recorded; choose smaller cases" in done.stderr


def test_a_single_step_has_no_spread(settings: dict[str, Any]) -> None:
    once = case()
    runs = {method: replace(run, step_ns=(7,)) for method, run in once.runs.items()}
    settings["cases"] = (replace(once, runs=runs),)
    rows = [line.split() for line in simgpu("validate", "record", "-o", "mine").stdout.splitlines()]
    assert ["plain", "7", "ns", "-", "500", "B", "0", "B", "0", "B"] in rows


def test_an_unknown_case_is_refused_with_a_suggestion() -> None:
    done = simgpu("validate", "record", "-o", "mine", "--case", "vgg16-b46")
    assert done.exit_code == 2
    assert "--case: no case is called 'vgg16-b46'; did you mean 'vgg16-b64'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "remedy"), [(("gpt-small-b4",), "add --small"), (("vgg16-b32", "--small"), "remove --small")]
)
def test_a_case_of_the_other_set_is_reported_as_such(words: tuple[str, ...], remedy: str) -> None:
    done = simgpu("validate", "record", "-o", "mine", "--case", *words)
    assert done.exit_code == 2
    assert f"no case is called '{words[0]}'" in done.stderr and remedy in done.stderr


def test_a_repeated_unknown_case_is_reported_once() -> None:
    done = simgpu("validate", "record", "-o", "mine", "--case", "nobody", "--case", "nobody")
    assert done.exit_code == 2 and done.stderr.count("no case is called 'nobody'") == 1


def test_help_lists_every_case() -> None:
    shown = simgpu("validate", "record", "--help").stdout
    for plan in (*CASES, *SMALL_CASES):
        assert plan.name in shown


def test_an_interrupted_recording_reports_that_it_can_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: Any, **__: Any) -> Recorded:
        raise KeyboardInterrupt

    monkeypatch.setattr("simgpu.cli.validate_record.record_cases", record)
    done = simgpu("validate", "record", "-o", "mine")
    assert done.exit_code == 130
    assert "run the same command to resume" in done.stderr


def test_without_a_gpu_or_pytorch_the_error_has_a_remedy(tmp_path: Path) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    done = simgpu("validate", "record", "-o", tmp_path / "mine")
    assert done.exit_code == 2
    message = "with --device cpu --small" if has_torch else "install torch, or simgpu with its extra 'record'"
    assert message in done.stderr
    assert not (tmp_path / "mine").exists()
