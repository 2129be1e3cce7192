"""``simgpu validate report``: tables, JSON and files of a recording on disk."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.validation import folder as folders
from simgpu.validation.folder import write_recording
from simgpu.validation.measured import Case, Method, Recording
from tests.cli.cli_helpers import simgpu
from tests.validation.example_recording import MACHINE, MIB, example_case, recording_of


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recording_of(_as_traced(example_case()), _as_traced(example_case(3)))


@pytest.fixture(scope="module")
def place(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings") / "example"
    write_recording(recording, folder)
    return folder


def _as_traced(case: Case) -> Case:
    """On disk a case is of its trace's model and batch."""
    return replace(case, trace=replace(case.trace, name=case.name))


def test_report_shows_all_runs_errors_and_targets_in_80_columns(place: Path) -> None:
    done = simgpu("validate", "report", place, "-q")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "example" and lines[1].startswith("device      Example GPU 80GB, 80 GiB, measured on 2026-01-31")
    rows = [line.split() for line in lines]
    assert sum(row[:1] == ["example-b8"] for row in rows) == 5  # step, peak, copies of both directions, divergence
    for method, count in (("checkpoint", 6), ("save_on_cpu", 10), ("async_offload", 10)):  # checkpoint copies nothing
        cells = [row for row in rows if method in row[:2]]
        assert len(cells) == count and all("-0" not in cell and "+" not in cell for row in cells for cell in row[1:])
    text = " ".join(done.stdout.split())
    plain = "mean error of assuming the plain run's value"
    assert re.search(rf"worst 0%, 6 managed runs; {plain} .*%; target mean 5%, worst 10%: MET", text)
    assert re.search(rf"mean 0%, worst 0%, 8 runs; {plain} .*%; target worst 2%: MET", text)
    assert "order the same on every stream in 8 of 8 runs" in text
    assert "NOTE" not in text


def test_missed_targets_are_reported(recording: Recording, tmp_path: Path) -> None:
    case = recording.cases[0]
    run = case.runs[Method.CHECKPOINT]
    slow = replace(run, step_ns=(2 * run.median_ns,), peak_bytes=2 * run.peak_bytes)
    write_recording(
        replace(recording, cases=(replace(case, runs={**case.runs, Method.CHECKPOINT: slow}),)), tmp_path / "r"
    )
    message = " ".join(simgpu("validate", "report", tmp_path / "r").stdout.split())
    assert "mean 16.7%, worst 50.0% (example-b8, checkpoint), 3 managed runs;" in message
    assert "mean 12.5%, worst 50.0% (example-b8, checkpoint), 4 runs;" in message
    assert "target mean 5%, worst 10%: MISSED" in message and "target worst 2%: MISSED" in message


def test_a_cpu_recording_has_a_note(recording: Recording, tmp_path: Path) -> None:
    write_recording(replace(recording, machine=replace(MACHINE, kind="cpu", device="a CPU")), tmp_path / "r")
    lines = simgpu("validate", "report", tmp_path / "r").stdout.splitlines()
    assert lines[1].startswith("NOTE: measured on a CPU: worker threads act as copy engines")


def test_validate_report_shows_one_case_with_calibration_and_timelines(place: Path) -> None:
    done = simgpu("validate", "report", place, "--case", "example-b8", "--method", "async_offload", "--timeline")
    assert done.exit_code == 0, done.stderr
    message = " ".join(done.stdout.split())
    assert "example-b24" not in message and "save_on_cpu" not in message
    assert "example-b8, async_offload: timelines No divergence" in message
    assert "example-b8: memory: 3 MiB allocated at the start of a step" in message


