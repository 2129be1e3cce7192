"""Terminal output: optional colours, erased progress, lines that fit, and closed pipes."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu
from tests.cli.test_habits_interrupt import STUDY

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from simgpu.__main__ import main; main()"
ESCAPE = "\x1b"
#: Colours, bold and dim; moving the cursor is none of it.
_LOOK = re.compile("\x1b\\[[0-9;]*m")
#: Progress is shown at once, of a comparison that takes a moment longer.
SLOW = """\
import time
import simgpu.cli.screen as screen
import simgpu.experiments.compare as experiment
screen._PATIENCE_S = 0.0
compare = experiment.compare
def slowly(*given, progress, **rest):
    progress("working")
    time.sleep(0.3)
    return compare(*given, progress=progress, **rest)
experiment.compare = slowly
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment(more: Mapping[str, str]) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return {**without, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "80", **more}


def on_terminal(*words: str, before: str = "", **more: str) -> tuple[str, str]:
    """The standard output and standard error of a command, each on its own terminal."""
    shown = []
    pairs = [pty.openpty(), pty.openpty()]
    command = [sys.executable, "-c", before + PROGRAM, *words]
    with subprocess.Popen(command, stdout=pairs[0][1], stderr=pairs[1][1], env=environment(more)) as process:
        for simulated, expected in pairs:
            os.close(expected)
            text = b""
            while True:
                try:
                    piece = os.read(simulated, 65536)
                except OSError:  # nobody has the other end any more
                    break
                if not piece:
                    break
                text += piece
            os.close(simulated)
            shown.append(text.decode().replace("\r\n", "\n"))
        process.wait(timeout=60)
    return shown[0], shown[1]


def piped(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, env=environment(more), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_terminal_gets_styles_and_no_color_gives_the_same_plain_text() -> None:
    looked, error = on_terminal("list", "policies", "vdnn")[0], on_terminal("list", "policies", "vdn")[1]
    assert _LOOK.search(looked) and _LOOK.search(error)
    plain, plain_error = (
        on_terminal("list", "policies", "vdnn", NO_COLOR="1")[0],
        on_terminal("list", "policies", "vdn", NO_COLOR="1")[1],
    )
    assert (plain, plain_error) == (_LOOK.sub("", looked), _LOOK.sub("", error))
    assert ESCAPE not in plain + plain_error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "looks"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, False),
    ],
)
def test_a_pipe_gets_styles_if_forced(settings: dict[str, str], looks: bool) -> None:
    assert (ESCAPE in piped("list", "policies", "vdnn", **settings).stdout) == looks
    assert (ESCAPE in piped("list", "policies", "vdn", **settings).stderr) == looks


def test_a_dumb_terminal_gets_plain_text() -> None:
    assert ESCAPE not in "".join(on_terminal("list", "policies", "vdnn", TERM="dumb"))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"NO_COLOR": "1"}], ids=["colour", "no colour"])
def test_progress_is_animated_on_a_terminal_and_erased(settings: dict[str, str], place: Path) -> None:
    out, error = on_terminal("compare", "study.yaml", before=SLOW, **settings)
    assert "working" in error
    assert error.rstrip().endswith("\x1b[2K"), "the last thing is that the line is erased"
    assert "working" not in out and "\x1b[2K" not in out
    assert bool(_LOOK.search(error)) != bool(settings)


@pytest.mark.slow
def test_quiet_hides_progress_and_prints_results(place: Path) -> None:
    out, error = on_terminal("compare", "study.yaml", "--quiet", before=SLOW)
    assert error == ""
    assert out == on_terminal("compare", "study.yaml")[0]


@pytest.mark.slow
def test_forced_colours_do_not_animate_progress_in_a_pipe(place: Path) -> None:
    command = [sys.executable, "-c", SLOW + PROGRAM, "compare", "study.yaml"]
    done = subprocess.run(
        command, env=environment({"FORCE_COLOR": "1"}), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.startswith("working (0 s)\n")
    assert ESCAPE not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "run --help", "list nodes", "list schema", "run study.yaml --json"])
def test_a_closed_pipe_ends_the_program_silently(words: str, place: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *shlex.split(words)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({}),
    ) as process:
        os.close(write)
        error = process.communicate(timeout=60)[1]
    assert (process.returncode, error) == (141, "")


@pytest.mark.slow
def test_writing_to_a_full_disk_is_a_one_line_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-c", PROGRAM, "list", "nodes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment({}), check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: the output cannot be written: No space left on device; free space on its disk\n"


TABLES = [
    "list nodes",
    "list nodes v100",
    "list nodes buddy-gpu",
    "list policies",
    "list scenarios",
    "trace show vgg11-cifar-cpu",
    "trace stats digits-cnn-cpu",
    "trace show hpc-seismic",
    "zoo list",
    "zoo validate",
    "compression codecs",
    "zoo solvers",
    "memory-bound study.yaml",
    "memory-bound vgg16-b128-v100 --node v100",
    "run study.yaml",
    "run study.yaml --set node.gpu.memory=100KB",
    "compare study.yaml",
    'compare study.yaml --set "policies=[capuchin: {version: published}, superneurons, home: {update: full}, none]"',
    "compare resnet20-addressed",
    "epochs --trace digits-cnn-cpu --node laptop-2gb --policy none",
    "max-batch study.yaml",
    'search study.yaml --policy superneurons --policy "capuchin(version=home)"',
    "study figure.yaml",
    "compression profile hpc-ep",
    "zoo build alexnet --batch 1 --gpu v100 -o alex",
    "zoo solve ep -o solved",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "columns"),
    [*((words, columns) for words in TABLES for columns in (60, 80)), *((w, 200) for w in TABLES[:8])],
)
def test_lines_fit_the_terminal(words: str, columns: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "figure.yaml").write_text(STUDY, encoding="utf-8")
    monkeypatch.setenv("COLUMNS", str(columns))
    done = simgpu(*shlex.split(words))
    assert done.exit_code in (0, 3), done.output
    width = min(columns, 80)
    long = [line for line in (done.stdout + done.stderr).splitlines() if len(line) > width]
    # A single word that is longer than a line has nowhere to go.
    assert [line for line in long if len(line.split()) > 1] == []
