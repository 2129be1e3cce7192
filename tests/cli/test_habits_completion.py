"""Shell completion: the completions offered, also in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from click.shell_completion import ShellComplete

from simgpu.cli import SECTIONS, main
from simgpu.compression.codecs.registry import codec_names
from simgpu.experiments.scenarios.catalogue import shipped_scenarios, shipped_studies
from simgpu.hardware.nodes import node_names
from simgpu.io.shipped import shipped_names
from simgpu.papers.claims import PAPERS
from simgpu.policies.registry import policy_names
from simgpu.workloads.catalogue import NETWORKS
from simgpu.workloads.solvers.catalogue import SOLVERS
from tests.cli.cli_helpers import make_study

COMMANDS = {name: line for section in SECTIONS.values() for name, (_, line) in section.items()}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def offered(line: str) -> list[str]:
    """The completions of the last word of a line; the kind of a path in angle brackets."""
    *words, last = line.split(" ")
    result = ShellComplete(main, {}, "simgpu", "_SIMGPU_COMPLETE").get_completions(words, last)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in result]


def test_commands_are_offered_with_their_summaries() -> None:
    result = ShellComplete(main, {}, "simgpu", "_SIMGPU_COMPLETE").get_completions([], "")
    assert [(item.value, item.help) for item in result] == list(COMMANDS.items())
    assert offered("com") == ["compare", "compression"]
    assert offered("compression ") == ["codecs", "measure", "tune", "times", "profile"]
    assert offered("--v") == ["--version"]


def test_completing_commands_imports_none_of_them() -> None:
    done = ask("simgpu ", "; print(sorted(n for n in sys.modules if n.startswith('simgpu.cli.')), file=sys.stderr)")
    assert done.stdout.split() == [f"plain,{name}" for name in COMMANDS]
    known = {"simgpu.cli.group", "simgpu.cli.signals"}
    assert {name.strip("'") for name in done.stderr.strip("[]\n").split(", ")} == known


def test_completion_ignores_an_unknown_command() -> None:
    done = ask("simgpu nonsense ")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("run ", list(shipped_scenarios())),
        ("compare --json ", list(shipped_scenarios())),
        ("study ", list(shipped_studies())),
        ("run --trace ", list(shipped_names("traces"))),
        ("trace show ", list(shipped_names("traces"))),
        ("run --node ", list(node_names())),
        ("list nodes ", list(node_names())),
        ("zoo build --gpu ", list(node_names())),
        ("list policies ", list(policy_names())),
        ("max-batch quickstart --policy ", list(policy_names())),
        ("zoo build ", list(NETWORKS)),
        ("memory-bound zoo:", [f"zoo:{name}" for name in NETWORKS]),
        ("zoo solve ", list(SOLVERS)),
        ("compression measure --codec ", list(codec_names())),
        ("compression measure --layout n", ["nchw", "nhwc"]),
        ("record digits-cnn --optimizer ada", ["adam", "adamw", "adagrad"]),
        ("record vgg", ["vgg11", "vgg16"]),
        ("zoo build vgg16 --optimizer ", ["sgd", "plain-sgd", "adam", "adamw", "adamw-fused", "adamw-8bit"]),
        ("list schema ", ["scenario", "study", "node", "plan"]),
        ("reproduce ", [*PAPERS, "recordings"]),
        ("reproduce buddy ho", ["home"]),
        ("reproduce cdma.b", ["cdma.bandwidth_aware", "cdma.batches"]),
    ],
)
def test_names_are_offered_where_a_command_takes_one(line: str, names: list[str]) -> None:
    assert sorted(offered(line)) == sorted(names)


def test_run_completes_traces_scenarios_and_networks() -> None:
    result = offered("max-batch ")
    assert result == [*shipped_names("traces"), *shipped_scenarios(), *(f"zoo:{name}" for name in NETWORKS)]


@pytest.mark.parametrize("line", ["run ./", "study results/", "run --node ../", "trace import ", "run -o "])
def test_paths_are_completed_by_the_shell(line: str) -> None:
    assert offered(line) == ["<file>"]


def test_completion_offers_user_files_and_shipped_names(tmp_path: Path) -> None:
    make_study(tmp_path)
    assert offered("run st") == ["study.yaml"]
    assert offered("run --node n") == ["node.yaml"]
    assert offered("run --trace ch") == ["chain"]


def test_set_completes_keys_of_scenarios_studies_and_nodes() -> None:
    assert {"iterations=", "seed=", "node.gpu.memory="} <= set(offered("run --set "))
    assert offered("run --set node.gpu.mem") == ["node.gpu.memory="]
    assert offered("run --set node.gpu.memory=") == [], "nothing is known of values"
    assert set(offered("study --set ")) >= {"epochs=", "traces=", "runs=", "node.link.latency="}
    assert not [key for key in offered("run --set ") if key.startswith("schema")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "command", "start"),
    [
        ("bash", ["bash", "--norc", "-i"], 'eval "$(_SIMGPU_COMPLETE=bash_source simgpu)"'),
        ("zsh", ["zsh", "-f", "-i"], 'autoload -U compinit; compinit -D; eval "$(_SIMGPU_COMPLETE=zsh_source simgpu)"'),
        ("fish", ["fish", "--no-config", "-i"], "_SIMGPU_COMPLETE=fish_source simgpu | source"),
    ],
)
def test_the_tab_key_completes_in_a_real_shell(shell: str, command: list[str], start: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "bin" / "simgpu"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m simgpu "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "80"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    try:
        for typed, shown in (
            (f"{start}; echo re''ady\n", "ready"),
            ("simgpu max\t", "max-batch"),
            ("vgg16-b\t", "vgg16-b128-v100"),
            ("--set node.gpu.mem\t", "node.gpu.memory="),
        ):
            os.write(terminal, typed.encode())
            assert shown in _until(terminal, shown), typed
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def ask(line: str, then: str = "") -> subprocess.CompletedProcess[str]:
    """Runs what the bash script runs at the tab key."""
    code = f"import sys\nfrom simgpu.__main__ import main\ntry: main()\nfinally: pass{then}"
    position = str(len(line.split(" ")) - 1)
    requested = {"_SIMGPU_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": position}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **requested}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def _until(terminal: int, awaited: str) -> str:
    """The terminal output up to the awaited text, with a timeout for slow machines."""
    shown, end = "", monotonic() + 20
    while awaited not in shown and monotonic() < end and select.select([terminal], [], [], 20)[0]:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            break
    return shown
