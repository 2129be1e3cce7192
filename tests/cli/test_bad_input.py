"""Every kind of bad input gives exit code 2, one clear message on stderr, no traceback and no partial output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu, simgpu_process


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def _missing(study: Path) -> None:
    study.unlink()


def _empty(study: Path) -> None:
    study.write_bytes(b"")


def _binary(study: Path) -> None:
    study.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")


def _version(study: Path) -> None:
    _edit(study, "scenario/2", "scenario/9")


def _tab(study: Path) -> None:
    _edit(study, "policies: [ideal, none, vdnn]", "policies:\n\t- ideal")


def _memory_without_unit(study: Path) -> None:
    _edit(study.with_name("node.yaml"), "8 GiB", "8")


def _unknown_policy(study: Path) -> None:
    _edit(study, "vdnn", "vdn")


def _unknown_parameter(study: Path) -> None:
    _edit(study, "vdnn", "vdnn: {moed: all}")


def _unknown_node(study: Path) -> None:
    _edit(study, "node.yaml", "v10")


def _negative_bandwidth(study: Path) -> None:
    _edit(study.with_name("node.yaml"), "d2h_bandwidth: 10 GB/s", "d2h_bandwidth: -10 GB/s")


def _cycle(study: Path) -> None:
    _edit(study.with_name("chain") / "kernels.csv", "F1,conv2d,forward,5000,x1,x2", "F1,conv2d,forward,5000,x1 x3,x2")


def _no_kernels(study: Path) -> None:
    kernels = study.with_name("chain") / "kernels.csv"
    kernels.write_text(kernels.read_text().splitlines()[0] + "\n", encoding="utf-8")
    _edit(study.with_name("chain") / "trace.yaml", "kernels: 6", "kernels: 0")


def _missing_trace(study: Path) -> None:
    _edit(study, "trace: chain", "trace: chains/first")


BAD: list[tuple[Callable[[Path], None], str, str, str]] = [
    # what is done to a good study, then the file, the place and value, and the remedy of the message
    (_missing, "study.yaml", "no such file", "give a path that exists, or the name of a shipped scenario"),
    (_empty, "study.yaml", "is empty", "write the file, starting with its 'schema:' line"),
    (_binary, "study.yaml", "is not text: byte 0 (0x89) is not UTF-8", "give a YAML text file, saved as UTF-8"),
    (
        _version,
        "study.yaml",
        "line 1, schema: 'simgpu.scenario/9' is another version",
        "write 'schema: simgpu.scenario/2'",
    ),
    (_tab, "study.yaml", "line 7, column 1: indented with a tab", "write two spaces for each tab"),
    (_memory_without_unit, "node.yaml", "line 5, gpu.memory: 8 has no unit", "for example '8 GiB'"),
    (_unknown_policy, "study.yaml", "line 6, policies[2]: unknown policy 'vdn'", "did you mean 'vdnn'?"),
    (_unknown_parameter, "study.yaml", "line 6, policies[2].vdnn.moed: policy 'vdnn' has no", "did you mean 'mode'?"),
    (_unknown_node, "study.yaml", "line 5, node: no shipped node is called 'v10'", "did you mean 'v100'?"),
    (_negative_bandwidth, "node.yaml", "line 8, link.d2h_bandwidth: '-10 GB/s' is negative", "such as '11.7 GB/s'"),
    (_cycle, "kernels.csv", "row 2, column reads: a cycle", "put right what"),
    (_no_kernels, "kernels.csv", "no kernels", ""),
    (_missing_trace, "chains/first", "no such folder", "give a path that exists, or the name of a shipped trace"),
]


@pytest.mark.parametrize(("spoil", "file", "what", "remedy"), BAD, ids=[entry[0].__name__[1:] for entry in BAD])
def test_bad_input_exits_with_2_and_one_message(
    study: Path, spoil: Callable[[Path], None], file: str, what: str, remedy: str
) -> None:
    spoil(study)
    out = study.with_name("out")
    done = simgpu("run", study, "-o", out)
    assert done.exit_code == 2, done.exception
    assert isinstance(done.exception, SystemExit)
    messages = [line for line in done.stderr.splitlines() if line]
    assert len(messages) == 1, messages
    assert messages[0].startswith("Error: ")
    for part in (file, what, remedy):
        assert part in messages[0]
    assert not done.stdout
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [_missing, _binary, _unknown_node, _cycle], ids=lambda spoil: spoil.__name__[1:])
def test_a_new_process_exits_with_2_and_one_message(study: Path, spoil: Callable[[Path], None]) -> None:
    spoil(study)
    done = simgpu_process("run", study)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_an_output_folder_below_a_regular_file_is_refused(study: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = simgpu("run", study, "-o", study / "sub" / "out")
    assert done.exit_code == 2
    assert done.stderr == (
        f"Error: {study / 'sub' / 'out'}: cannot be created: {study} is not a folder; choose another output folder\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_path_that_is_a_file_or_a_foreign_folder_is_refused(study: Path, tmp_path: Path) -> None:
    done = simgpu("run", study, "-o", study)
    assert (done.exit_code, done.stderr) == (2, f"Error: {study}: is not a folder; choose another output folder\n")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    done = simgpu("run", study, "-o", precious)
    assert done.exit_code == 2
    assert "contains files that are not from an earlier run of simgpu" in done.stderr
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu"], "no such command 'rnu'; did you mean 'run'?"),
        (["run"], "Missing argument 'SCENARIO'"),
        (["run", "x", "--set", "seed"], "'seed' is not KEY=VALUE; write, for example, --set seed=1"),
        (["run", "quikstart"], "no shipped scenario or study is called 'quikstart'"),
        (["list", "nodes", "v10"], "no shipped node is called 'v10'; did you mean 'v100'?"),
        (["list", "policies", "vdn"], "unknown policy 'vdn'; did you mean 'vdnn'?"),
        (["list", "schema", "trance"], "trance"),
        (["trace", "show", "no/such"], "no/such: no such folder"),
        (["trace", "sho", "x"], "sho"),
        (["trace", "import", "no/such", "-o", "x"], "no/such: no such file or folder; check the path"),
        (["trace", "show", "long" * 100], "File name too long; check the path"),
        (["record", "resnet20", "-o", "x", "--batch", "0"], "0 is not in the range"),
        (["record", "mlp", "-o", "x", "--batch", "2", "--save-maps", "x"], "--save-maps: 'x' is the folder of -o"),
        (["record", "mlp", "-o", "x", "--batch", "2", "--dump-memory", "x/y"], "--dump-memory: 'x/y' is the folder of"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_remedy(arguments: list[str], expected: str) -> None:
    done = simgpu(*arguments)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert not done.stdout
