"""Invalid values of arguments and options give exit code 2 and a message that names the option and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu
from tests.importers.test_triosim import written

HUGE = str(10**30)
NO_COUNTS = ["", "-1", "0", "1.5", "many", "1e3", "nan", "9" * 5000]
NO_SIZES = ["", "-1 GiB", "8", "8 gb", "nan GiB", "0.3 B", "1e30 GiB", "1e99999999 GiB", "lots"]
NO_TRACES = ["", "folder", "binary", "empty", "missing", "missing/deep", "empty/below", "long" * 100]
NO_OUTPUTS = ["binary", "empty/below", "long" * 100, "/proc/below"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a valid study and recording, and invalid files."""
    make_study(tmp_path)
    written(tmp_path / "recording")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: object) -> str:
    """Runs a command that must refuse its arguments, and returns its message."""
    done = simgpu(*arguments)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2
    assert not done.stdout
    messages = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(messages) == 1, messages
    return messages[0]


COUNTS = [
    (["trace", "import", "recording", "-o", "out"], "--batch"),
    (["zoo", "build", "alexnet", "--gpu", "v100", "-o", "out"], "--batch"),
    (["zoo", "build", "alexnet", "--gpu", "v100", "--batch", "1", "-o", "out"], "--epochs"),
    (["record", "mlp", "-o", "out"], "--batch"),
    (["record", "mlp", "--batch", "1", "-o", "out"], "--warmup"),
    (["record", "mlp", "--batch", "1", "-o", "out"], "--repetitions"),
    (["validate", "node", "-o", "out.yaml"], "--repetitions"),
]


@pytest.mark.parametrize(("command", "option"), COUNTS, ids=lambda part: part if isinstance(part, str) else part[0])
@pytest.mark.parametrize("value", NO_COUNTS, ids=lambda value: value[:8])
def test_counts_below_one_are_refused(command: list[str], option: str, value: str, here: Path) -> None:
    assert option in refused(*command, option, value)
    assert not (here / "out").exists()


@pytest.mark.parametrize("option", ["--epochs", "--seed"])
@pytest.mark.parametrize("value", ["", "-1", "1.5", "many", HUGE])
def test_negative_counts_are_refused(option: str, value: str) -> None:
    assert option in refused("record", "mlp", "--batch", "1", "-o", "out", option, value)


@pytest.mark.parametrize("batch", [HUGE, "2000000000"])
def test_a_missing_batch_is_reported_once(batch: str) -> None:
    message = refused("zoo", "build", "bert-large", "--gpu", "v100", "-o", "out", "--batch", batch)
    assert f"batch: {batch} samples need more" in message and "give a smaller batch" in message


@pytest.mark.parametrize("key", ["seed", "iterations"])
@pytest.mark.parametrize("value", ["", "-1", "1.5", "many", "nan", "[1]", "9" * 5000])
def test_invalid_counts_in_a_scenario_are_refused(key: str, value: str) -> None:
    assert f"override: {key}: " in refused("run", "study.yaml", "--set", f"{key}={value}")


@pytest.mark.parametrize("key", ["budget", "alignment", "node.gpu.memory", "node.gpu.reserved"])
@pytest.mark.parametrize("value", NO_SIZES[1:])
def test_invalid_sizes_in_a_scenario_are_refused(key: str, value: str) -> None:
    message = refused("run", "study.yaml", "--set", f"{key}={value}")
    assert "override: " in message and key.removeprefix("node.") in message and value in message


@pytest.mark.parametrize("value", NO_SIZES)
def test_invalid_sizes_are_refused(value: str) -> None:
    message = refused(
        "zoo", "build", "alexnet", "--gpu", "v100", "--batch", "1", "-o", "out", "--workspace-limit", value
    )
    assert "--workspace-limit" in message and repr(value) in message
    assert "--budget (--memory): " in refused("run", "--trace", "chain", "--node", "v100", "--memory", value)
    assert "--sizes" in refused("validate", "node", "-o", "out.yaml", "--sizes", value)


@pytest.mark.parametrize("place", NO_TRACES, ids=lambda place: place[:12] or "nothing")
def test_unreadable_paths_are_refused(place: str) -> None:
    refused("run", place)
    refused("compare", place)
    refused("list", "nodes", place)
    refused("run", "--trace", place, "--node", "v100")
    refused("compare", "--trace", "chain", "--node", place)
    for command in ("show", "check", "stats"):
        refused("trace", command, place)
    if place:  # an empty path is the current folder, which holds no recording either
        refused("trace", "import", place, "-o", "out")
    refused("zoo", "build", "alexnet", "--batch", "1", "-o", "out", "--gpu", place)
    refused("trace", "import", "recording", "-o", "out", "--execution-trace", place)


@pytest.mark.parametrize("place", NO_OUTPUTS, ids=lambda place: place[:12])
def test_unwritable_paths_are_refused(place: str, here: Path) -> None:
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    for command in (
        ["run", "study.yaml", "-o", place],
        ["trace", "import", "recording", "--force", "-o", place],
        ["zoo", "build", "alexnet", "--batch", "1", "--gpu", "v100", "--force", "-o", place],
        ["validate", "node", "--force", "-o", f"{place}.yaml" if place == "empty/below" else place],
    ):
        assert "/" not in place or place in refused(*command)
        refused(*command)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("word", ["", "a/b", "../x", "=", "[", "two\nlines", "x" * 3000, ":", "os:nothing", HUGE])
def test_invalid_names_are_refused(word: str) -> None:
    refused("list", "policies", word)
    refused("list", "schema", word)
    refused("run", "study.yaml", "--set", word)
    zoo = ["zoo", "build", "--batch", "1", "--gpu", "v100", "-o", "out"]
    refused(*zoo, word)
    for option in ("--framework", "--optimizer", "--variant"):
        refused(*zoo, "alexnet", option, word)
    if word:  # an empty date says that none is known
        refused("trace", "import", "recording", "-o", "out", "--date", word)


def test_a_deleted_folder_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = here / "gone"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    message = refused("zoo", "build", "alexnet", "--batch", "1", "--gpu", "v100")
    assert message == "Error: the current folder no longer exists; change to an existing folder"
    monkeypatch.chdir(here)
