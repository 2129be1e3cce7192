"""``simgpu sweep``: output, exit codes, and that a kill loses no finished point."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.cli.sweep import Count
from simgpu.experiments.scenarios.load_sweep import load_sweep
from simgpu.experiments.sweep.run import run_sweep
from tests.cli.cli_helpers import make_study, simgpu
from tests.experiments.sweeps import results

ROOT = Path(__file__).resolve().parents[2]
POINTS = 16
#: Of about a tenth of a second a point.
SLOW = f"""\
schema: simgpu.scenario/2
name: slow
trace: resnet20-cifar-cpu
node: laptop-2gb
policies: vdnn
iterations: 40
sweep:
  grid:
    seed: [{", ".join(map(str, range(POINTS)))}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test, with a small sweep and a slow one."""
    study = make_study(tmp_path)
    study.write_text(study.read_text() + "sweep:\n  grid: {budget: [600 kB, 800 kB, 1 MB]}\n  points: [{seed: 1}]\n")
    (tmp_path / "slow.yaml").write_text(SLOW, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sweep_prints_its_axes_and_the_results_folder(place: Path) -> None:
    done = simgpu("sweep", "study.yaml", "--jobs", 1)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[:4] == ["study", "about   a hand-made chain", "varies  budget: 3", "varies  seed: 1"]
    assert "600 kB, 1" in lines and "1 MB, 1" in lines
    assert "written  results/study-sweep: results.csv, results.parquet, sweep.json" in lines
    assert sum(line.startswith("  none ") for line in lines) == 3
    again = simgpu("sweep", "study.yaml", "--jobs", 1)
    assert again.stdout == done.stdout.replace("points   3", "points   3, 0 of them run in this call")


def test_a_sweep_of_seeds_prints_their_spread(place: Path) -> None:
    seeds = ["--set", "sweep.points=[{seed: 1}, {seed: 2}]", "--set", "sweep.grid.budget=[100 kB, 1 MB]"]
    lines = simgpu("sweep", "study.yaml", "--jobs", 1, *seeds, "--set", "policies=[none]").stdout.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line == "budget: step time over the seeds")
    assert [line.split() for line in lines[start + 1 : start + 6]] == [
        ["policy", "seeds", "mean", "std.", "dev.", "min", "max"],
        ["100", "kB"],
        ["none", "0", "of", "2", "OOM", "-", "-", "-"],
        ["1", "MB"],
        ["none", "2", "60", "us", "0", "ns", "60", "us", "60", "us"],
    ]
    assert "budget: peak memory over the seeds" in lines


def test_a_sweep_writes_a_figure_and_a_latex_table(place: Path) -> None:
    papers = ["--figure", "times.SVG", "--latex", "times.TEX", "--metric", "slowdown"]
    done = simgpu("sweep", "study.yaml", "--jobs", 1, *papers)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "written  times.SVG, times.TEX"
    assert ">slowdown</text>" in (place / "times.SVG").read_text(encoding="utf-8")
    assert r"\multicolumn" in (place / "times.TEX").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--figure", "times.jpg"], "times.jpg: 'jpg' is not a format of figures; end the name in one of"),
        (["--figure", "no/times.pdf"], "no/times.pdf: --figure: there is no folder no; create it"),
        (["--latex", "times.pdf"], "times.pdf: '.pdf' is no LaTeX file; end the name in .tex"),
        (["--figure", "times.pdf", "--over", "node"], "study: sweep: 'node' is not varied by this sweep;"),
        (["--over", "budget"], "--over needs --figure, whose x axis it names."),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_anything_runs(
    place: Path, options: list[str], message: str
) -> None:
    done = simgpu("sweep", "study.yaml", "--jobs", 1, *options)
    assert (done.exit_code, message in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not (place / "results").exists()


@pytest.mark.parametrize("paper", [[], ["--latex", "times.tex"], ["--figure", "times.pdf"]])
def test_an_unknown_metric_is_refused_before_anything_runs(place: Path, paper: list[str]) -> None:
    done = simgpu("sweep", "study.yaml", "--jobs", 1, *paper, "--metric", "slow")
    assert done.exit_code == 2
    message = "Error: --metric: 'slow' is not a numeric column of this sweep; did you mean 'slowdown'? known: "
    assert message in " ".join(done.stderr.split())
    assert max(map(len, done.stderr.splitlines())) <= 80, "the list of columns is wrapped"
    assert not (place / "results").exists()


def test_a_metric_without_a_number_in_any_run_is_refused_after_it(place: Path) -> None:
    options = ["--latex", "times.tex", "--metric", "fragmentation"]
    done = simgpu("sweep", "study.yaml", "--jobs", 1, "--set", "sweep.points=[]", *options)
    assert done.exit_code == 2
    assert "Error: --metric: 'fragmentation' is not a numeric column" in " ".join(done.stderr.split())
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert (place / "results" / "study-sweep" / "results.csv").exists() and not (place / "times.tex").exists()


@pytest.mark.slow
def test_many_rows_are_only_written_to_files(place: Path) -> None:
    done = simgpu(
        "sweep", "study.yaml", "--jobs", 1, "--set", f"sweep.grid.seed={list(range(20))}", "--set", "sweep.points=[]"
    )
    assert done.exit_code == 0
    assert "points   60" in done.stdout and "samples/s" not in done.stdout
    assert len((place / "results" / "study-sweep" / "results.csv").read_text().splitlines()) == 181


@pytest.mark.slow
def test_sweep_has_the_documented_exit_codes(place: Path) -> None:
    assert (
        simgpu(
            "sweep", "study.yaml", "--jobs", 1, "--set", "sweep.grid.budget=[1 kB]", "--set", "policies=vdnn"
        ).exit_code
        == 3
    )
    refused = simgpu("sweep", "study.yaml", "--jobs", 1, "--restart", "--set", "policies=oracle")
    assert refused.exit_code == 2
    assert "3 rows refused: " in refused.stderr and "Error: no point has a result" in refused.stderr
    other = simgpu("sweep", "study.yaml", "--jobs", 1)
    assert other.exit_code == 2 and other.stderr.startswith(
        "Error: results/study-sweep: contains the results of another sweep"
    )
    without = simgpu("sweep", "quickstart")
    assert without.exit_code == 2 and "has no sweep" in without.stderr
    both = simgpu("sweep", "study.yaml", "--jobs", 2, "--dask", "tcp://127.0.0.1:1")
    assert both.exit_code == 2 and "leave out one of them" in both.stderr


def test_run_mentions_the_sweep_and_runs_the_scenario(place: Path) -> None:
    done = simgpu("run", "study.yaml")
    assert done.exit_code == 0
    assert "sweep   3 points, run by: simgpu sweep study.yaml" in re.sub(" +(?=3 points)", "   ", done.stdout)


def test_progress_shows_rate_and_time_left() -> None:
    times = iter([0.0, 10.0, 10.1, 3610.0])
    count = Count(lambda: next(times))
    message = [count.text(done, 1000).partition("─ ")[2] for done in (400, 410, 411, 500)]
    assert message == [
        "400 of 1000",
        "410 of 1000, 1/s, 10 min left",
        "411 of 1000, 1.09/s, 9 min left",
        "500 of 1000, 0.0277/s, 5.0 h left",
    ]


def started(mark: str, *words: str) -> subprocess.Popen[str]:
    """Starts the command in a new session, as in a terminal; all its processes carry the mark."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MARK": mark}
    command = ["env", "--default-signal", sys.executable, "-m", "simgpu", "sweep", *words]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )


