"""The list of recordings: fitted or held out by network; the fit reports missing ones and refuses to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import node_names
from simgpu.workloads.calibration.__main__ import main
from simgpu.workloads.calibration.published import load_published
from simgpu.workloads.calibration.recordings import RECORDINGS, load_recordings
from simgpu.workloads.calibration.samples import SampleUse, Skipped
from simgpu.workloads.calibration.validation import validate

FITTED = ("h100-triosim/vgg13", "titanv-dtr/densenet121-b84.log", "a100-g10/bert-256")


def test_every_recording_has_a_node_a_source_and_one_use_by_network() -> None:
    result = load_recordings()
    assert {recording.gpu for recording in result.recordings} <= set(node_names())
    assert {recording.source for recording in result.recordings} == set(result.sources)
    fitted = {recording.network for recording in result.fitted} | set(load_published().fitted_networks)
    figures = {figure.network for figure in load_published().figures} - set(load_published().fitted_networks)
    held_out = {recording.network for recording in result.recordings if recording.use is SampleUse.HELD_OUT} | figures
    assert not fitted & held_out
    assert {recording.network for recording in result.recordings if recording.use is SampleUse.SEEN_NETWORK} < fitted
    assert tuple(recording.path for recording in result.fitted) == FITTED


def test_a_recording_with_an_unknown_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recordings.yaml"
    path.write_text(
        RECORDINGS.read_text().replace("operators: g10, tf32: none, source: g10", "operators: g10, source: g11")
    )
    with pytest.raises(InputError, match="did you mean 'g10'") as caught:
        load_recordings(path)
    assert len(caught.value.problems) == 2


@pytest.mark.slow
def test_missing_recordings_are_reported_and_a_missing_folder_refused(tmp_path: Path) -> None:
    skipped = validate(tmp_path).skipped
    listed = load_recordings()
    assert len(skipped) == len(listed.recordings) + len(listed.not_compared)
    assert skipped[0] == Skipped("h100 vgg13 b128", f"no such file or folder: {tmp_path / FITTED[0]}")
    with pytest.raises(InputError, match="no such folder"):
        validate(tmp_path / "nothing")


def test_the_fit_refuses_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.yaml"
    assert main([str(tmp_path / "nothing"), "-o", str(table)]) == 2
    assert f"Error: {tmp_path / 'nothing'}: no such folder" in capsys.readouterr().err
    assert not table.exists()


def test_the_fit_refuses_an_incomplete_set_of_recordings(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names every missing recording, reads no other, and does not change the existing table."""
    folder, table = tmp_path / "recordings", tmp_path / "table.yaml"
    (folder / FITTED[0]).parent.mkdir(parents=True)
    (folder / FITTED[0]).symlink_to(recordings / FITTED[0])
    table.write_text("as before")
    assert main([str(folder), "-o", str(table)]) == 2
    description = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in description] == [str(folder / path) for path in FITTED[1:]]
    assert table.read_text() == "as before"


@pytest.mark.parametrize("arguments", [[], ["recordings"], ["-o", "table.yaml"]])
def test_a_missing_argument_ends_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m simgpu.workloads.calibration")


def test_an_unwritable_table_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simgpu.workloads.calibration.fit.fitted_table", lambda recordings: "fitted")
    assert main([str(tmp_path), "-o", str(tmp_path / "no" / "table.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main([str(tmp_path), "-o", str(tmp_path / "table.yaml")]) == 0
    assert (tmp_path / "table.yaml").read_text() == "fitted"
