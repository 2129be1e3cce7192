"""``simgpu check``: stored files, comparison, messages and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from click.testing import Result

from tests.cli.cli_helpers import NODE, make_study, simgpu

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


@pytest.fixture
def stored(study: Path, tmp_path: Path) -> Path:
    """A folder of stored timings."""
    folder = tmp_path / "timings"
    assert check(study, folder, "--update").output == "study: new\n"
    return folder


def check(study: Path | str, folder: Path, *options: str) -> Result:
    result = simgpu("check", study, "--against", folder, *options)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    return result


def slower(study: Path) -> None:
    """A link that is 1% slower both ways."""
    (study.parent / "node.yaml").write_text(NODE.replace("10 GB/s", "9.9 GB/s"))


def test_unchanged_timings_pass(study: Path, stored: Path) -> None:
    result = check(study, stored)
    assert (result.exit_code, result.output) == (0, "study: same\n")
    assert sorted(path.name for path in (stored / "study").iterdir()) == [
        *("ideal.csv.gz", "none.csv.gz", "timings.json", "vdnn.csv.gz"),
    ]


def test_a_slower_link_is_reported_with_the_first_slower_copy(study: Path, stored: Path) -> None:
    slower(study)
    result = check(study, stored)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "study: differs"
    assert "    node.link.d2h_bandwidth: 10000000000 -> 9900000000" in lines
    assert "  vdnn" in lines
    assert not {"  ideal", "  none"} & set(lines)
    assert "    timelines diverge at 10 us, on d2h: copy_d2h x1 ends 102 ns later" in lines
    assert "    > end         10,000 ns  10,102 ns" in lines
    assert lines[-1] == "1 of 1 differ from stored: study; --update stores the current results"


def test_an_update_reports_changes_and_stores_them(study: Path, stored: Path) -> None:
    slower(study)
    result = check(study, stored, "--update")
    assert result.exit_code == 0
    assert result.output.startswith("study: changed\n  vdnn: iteration_ns, samples_per_s, ")
    assert check(study, stored).output == "study: same\n"
    before = {path: path.stat().st_mtime_ns for path in (stored / "study").iterdir()}
    assert check(study, stored, "--update").output == "study: same\n"
    assert {path: path.stat().st_mtime_ns for path in (stored / "study").iterdir()} == before


def test_an_update_drops_removed_policies(study: Path, stored: Path) -> None:
    study.write_text(study.read_text().replace("[ideal, none, vdnn]", "[ideal, vdnn: {mode: conv}, home]"))
    assert "only stored: none" in check(study, stored).output
    result = check(study, stored, "--update")
    assert "  home is new\n  none is removed\n" in result.output
    assert not (stored / "study" / "none.csv.gz").exists()
    assert check(study, stored).exit_code == 0


def test_differences_within_tolerances_pass_and_are_reported(study: Path, stored: Path) -> None:
    slower(study)
    result = check(study, stored, "--tolerance", "*=10%")
    assert result.exit_code == 0
    assert result.output.startswith("study: same within tolerances\n")
    assert "vdnn (does not count)" in result.output
    assert "as metrics have tolerances" in " ".join(result.output.split())
    assert check(study, stored, "--tolerance", "iteration_ns=2%").exit_code == 1


def test_command_line_tolerances_override_those_of_the_folder(study: Path, stored: Path) -> None:
    (stored / "tolerances.yaml").write_text("schema: simgpu.tolerances/2\ntolerances:\n  '*': 10%\n")
    slower(study)
    assert check(study, stored).exit_code == 0
    assert check(study, stored, "--tolerance", "iteration_ns=0").exit_code == 1
    assert check(study, stored, "--tolerance", "iteration_ns=0", "--tolerance", "iteration_ns=1 us").exit_code == 0


def test_changed_settings_are_reported(study: Path, stored: Path) -> None:
    result = check(study, stored, "--set", "seed=1")
    assert result.exit_code == 1
    assert "  stored with other settings:\n    seed: nothing -> 1\n" in result.output
    assert check(study, stored, "--set", "seed=1", "--update").exit_code == 0
    assert check(study, stored, "--set", "seed=1").exit_code == 0
    assert "seed: 1 -> nothing" in check(study, stored).output


def test_timings_of_one_engine_are_those_of_the_other(study: Path, stored: Path) -> None:
    for engine in ("simpy", "compiled"):
        assert check(study, stored, "--set", f"engine={engine}").exit_code == 0


def test_out_of_memory_is_reported_as_a_changed_outcome(study: Path, stored: Path) -> None:
    (study.parent / "node.yaml").write_text(NODE.replace("8 GiB", "0.55 MB"))
    result = check(study, stored)
    assert result.exit_code == 1
    assert "  none\n    outcome: ran -> out of memory\n    waiting: nothing -> kernel F" in result.output
    assert check(study, stored, "--update").exit_code == 0
    assert check(study, stored).output == "study: same\n"


def test_several_checks_print_a_line_each_and_a_summary(study: Path, stored: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(study.read_text().replace("name: study", "name: other"))
    missing = simgpu("check", study, other, "--against", stored)
    assert missing.exit_code == 1
    assert missing.output.splitlines() == [
        "study: same",
        "other: no stored result; --update writes it",
        "",
        "1 of 2 differ from stored: other; --update stores the current results",
    ]
    assert simgpu("check", study, other, "--against", stored, "--update").output == "study: same\nother: new\n"
    both = simgpu("check", study, other, "--against", stored)
    assert (both.exit_code, both.output) == (0, "study: same\nother: same\n\nall 2 same as stored\n")


def test_json_output_is_one_document(study: Path, stored: Path) -> None:
    same = json.loads(simgpu("check", study, "--against", stored, "--json").stdout)
    assert same["scenarios"] == [{"name": "study", "verdict": "same", "difference": None}]
    slower(study)
    result = simgpu("check", study, "--against", stored, "--json", "--tolerance", "iteration_ns=2%")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["schema"], document["same"]) == (1, "simgpu.check/1", False)
    (policy,) = document["scenarios"][0]["difference"]["policies"]
    value = policy["values"][0]
    assert (value["key"], value["tolerated"], value["tolerance"]) == ("iteration_ns", True, {"iteration_ns": "2%"})
    event = policy["first_event"]
    assert (event["stream"], event["differs"], event["now"]["kind"]) == ("d2h", ["end_ns"], "copy_d2h")
    assert event["now"]["end_ns"] - event["stored"]["end_ns"] == 102


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tolerance", "itertion_ns=1%"), "did you mean 'iteration_ns'?"),
        (("--tolerance", "iteration_ns"), "'iteration_ns' is not KEY=VALUE; write, for example, --tolerance"),
        (("--tolerance", "*=5 us"), "'5 us' is a time, but samples_per_s is a number"),
        (("--tolerance", "*=1%", "--update"), "leave out --tolerance"),
        (("--set", "iteratons=1"), "did you mean 'iterations'?"),
    ],
)
def test_bad_options_exit_with_2(options: tuple[str, ...], message: str, study: Path, stored: Path) -> None:
    result = check(study, stored, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_bad_folders_and_files_exit_with_2_before_anything_runs(study: Path, stored: Path, tmp_path: Path) -> None:
    assert "no such folder; give the folder of stored timings" in check(study, tmp_path / "none").stderr
    assert "two scenarios are called 'study'" in simgpu("check", study, study, "--against", stored).stderr
    (stored / "study" / "vdnn.csv.gz").write_bytes(b"")
    damaged = check(study, stored)
    assert (damaged.exit_code, damaged.stdout) == (2, "")
    assert "vdnn.csv.gz: " in damaged.stderr
    assert check(study, stored, "--update").output == "study: replaced; the stored result could not be read\n"
    (stored / "study" / "mine.txt").write_text("mine")
    slower(study)
    foreign = check(study, stored, "--update")
    assert (foreign.exit_code, foreign.stdout) == (2, "")
    assert "mine.txt" in foreign.stderr


def test_folder_names_are_sanitized_scenario_names(study: Path, tmp_path: Path) -> None:
    for name, message in (("../../ä b", ""), ("///", "cannot be converted to a folder name")):
        study.write_text(study.read_text().replace("name: study", f"name: {name!r}"))
        result = check(study, tmp_path / "safe", "--update")
        assert message in result.stderr
        study.write_text(study.read_text().replace(f"name: {name!r}", "name: study"))
    assert [path.name for path in (tmp_path / "safe").iterdir()] == ["b"]


def _hears_ctrl_c() -> None:
    """Restores Ctrl-C handling, which background jobs ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_an_interrupt_exits_with_130_and_preserves_stored_results(stored: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(stored.rglob("*")) if path.is_file()}
    command = "from simgpu.cli import main; main(prog_name='simgpu')"
    names = ["quickstart", "resnet152-k40"]
    running = subprocess.Popen(
        [sys.executable, "-c", command, "check", *names, "--against", str(stored), "--update", "-q"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_hears_ctrl_c,
    )
    deadline = monotonic() + 60
    while not (stored / "quickstart").exists() and monotonic() < deadline:
        sleep(0.02)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert sorted(path.name for path in stored.iterdir()) == ["quickstart", "study"]
    assert {path: path.read_bytes() for path in before} == before
