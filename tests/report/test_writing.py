"""What `simgpu report` accepts, where it writes, and its messages for other folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.report.recorded import read_run, recorded_from
from simgpu.report.writing import write_report
from tests.cli.cli_helpers import make_study, simgpu
from tests.report.runs import cached, small, written


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(small(), tmp_path / "run")


def error_for(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_run(folder)
    return str(caught.value)


def test_the_page_of_a_run_is_report_html_in_its_folder(tmp_path: Path) -> None:
    study, out = make_study(tmp_path), tmp_path / "out"
    assert simgpu("run", study, "-q", "-o", out).exit_code == 0
    done = simgpu("report", out)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"written to {out / 'report.html'}"
    assert {file.name for file in out.iterdir() if file.is_file()} == {
        "report.json",
        "report.html",
        "report.ideal.perfetto.json",
        "report.none.perfetto.json",
        "report.vdnn.perfetto.json",
    }
    # The folder is still a run's, which another run may replace.
    assert simgpu("run", study, "-q", "-o", out).exit_code == 0
    assert not (out / "report.html").exists()


def test_a_scenario_is_run_and_its_page_is_written_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert simgpu("report", study, "-q").stdout.splitlines()[0] == "written to study.html"
    assert "a hand-made chain" in Path("study.html").read_text(encoding="utf-8")
    assert simgpu("report", study, "-q", "-o", "mine.html").exit_code == 0
    assert Path("mine.vdnn.perfetto.json").exists()


def test_a_run_with_only_parquet_files_reads_like_one_with_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    comparison = small()
    parquet = read_run(written(comparison, tmp_path / "a", formats=("parquet",)))
    table = read_run(written(comparison, tmp_path / "b", formats=("csv",)))
    for one, other in zip(parquet.runs, table.runs, strict=True):
        assert (one.timeline is None) is (other.timeline is None)
        assert one.timeline is None or other.timeline is None or list(one.timeline) == list(other.timeline)


def test_a_folder_has_the_addresses_of_a_run_with_pytorchs_allocator(tmp_path: Path) -> None:
    comparison = cached()
    folder = written(comparison, tmp_path / "run")
    read = read_run(folder)
    for one, other in zip(read.runs, recorded_from(comparison).runs, strict=True):
        assert one.addresses == other.addresses != ()
        assert one.timeline is not None and other.timeline is not None
        assert one.timeline.memories[0].reserved is not None
        assert one.timeline.memories[0].reserved.tolist() == other.timeline.memories[0].reserved.tolist()
    assert not list(written(small(), tmp_path / "other").glob("*/addresses.csv"))
    file = folder / "none" / "addresses.csv"
    file.write_text(file.read_text().replace("0,,0,", "0,,none,", 1))
    assert "addresses.csv: row 2, column address: 'none' is not" in error_for(folder)
    file.unlink()
    assert read_run(folder).runs[0].addresses == (), "as an earlier version wrote it"


def test_folders_not_written_by_a_run_are_refused(tmp_path: Path) -> None:
    remedy = "give a folder that `simgpu run NAME -o DIR` wrote, or a scenario"
    assert error_for(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such folder; {remedy}"
    assert error_for(tmp_path) == f"{tmp_path}: contains no report.json, so it is not the folder of a run; {remedy}"
    report = tmp_path / "report.json"
    for text, says in (
        ('{"schema": "simgpu.study-report/1"}', "contains a study (schema 'simgpu.study-report/1')"),
        ('{"schema": "simgpu.search-report/2"}', "contains a search (schema 'simgpu.search-report/2')"),
        ('{"schema": "simgpu.report/2", "trainings": []}', "contains epochs of a training, written by `simgpu epochs`"),
        ('{"schema": "other/2"}', "schema 'other/2' is not 'simgpu.report/2'"),
        ("[1]", "schema '' is not 'simgpu.report/2'"),
    ):
        report.write_text(text)
        assert error_for(tmp_path) == f"{report}: {says}; {remedy}"
    report.write_text('{"schema":\n nonsense}')
    assert error_for(tmp_path).startswith(f"{report}: line 2: is not JSON")


def test_a_damaged_report_lists_everything_missing(run: Path) -> None:
    document = json.loads((run / "report.json").read_text())
    del document["node"], document["results"][2]["timeline"], document["results"][1]["out_of_memory"]
    (run / "report.json").write_text(json.dumps(document))
    text = error_for(run)
    assert "report.json: node: is missing or not a mapping" in text
    assert "report.json: results[1]: has none of metrics, out_of_memory, refused, error" in text
    assert "report.json: results[2]: has no timeline: it was written by an earlier version of simgpu" in text


def test_members_missing_from_another_versions_report_are_named(run: Path) -> None:
    document = json.loads((run / "report.json").read_text())
    del document["node"]["link"]["kind"], document["results"][2]["metrics"]["overlap_ns"]
    document["results"][2]["seed"] = "one"
    (run / "report.json").write_text(json.dumps(document))
    text = error_for(run)
    assert "report.json: node.link.kind: is missing or not a string" in text
    assert "report.json: results[2].seed: is missing or not an integer" in text
    assert "report.json: results[2].metrics.overlap_ns: is missing or not an integer" in text


def test_damaged_tables_of_all_policies_are_reported_by_row(run: Path) -> None:
    timeline = run / "vdnn" / "timeline.csv"
    rows = timeline.read_text().splitlines()
    rows[1] = rows[1].replace(",compute,", ",compute!,", 1)
    timeline.write_text("\n".join(rows) + "\n")
    (run / "ideal" / "memory.csv").unlink()
    kernels = run / "vdnn" / "kernels.csv"
    kernels.write_text(kernels.read_text().replace(",forward,", ",forwards,", 1))
    text = error_for(run)
    assert f"{timeline}: row 2, column stream: 'compute!' is not" in text
    assert f"{run / 'ideal' / 'memory.csv'}: no such file" in text
    assert f"{kernels}: row 2, column phase" in text
    assert simgpu("report", run).exit_code == 2
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_a_run_without_tables_names_the_option_that_writes_them(tmp_path: Path) -> None:
    text = error_for(written(small(), tmp_path / "run", formats=("perfetto",)))
    assert f"{tmp_path / 'run' / 'ideal'}: contains no timeline.csv or timeline.parquet" in text
    assert "outputs.timeline: [csv]" in text


def test_a_page_is_written_atomically(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is a folder; give the path of a file, for example"):
        write_report(run, tmp_path)
    with pytest.raises(InputError, match="is not a folder; create that folder"):
        write_report(run, tmp_path / "no" / "page.html")
    (tmp_path / "page.html").write_text("the one before")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(InputError, match="No space left"):
        write_report(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "the one before"
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".part")]


def test_a_shipped_scenario_has_priority_over_a_trace_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert simgpu("report", "vgg11-cifar-cpu", "-q").stdout.splitlines()[0] == "written to vgg11-cifar-cpu.html"
    done = simgpu("report", "quickstrat")
    assert done.exit_code == 2
    says = "'quickstrat' is neither the folder of a run nor a shipped scenario; did you mean 'quickstart'?"
    assert says in " ".join(done.stderr.split())
