"""Ctrl-C and kill at chosen moments: the exit code, no files left behind, and old results preserved."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest

from simgpu.cli.screen import progress
from simgpu.cli.signals import unwinding
from simgpu.experiments.outputs import PROFILE_FOLDER
from tests.cli.cli_helpers import make_study, simgpu

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
#: Sends a signal to its process group, as a terminal does, at the first event (`sys.audit`) of a kind about a thing, or
#: so many seconds after it.
CHILD = """\
import os, signal, sys, threading
number, kind, about, delay = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
reported = False
def hook(event, arguments):
    global reported
    if event == kind and not reported and about in str(arguments[0]):
        reported = True
        if delay:
            threading.Timer(delay, os.kill, (0, number)).start()
        else:
            os.kill(0, number)
sys.argv = ["simgpu", *sys.argv[5:]]
from simgpu.__main__ import main
sys.addaudithook(hook)
main()
"""
EPOCHS = ["epochs", "--trace", "digits-cnn-cpu", "--node", "laptop-2gb", "--epochs", "0"]
STUDY = """\
schema: simgpu.study/2
node: node.yaml
traces: {chain: chain}
runs: {vDNN: {policy: vdnn}, ideal: {policy: ideal}}
baseline: ideal
"""
#: Long commands that write a folder, and what makes an older one theirs to replace.
WRITING = {
    "run": (["run", "study.yaml"], "report.json", "simgpu.report/0"),
    "study": (["study", "figure.yaml"], "report.json", "simgpu.study-report/0"),
    "epochs": (EPOCHS, "report.json", "simgpu.report/0"),
    "search": (["search", "study.yaml", "--policy", "superneurons"], "report.json", "simgpu.search-report/0"),
    "zoo build": (["zoo", "build", "alexnet", "--batch", "1", "--gpu", "v100", "--force"], "blocks.csv", ""),
    "compression profile": (["compression", "profile", "ones.npy"], "report.json", PROFILE_FOLDER.schema),
    "zoo solve": (["zoo", "solve", "ep", "--force"], "blocks.csv", ""),
}
#: Others, and a moment in the middle of their work.
COMPUTING = {
    "compare": (["compare", "study.yaml"], ("exec", "simgpu/policies/vdnn.py")),
    "max-batch": (["max-batch", "study.yaml"], ("exec", "simgpu/policies/vdnn.py")),
    "memory-bound": (["memory-bound", "study.yaml"], ("open", "kernels.csv")),
    "zoo validate": (["zoo", "validate"], ("open", "published.yaml")),
    "compression tune": (["compression", "tune"], ("import", "sklearn")),
    "trace stats": (["trace", "stats", "chain"], ("open", "blocks.csv")),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test, with a scenario, a study and an array."""
    import numpy as np

    make_study(tmp_path)
    (tmp_path / "figure.yaml").write_text(STUDY, encoding="utf-8")
    np.save(tmp_path / "ones.npy", np.ones((64, 64), dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def interrupted(moment: tuple[str, str], *words: str, number: int = signal.SIGINT, delay: float = 0) -> tuple[int, str]:
    """The exit code and stderr of a command that gets the signal at that moment or later."""
    child = [sys.executable, "-c", CHILD, str(int(number)), *moment, str(delay)]
    command = ["env", "--default-signal", *child]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )
    # After an interrupt inside `exec`, Python ends by the signal itself, which a shell reports as a negative code.
    return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stderr


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def is_quiet(said: str) -> bool:
    """Whether stderr is empty except for progress lines on a slow machine."""
    return not [line for line in said.splitlines() if line and not line.endswith(" s)")]


@pytest.mark.parametrize("name", WRITING)
def test_ctrl_c_during_a_write_leaves_only_the_old_results(name: str, place: Path) -> None:
    words, file, schema = WRITING[name]
    (place / "out").mkdir()
    (place / "out" / file).write_text(json.dumps({"schema": schema}), encoding="utf-8")
    before = contents(place)
    code, said = interrupted(("open", ".part/"), *words, "-o", "out")
    assert (code, is_quiet(said)) == (130, True), said
    assert contents(place) == before


@pytest.mark.parametrize("name", COMPUTING)
def test_ctrl_c_during_a_computation_exits_with_130(name: str, place: Path) -> None:
    words, moment = COMPUTING[name]
    if moment[0] == "import" and "." not in moment[1] and importlib.util.find_spec(moment[1]) is None:
        pytest.skip(f"needs {moment[1]}")
    before = contents(place)
    code, said = interrupted(moment, *words)
    assert (code, is_quiet(said)) == (130, True), said
    assert contents(place) == before


@pytest.mark.parametrize("delay", [0.1, 0.3])
def test_ctrl_c_during_a_search_exits_with_130(delay: float, place: Path) -> None:
    moment = ("exec", "simgpu/policies/home.py")
    code, said = interrupted(moment, "search", "vgg16-v100", "--budget", "6GiB", "-o", "found", delay=delay)
    assert (code, is_quiet(said)) == (130, True), said
    assert not (place / "found").exists()


@pytest.mark.parametrize("module", ["click", "simgpu.cli.screen", "numpy", "pydantic"])
def test_ctrl_c_during_imports_exits_with_130(module: str, place: Path) -> None:
    code, said = interrupted(("import", module), "run", "study.yaml", "-o", "out")
    assert (code, is_quiet(said)) == (130, True), said
    assert not (place / "out").exists()


def test_ctrl_c_does_not_interrupt_the_replacement_of_the_output_folder(place: Path) -> None:
    assert simgpu("run", "study.yaml", "-o", "out").exit_code == 0
    before = contents(place)
    (place / "out" / "report.json").write_text('{"schema": "simgpu.report/0"}', encoding="utf-8")
    code, said = interrupted(("os.rename", "/out"), "run", "study.yaml", "-o", "out")
    assert (code, is_quiet(said)) == (130, True), said
    assert contents(place) == before, "the new results whole, the old ones gone"


def test_ctrl_c_removes_created_parent_folders(place: Path) -> None:
    before = contents(place)
    assert interrupted(("open", ".part/"), "run", "study.yaml", "-o", "new/er/out")[0] == 130
    assert contents(place) == before


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_ctrl_c_during_a_recording_exits_with_130(place: Path) -> None:
    before = contents(place)
    code, said = interrupted(("open", ".part/"), "record", "mlp", "--batch", "4", "-o", "new", "--save-maps", "maps")
    assert (code, is_quiet(said)) == (130, True), said
    assert contents(place) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_cleans_up_like_ctrl_c(number: int, place: Path) -> None:
    before = contents(place)
    code, said = interrupted(("open", ".part/"), "run", "study.yaml", "-o", "new", number=number)
    assert (code, is_quiet(said)) == (128 + number, True), said
    assert contents(place) == before


def test_a_suppressed_interrupt_is_raised_again_at_the_next_step(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt), unwinding(), progress(quiet=True) as say:  # at the latest at its end
        say("a step")
        with suppress(KeyboardInterrupt):  # as compiled code does that drops what is raised within it
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            say("the next step")
    with progress(quiet=True) as say:
        say("of the next command")


def test_an_ignored_signal_stays_ignored(place: Path) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", CHILD, str(int(signal.SIGHUP))]
    words = [*command, "open", ".part/", "0", "run", "study.yaml", "-o", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    assert (place / "out" / "report.json").is_file()


def test_a_command_called_by_a_program_restores_signal_handlers(place: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert simgpu("trace", "check", "chain").exit_code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_ctrl_c_dropped_by_python_is_raised_again(request: pytest.FixtureRequest) -> None:
    """Python drops exceptions in `__del__`; the command must end nevertheless."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    class Vanishing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            sleep(0)  # here Python looks at signals

    with pytest.raises(KeyboardInterrupt), unwinding():
        Vanishing()
        sleep(5)
