"""The folder of a run is written atomically."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.errors import InputError, MissingExtraError
from simgpu.experiments import outputs
from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.outputs import check_outputs, folder_name, write_outputs
from tests.experiments.test_compare import ROOMY, TIGHT, TRACE


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(TRACE, ROOMY, ["ideal", {"vdnn": {"mode": "conv"}}])


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_writes_all_formats_and_figures(comparison: Comparison, tmp_path: Path) -> None:
    out = tmp_path / "out"
    formats, plots = ["csv", "parquet", "perfetto"], ["timeline", "memory", "run"]
    write_outputs(comparison, out, about={"scenario": "x"}, timeline=formats, plots=plots)
    files = ["timeline.csv", "timeline.parquet", "timeline.perfetto.json", "timeline.png", "memory.png", "run.png"]
    files += ["memory.csv", "kernels.csv", "blocks.csv", "tasks.json", "program.json"]
    assert names(out) == {"report.json", *(f"{run}/{file}" for run in ("ideal", "vdnn-mode-conv") for file in files)}
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert (report["schema"], report["scenario"]) == ("simgpu.report/2", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    viewer = json.loads((out / "vdnn-mode-conv" / "timeline.perfetto.json").read_text(encoding="utf-8"))
    run, trace = "vdnn(mode=conv): chain on roomy", "modelled, not recorded, for hand-made"
    assert viewer["otherData"] == {"run": run, "trace": trace}


def test_a_run_out_of_memory_writes_only_its_report_entry(tmp_path: Path) -> None:
    write_outputs(compare(TRACE, TIGHT, ["none"]), tmp_path / "out", about={}, timeline=["csv"])
    assert names(tmp_path / "out") == {"report.json"}
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (
        report["trace"] | {"origin": "modelled", "device": "hand-made", "date": "", "name": "chain"} == report["trace"]
    )
    assert report["node"]["name"] == "tight"
    assert report["results"][0]["parameters"] == {}


@pytest.mark.parametrize("earlier", [False, True])
def test_a_failed_write_changes_nothing(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    out = tmp_path / "out"
    if earlier:
        write_outputs(comparison, out, about={"run": 1}, timeline=["csv"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(outputs._TIMELINES, "perfetto", ("timeline.perfetto.json", full_disk))
    with pytest.raises(InputError) as caught:
        write_outputs(comparison, out, about={"run": 2}, timeline=["csv", "perfetto"])
    assert str(caught.value).startswith(f"{out}: cannot be written: No space left on device; ")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert out.exists() is earlier


def test_the_old_folder_is_restored_if_replacing_fails(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_outputs(comparison, out, about={"run": 1})
    real = Path.rename

    def fails_for_the_new_one(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(InputError, match="Input/output error"):
        write_outputs(comparison, out, about={"run": 2})
    assert json.loads((out / "report.json").read_text(encoding="utf-8"))["run"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_accepted_and_a_foreign_one_refused(comparison: Comparison, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    write_outputs(comparison, empty, about={})
    assert names(empty) == {"report.json"}
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "report.json").write_text('{"schema": "another.tool/1"}', encoding="utf-8")
    with pytest.raises(InputError, match="contains files that are not from an earlier run"):
        check_outputs(tmp_path / "foreign", [])


def test_parquet_without_pyarrow_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="simgpu with its extra 'parquet'"):
        check_outputs(tmp_path / "out", ["parquet"])
    check_outputs(tmp_path / "out", ["csv"])


def test_policies_whose_labels_differ_only_in_punctuation_have_separate_folders() -> None:
    assert len({folder_name(label) for label in ("vdnn", "vdnn++", "vdnn+", "vdnn(mode=conv)")}) == 4
