"""`simgpu run` and `simgpu compare`: output, files and exit codes."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.cli.screen import progress
from simgpu.experiments import compare as experiment
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.trace.folder import read_trace, write_trace
from tests.cli.cli_helpers import make_study, simgpu, simgpu_process


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


def test_run_prints_its_inputs_and_the_source_of_its_numbers(study: Path) -> None:
    done = simgpu("run", study)
    assert done.exit_code == 0, done.stderr
    for expected in (
        "study\n",
        "about   a hand-made chain\n",
        "trace   chain, batch 1, float32; 6 kernels, 60 us of compute\n",
        "origin  modelled, not recorded, for hand-made, by simgpu.trace.chain\n",
        "node    bench: a GPU, 8 GiB usable; PCIe, D2H 10 GB/s, H2D 10 GB/s\n",
        "times   of hand-made, not of the node's a GPU, which gives memory and links\n",
        "run     3 iterations, the last one reported; steady; allocator without\n        fragmentation; seed 0\n",
    ):
        assert expected in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(("spreads", "message"), [((2_000, 1_000), True), ((400, 9_000), False)])
def test_run_warns_about_widely_varying_times(study: Path, spreads: tuple[int, int], message: bool) -> None:
    """The median spread decides, not single kernels that vary much; most kernels of the study take 9 to 15 us."""
    trace = read_trace(study.with_name("chain"))
    most, last = spreads
    kernels = [replace(kernel, iqr_ns=kernel.duration_ns * most // 5_000) for kernel in trace.kernels[:-1]]
    kernels.append(replace(trace.kernels[-1], iqr_ns=last))
    write_trace(replace(trace, kernels=tuple(kernels)), study.with_name("chain"))
    for command in ("run", "compare"):
        lines = simgpu(command, study).stdout.splitlines()
        spread = [line for line in lines if line.startswith("spread ")]
        assert spread == (["spread  40% between repetitions of the median kernel: times are rough"] if message else [])


def test_printed_numbers_equal_the_result(study: Path) -> None:
    done = simgpu("run", study, "--json")
    scenario = load_scenario(study)
    expected = experiment.compare(scenario)
    message = json.loads(done.stdout)
    assert message["schema"] == "simgpu.report/2"
    assert message["scenario"] == "study"
    assert [entry["label"] for entry in message["results"]] == ["ideal", "none", "vdnn"]
    for entry, run in zip(message["results"], expected, strict=True):
        assert run.result is not None
        assert entry["metrics"] == {row.key: row.value for row in run.result.metrics.rows()}
    iterations = {entry["label"]: entry["metrics"]["iteration_ns"] for entry in message["results"]}
    # The copies take 10 and 20 us, the last layer's input stays: forward 10 + 20 + 9, backward 20 + 14 + 10.
    assert iterations == {"ideal": 60_000, "none": 60_000, "vdnn": 83_000}
    table = simgpu("compare", study).stdout
    for label, nanoseconds in iterations.items():
        assert any(line.split()[:2] == [label, f"{nanoseconds / 1000:.4g}"] for line in table.splitlines())


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_note_of_several_policies_is_printed_once_with_their_names(study: Path, command: str) -> None:
    policies = "policies=[save_on_cpu, vdnn, async_offload, async_offload: {stash: 1}]"
    lines = simgpu(command, study, "-q", "--set", policies).stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "tensors that autograd saves: derived from" in line)
    names = [line.split("  ")[0] for line in lines[at : at + 3]]
    assert names == ["save_on_cpu,", "async_offload,", "async_offload(stash=1)"]
    assert max(map(len, lines)) <= 80


def test_a_note_of_a_policy_with_a_long_label_has_lines_of_its_own(study: Path) -> None:
    policies = "policies=[none, async_offload: {stash: 1, prefetch: 3, min_bytes: 60000}, save_on_cpu]"
    lines = simgpu("run", study, "-q", "--set", policies).stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "tensors that autograd saves: derived from" in line)
    assert "async_offload(" in lines[at - 1] and lines[at].startswith("  tensors") and max(map(len, lines)) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare"])
def test_output_fits_80_columns_and_is_plain_in_a_pipe(study: Path, command: str) -> None:
    policies = "policies=[ideal, none, vdnn, vdnn: {mode: conv}, vdnn: {mode: dynamic}]"
    done = simgpu_process(command, study, "--set", policies)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every policy take much longer than the delay before progress is printed."""
    real = experiment.simulate

    def simulate(*arguments: object, **settings: object) -> object:
        time.sleep(0.3)
        return real(*arguments, **settings)

    monkeypatch.setattr(experiment, "simulate", simulate)
    monkeypatch.setattr("simgpu.cli.screen._PATIENCE_S", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_a_long_run_writes_progress_lines_to_stderr_and_json_to_stdout(study: Path) -> None:
    done = simgpu("run", study, "--json")
    lines = done.stderr.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["ideal", "none", "vdnn"]
    assert all(re.fullmatch(r"\w+ \(\d+ s\)", line) for line in lines)
    assert len(json.loads(done.stdout)["results"]) == 3


@pytest.mark.usefixtures("slow")
def test_a_long_run_reports_its_current_stage(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgpu.cli.screen._PLAIN_PAUSE_S", 0.05)
    assert simgpu("compare", study, "--set", "policies=none").stderr.count("none (0 s)\n") > 1


def test_progress_lines_are_throttled_and_new_stages_immediate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count()
    monkeypatch.setattr("simgpu.cli.screen.monotonic", lambda: 2.0 * next(clock))
    with progress(quiet=False) as say:
        for done in ("──", "━─", "━━"):
            say(f"searching {done}")
        say("running")
    assert [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()] == ["searching ──", "running"]


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_quiet_prints_no_progress(study: Path) -> None:
    assert not simgpu("compare", study, "--quiet").stderr


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_styles_unless_no_color(study: Path, no_color: str, coloured: bool) -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color}
    if not no_color:
        del environment["NO_COLOR"]
    root = Path(__file__).resolve().parents[2]
    code = "from rich.text import Text; from simgpu.cli.screen import Screen; Screen().print(Text('x', style='red'))"
    subprocess.run([sys.executable, "-c", code], stdout=child, env=environment, cwd=root, check=True, timeout=60)
    os.close(child)
    text = os.read(parent, 1000)
    os.close(parent)
    assert (b"\x1b[31m" in text) is coloured


def test_settings_change_scenario_and_node(study: Path) -> None:
    done = simgpu("run", study, "--json", "--set", "node.gpu.memory=1 GiB", "--set", "iterations=2")
    first = json.loads(done.stdout)["results"][0]
    assert (first["budget_bytes"], first["iterations"]) == (2**30, 2)
    assert first["node"]["name"] == "bench[gpu.memory=1 GiB]"


def test_exit_3_only_when_every_policy_is_out_of_memory(study: Path) -> None:
    some = simgpu("compare", study, "--set", "node.gpu.memory=550 kB")
    assert some.exit_code == 0
    assert "OOM" in some.stdout
    assert "none: out of device memory" in some.stderr
    every = simgpu("run", study, "--set", "node.gpu.memory=550 kB", "--set", "policies=none")
    assert every.exit_code == 3
    assert every.stderr.startswith("Error: none: out of device memory")
    with_ideal = simgpu("run", study, "--set", "node.gpu.memory=550 kB", "--set", "policies=[ideal, none]")
    assert with_ideal.exit_code == 3, "ideal has memory without limit, so it says nothing of what fits"
    for word in ("kernel", "requests", "largest free block", "resident", "largest working set"):
        assert word in every.stderr
    assert 'try --set "policies=[vdnn]": fits, ' in " ".join(every.stderr.split())
    assert "try vdnn: fits" in " ".join(some.stderr.split())


def test_an_out_of_memory_message_wraps_between_numbers_and_not_before_units(study: Path) -> None:
    for policies in ("none", "[none, vdnn]"):
        done = simgpu("run", study, "--set", "node.gpu.memory=550 kB", "--set", f"policies={policies}")
        lines = done.stderr.splitlines()
        first = next(i for i, line in enumerate(lines) if "none: out of device memory" in line)
        message = list(itertools.takewhile(bool, lines[first:]))
        assert len(message) > 1
        assert max(map(len, message)) <= 80
        assert all(line.startswith("  ") for line in message[1:])
        assert not any(re.match(r"\s+(kB|KiB|B)\b", line) for line in message)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_refusing_policy_does_not_affect_the_results_of_others(study: Path, command: str) -> None:
    done = simgpu(command, study, "--set", "policies=[none, cdma]")
    assert done.exit_code == 0
    assert "refused" in done.stdout
    assert "cdma: node.gpu.cdma: node bench has no compressing DMA engine" in done.stderr
    assert not re.search(r"^try\b", done.stderr, re.M), "memory is not what is missing"
    message = json.loads(simgpu(command, study, "--json", "--set", "policies=[none, cdma]").stdout)["results"]
    assert "metrics" in message[0]
    assert "no compressing DMA engine" in message[1]["refused"]["message"]


def test_exit_codes_where_policies_refuse(study: Path) -> None:
    every = simgpu("run", study, "--set", "policies=[cdma, cswap]")
    assert every.exit_code == 2
    assert every.stderr.startswith("Error: cdma: node.gpu.cdma: ")
    assert "Error: cswap: chain: sparsity: " in every.stderr
    tight = ("--set", "node.gpu.memory=550 kB")
    assert simgpu("run", study, *tight, "--set", "policies=[none, cdma]").exit_code == 3, "none says what does not fit"
    assert simgpu("run", study, *tight, "--set", "policies=[none, vdnn, cdma]").exit_code == 0


def test_suggested_policies_are_valid_command_line_arguments(study: Path) -> None:
    options = ("--trace", study.parent / "chain", "--node", study.parent / "node.yaml", "--memory", "550 kB")
    message = " ".join(simgpu("compare", *options, "--policy", "none").stderr.split())
    words = re.findall(r'--policy "([^"]+)": fits', message)
    assert "vdnn" in words
    for policy in words:
        assert simgpu("compare", *options, "--policy", policy).exit_code == 0
    study_text = " ".join(simgpu("compare", study, "--set", "budget=550 kB", "--set", "policies=none").stderr.split())
    settings = re.findall(r'--set "([^"]+)": fits', study_text)
    assert len(settings) == len(words)
    for setting in settings:
        assert simgpu("compare", study, "--set", "budget=550 kB", "--set", setting).exit_code == 0


def test_json_contains_runs_out_of_memory(study: Path) -> None:
    done = simgpu("run", study, "--json", "--set", "node.gpu.memory=550 kB")
    by_label = {entry["label"]: entry for entry in json.loads(done.stdout)["results"]}
    message = by_label["none"]["out_of_memory"]
    assert message["capacity"] == 550_000
    assert message["requested"] > message["largest_hole"]
    assert sum(holder["bytes"] for holder in message["holders"]) <= message["capacity"]
    assert by_label["ideal"]["metrics"]["iteration_ns"] == 60_000


def test_json_names_its_sources_even_without_results(study: Path) -> None:
    done = simgpu("run", study, "--json", "--set", "node.gpu.memory=550 kB", "--set", "policies=none")
    assert done.exit_code == 3
    message = json.loads(done.stdout)["trace"]
    assert (message["name"], message["origin"], message["device"], message["date"]) == (
        "chain",
        "modelled",
        "hand-made",
        "",
    )


def test_outputs_are_written_as_one_folder_and_replaced_as_one(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    formats = ["--set", "outputs.timeline=[csv, perfetto]", "--set", "outputs.plots=[memory]"]
    done = simgpu("run", study, "-o", out, *formats, "--set", "outputs.image=svg")
    assert done.exit_code == 0, done.stderr
    assert f"written to {out}" in done.stdout
    files = {"timeline.csv", "memory.csv", "kernels.csv", "blocks.csv", "timeline.perfetto.json", "memory.svg"}
    files |= {"tasks.json", "program.json"}
    assert {path.name for path in (out / "vdnn").iterdir()} == files
    assert {path.name for path in out.iterdir()} == {"report.json", "ideal", "none", "vdnn"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    again = simgpu("run", study, "-o", out, "--set", "policies=none")
    assert again.exit_code == 0, again.stderr
    assert {path.name for path in out.iterdir()} == {"report.json", "none"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_report_json_equals_printed_json_and_is_reproducible(study: Path, tmp_path: Path) -> None:
    printed = simgpu_process("run", study, "--json", "-o", tmp_path / "a").stdout
    simgpu_process("run", study, "-o", tmp_path / "b")
    assert (tmp_path / "a" / "report.json").read_text() == printed == (tmp_path / "b" / "report.json").read_text()


@pytest.mark.slow
def test_ctrl_c_exits_with_130(study: Path) -> None:
    # Jobs in the background inherit that the signal is ignored, so the child takes it up anew.
    code = (
        "import os, signal; from simgpu.cli import main; import simgpu.cli.choice as choice\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "choice.load_scenario = lambda *a: os.kill(os.getpid(), signal.SIGINT)\n"
        f"main(['run', {str(study)!r}], prog_name='simgpu')"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_an_unexpected_exception_keeps_its_traceback(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake in simgpu")

    monkeypatch.setattr("simgpu.cli.choice.load_scenario", broken)
    done = simgpu("run", study)
    assert isinstance(done.exception, RuntimeError)
