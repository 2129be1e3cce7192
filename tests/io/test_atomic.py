"""Atomic files and folders, also if the target already exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.io.atomic import atomic_file, atomic_folder


def nothing_foreign(_: Path) -> str:
    return ""


def test_the_old_folder_is_restored_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")
    real = Path.rename

    def fails_for_the_new_one(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(InputError, match="cannot be written: Input/output error"), atomic_folder(out, nothing_foreign):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert (out / "old.txt").read_text() == "old"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with atomic_folder(link, nothing_foreign) as part:
        (part / "new.txt").write_text("new")
    assert link.is_symlink()
    assert (real / "new.txt").read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "real"]


def test_errors_while_writing_name_the_target_folder_and_not_the_temporary_one(tmp_path):
    with pytest.raises(InputError) as caught, atomic_folder(tmp_path / "out", nothing_foreign) as part:
        with pytest.raises(InputError) as inside, atomic_file(part / "absent" / "file.csv") as file:
            file.write_text("x")
        other = InputError.single("other.csv", "", "is empty")
        raise InputError([*inside.value.problems, *other.problems])
    assert [problem.file for problem in caught.value.problems] == [str(tmp_path / "out"), "other.csv"]
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(InputError, match="contains somebody's thesis; choose a new folder"),
        atomic_folder(tmp_path, lambda folder: "somebody's thesis" if (folder / "thesis.txt").exists() else ""),
    ):
        raise AssertionError("the block must not be entered")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_foreign_content_is_detected_through_any_path(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(InputError, match="contains somebody's thesis; choose a new folder"),
        atomic_folder(tmp_path / "not-there" / "..", lambda folder: "somebody's thesis"),
    ):
        raise AssertionError("the block must not be entered")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
