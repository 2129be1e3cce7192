"""`simgpu trace check` reads every file of a trace folder, never blocks on pipes and never runs stored code."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from simgpu.compression.buddy.snapshots import take_snapshots
from simgpu.compression.buddy.stored import save_entries
from simgpu.trace.folder import write_trace
from simgpu.trace.model import CompressedSize
from tests.cli.cli_helpers import simgpu
from tests.trace.small import SMALL

TABLES = ("algorithms", "sparsity", "compressibility", "accesses", "saved")
FILES = ("trace.yaml", "kernels.csv", "blocks.csv", *(f"{name}.csv" for name in TABLES), "entries.npz")


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace with all optional files, and stored entries of two blocks."""
    home = tmp_path / "small"
    write_trace(SMALL, home)
    arrays = {"x": np.arange(4, dtype=np.float32), "y": np.zeros(16, np.float32)}
    save_entries(take_snapshots([arrays]), home / "entries.npz")
    assert sorted(file.name for file in home.iterdir()) == sorted(FILES)
    return home


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """Whoever waits for a pipe fails instead."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    yield
    signal.alarm(0)


def checked(folder: Path) -> Result:
    result = simgpu("trace", "check", folder)
    assert "Traceback" not in result.stderr
    return result


def garbage(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 4)


def pickled(file: Path) -> None:
    file.write_bytes(pickle.dumps(Marker(file.parent.parent / "marker")))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def sparse(file: Path) -> None:
    os.truncate(file, 5 * 2**30)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def pipe_behind_a_link(file: Path) -> None:
    os.mkfifo(file.parent.parent / "pipe")
    file.unlink()
    file.symlink_to("../pipe")


def device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def subfolder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


DAMAGE = (garbage, pickled, cut, emptied, sparse, pipe, pipe_behind_a_link, device, subfolder, dangling)


def test_a_complete_trace_has_no_problems(folder: Path) -> None:
    result = checked(folder)
    assert result.exit_code == 0
    assert result.stdout == f"{folder}: valid trace; 5 kernels, 7 blocks; entries of 2 blocks\n"


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, damage: Callable[[Path], None], folder: Path, tmp_path: Path) -> None:
    damage(folder / name)
    result = checked(folder)
    assert result.exit_code == 2
    assert f"Error: {folder / name}: " in result.stderr
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("damage", [garbage, pipe, subfolder], ids=lambda damage: damage.__name__)
def test_all_damaged_files_are_reported_together(damage: Callable[[Path], None], folder: Path) -> None:
    for name in FILES:
        damage(folder / name)
    result = checked(folder)
    assert result.exit_code == 2
    assert all(f"Error: {folder / name}: " in result.stderr for name in FILES)


def test_pickled_objects_in_stored_entries_are_refused_and_not_unpickled(folder: Path, tmp_path: Path) -> None:
    with np.load(folder / "entries.npz") as archive:
        arrays = dict(archive.items())
    objects = np.array([Marker(tmp_path / "marker")], object)
    np.savez(folder / "entries.npz", **{**arrays, "classes_0": objects}, allow_pickle=True)
    result = checked(folder)
    assert (result.exit_code, (tmp_path / "marker").exists()) == (2, False)
    assert f"{folder / 'entries.npz'}: classes_0: holds Python objects" in result.stderr


def test_entries_with_unknown_blocks_or_sizes_are_reported(folder: Path) -> None:
    arrays = {"x": np.zeros(4, np.float32), "y": np.zeros(3, np.float32), "other": np.zeros(1, np.float32)}
    save_entries(take_snapshots([arrays]), folder / "entries.npz")
    result = checked(folder)
    assert result.exit_code == 2
    assert f"{folder / 'entries.npz'}: allocation y: has 12 bytes, but 64 bytes in blocks.csv" in result.stderr
    assert f"{folder / 'entries.npz'}: allocation other: is not a block of this trace" in result.stderr


def test_too_many_entries_for_a_block_are_reported(tmp_path: Path) -> None:
    # 64 bytes are one entry of 128.
    rows = (CompressedSize("y", 0, "bpc", "plain", 128, 8, 2),)
    write_trace(replace(SMALL, compressibility=rows), tmp_path / "small")
    result = checked(tmp_path / "small")
    assert result.exit_code == 2
    table = tmp_path / "small" / "compressibility.csv"
    assert f"{table}: block y, epoch 0: counts 2 entries, its 64 bytes have 1" in result.stderr


@pytest.mark.parametrize(("name", "meant"), [("entires.npz", "entries.npz"), ("Blocks.CSV", "blocks.csv")])
def test_a_misspelt_file_is_refused(name: str, meant: str, folder: Path) -> None:
    (folder / name).write_bytes(b"")
    result = checked(folder)
    assert result.exit_code == 2
    assert f"{folder / name}: not a file of a trace; did you mean '{meant}'?" in result.stderr


def test_other_files_are_listed_as_not_checked(folder: Path) -> None:
    (folder / "README.md").write_text("about this trace", encoding="utf-8")
    os.mkfifo(folder / "pipe")
    result = checked(folder)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == ["not part of the trace, not checked: README.md, pipe"]