def test_diverging_timelines_are_shown_around_the_divergence(recording: Recording, tmp_path: Path) -> None:
    case = recording.cases[0]
    run = case.runs[Method.PLAIN]
    swapped = (run.spans[0], *(span._replace(op="aten::strange") for span in run.spans[1:2]), *run.spans[2:])
    write_recording(
        replace(recording, cases=(replace(case, runs={**case.runs, Method.PLAIN: replace(run, spans=swapped)}),)),
        tmp_path / "r",
    )
    done = simgpu("validate", "report", tmp_path / "r", "--method", "plain", "--timeline")
    marked = [line for line in done.stdout.splitlines() if line.startswith(">")]
    assert (
        len(marked) == 1 and marked[0].split()[:2] == [">", "1"] and "aten::strange, simulated aten::relu" in marked[0]
    )
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.slow
def test_output_files_have_the_printed_content(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    methods = Method.PLAIN, Method.ASYNC_OFFLOAD
    words = [word for method in methods for word in ("--method", method)]
    done = simgpu("validate", "report", place, "--case", "example-b8", *words, "--json", "-o", target)
    assert done.exit_code == 0, done.stderr
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    runs = [f"example/example-b8/{method}.{suffix}" for method in methods for suffix in ("csv", "png")]
    assert names == sorted(
        ["report.json", "example/runs.csv", "example/validation.png", "example/validation.svg", *runs]
    )
    assert json.loads(done.stdout) == json.loads((target / "report.json").read_text())
    with (target / "example" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == list(methods)
    assert {row["error_step_ns"] for row in rows} == {"0.0"}
    with (target / "example" / "example-b8" / "async_offload.csv").open() as file:
        assert {row["stream"] for row in csv.DictReader(file)} == {"compute", "d2h", "h2d"}
    again = simgpu("validate", "report", place, "--case", "example-b8", "--method", "plain", "-o", target)
    assert again.exit_code == 0 and f"written to {target}" in again.stdout.replace("\n", "")
    assert not (target / "example" / "example-b8" / "async_offload.csv").exists()


def test_a_folder_with_something_else_is_left_alone(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = simgpu("validate", "report", place, "-o", tmp_path)
    assert done.exit_code == 2 and "not from an earlier comparison" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_damaged_recording_is_refused_with_every_problem(recording: Recording, tmp_path: Path) -> None:
    write_recording(recording, tmp_path / "r")
    (tmp_path / "r" / "machine.yaml").write_text("device: [")
    (tmp_path / "r" / "example-b8" / "plain.csv.gz").write_bytes(b"no gzip")
    done = simgpu("validate", "report", tmp_path / "r", "-o", tmp_path / "out")
    assert done.exit_code == 2 and "Traceback" not in done.stderr
    assert "machine.yaml" in done.stderr and "plain.csv.gz" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--case", "example-b9"], "no case 'example-b9'"),
        (["--method", "swap"], "'swap' is not one of"),
    ],
)
def test_unknown_cases_and_methods_are_refused(place: Path, words: list[str], what: str) -> None:
    done = simgpu("validate", "report", place, *words)
    assert done.exit_code == 2 and what in done.stderr


def test_an_unknown_recording_is_refused() -> None:
    done = simgpu("validate", "report", "no-such-recording")
    assert done.exit_code == 2 and "no-such-recording" in done.stderr


def test_an_out_of_memory_counterpart_exits_with_0(recording: Recording, tmp_path: Path) -> None:
    write_recording(replace(recording, machine=replace(MACHINE, memory=142 * MIB)), tmp_path / "r")
    done = simgpu("validate", "report", tmp_path / "r", "--case", "example-b8")
    assert done.exit_code == 0
    assert "example-b8, plain: not simulated, out of memory" in " ".join(done.stdout.split())


def test_a_run_that_cannot_be_simulated_exits_with_2(recording: Recording, tmp_path: Path) -> None:
    case = recording.cases[0]
    wrong = replace(case.runs[Method.ASYNC_OFFLOAD], settings={"prefetsch": 2})
    write_recording(
        replace(recording, cases=(replace(case, runs={**case.runs, Method.ASYNC_OFFLOAD: wrong}),)), tmp_path / "r"
    )
    done = simgpu("validate", "report", tmp_path / "r")
    assert done.exit_code == 2
    assert "async_offload: not simulated, refused:" in " ".join(done.stdout.split()) and "prefetsch" in done.stdout


def test_without_a_name_the_shipped_recordings_with_the_case_are_shown(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SHIPPED", tmp_path)
    none = simgpu("validate", "report")
    assert none.exit_code == 2 and "no recording ships" in none.stderr
    write_recording(replace(recording, cases=recording.cases[:1]), tmp_path / "a-gpu")
    write_recording(replace(recording, cases=recording.cases[1:]), tmp_path / "b-gpu")
    both = simgpu("validate", "report", "--json")
    assert [each["recording"] for each in json.loads(both.stdout)["recordings"]] == ["a-gpu", "b-gpu"]
    second = simgpu("validate", "report", "--json", "--case", recording.cases[1].name)
    assert [each["recording"] for each in json.loads(second.stdout)["recordings"]] == ["b-gpu"]
    named = simgpu("validate", "report", "a-gpu", "--json")
    assert [each["recording"] for each in json.loads(named.stdout)["recordings"]] == ["a-gpu"]


def test_progress_is_written_to_stderr_only(place: Path) -> None:
    assert simgpu("validate", "report", place, "--json", "-q").stderr == ""