def alive(mark: str) -> list[int]:
    """Processes that carry a mark and have not ended."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (process / "environ").read_bytes():
                result.append(int(process.name))
        except OSError:
            continue
    return result


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def log_of(folder: Path) -> int:
    """Size of the database's log in bytes; it grows with every stored point."""
    try:
        return (folder / "points.sqlite-wal").stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.exhaustive
def test_a_kill_at_any_moment_loses_no_finished_point(place: Path) -> None:
    """Killed before the first point, in the middle, and while the tables are written."""
    home, mark = place / "out", uuid.uuid4().hex
    moments: list[Callable[[], bool]] = [
        lambda: (home / "points.sqlite").exists(),
        lambda: log_of(home) > 90_000,
        lambda: any(home.glob(".results.csv.*.part")) or (home / "results.csv").exists(),
    ]
    for moment in moments:
        running = started(mark, "slow.yaml", "-o", "out", "--jobs", "2", "-q")
        until(moment)
        running.kill()
        running.communicate()
        until(lambda: not alive(mark), 10)
    message: list[int] = []
    result = run_sweep(load_sweep("slow.yaml"), folder="out", progress=lambda done, total: message.append(done))
    assert (message, result.ran) == ([POINTS], 0), "the third kill came when all were kept"
    run_sweep(load_sweep("slow.yaml"), folder="undisturbed")
    assert results(home) == results(place / "undisturbed")
    assert sorted(file.name for file in home.iterdir()) == [
        "points.sqlite",
        "results.csv",
        "results.parquet",
        "sweep.json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_all_processes_and_the_sweep_can_resume(place: Path, jobs: str) -> None:
    home, mark = place / "out", uuid.uuid4().hex
    running = started(mark, "slow.yaml", "-o", "out", "--jobs", jobs, "-q")
    until(lambda: log_of(home) > 70_000)
    os.killpg(running.pid, signal.SIGINT)
    _, message = running.communicate(timeout=20)
    assert running.returncode == 130
    result = re.fullmatch(rf"stopped after (\d+) of {POINTS} points; run the same command to resume\n", message)
    assert result is not None, message
    assert [file.name for file in home.iterdir()] == ["points.sqlite"]
    assert not alive(mark)
    assert run_sweep(load_sweep("slow.yaml"), folder="out").ran == POINTS - int(result[1])
