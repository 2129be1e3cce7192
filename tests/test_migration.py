"""Files in old formats: errors give the current names, and `python -m simgpu.migration` rewrites the files."""

import csv
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simgpu
from simgpu import migration
from simgpu.errors import InputError
from simgpu.experiments.regression.store import read_timings, write_timings
from simgpu.experiments.regression.timings import timings_of
from simgpu.former_names import (
    BLOCK_KINDS,
    MACHINE_KEYS,
    MACHINE_VALUES,
    METRICS,
    RUNS_MEMBERS,
    SPAN_KINDS,
    TIMELINE_COLUMNS,
    TRACE_COLUMNS,
)
from simgpu.io.shipped import shipped_folder
from simgpu.trace.folder import load_trace, write_trace
from simgpu.validation.folder import SHIPPED, load_recording, read_recording
from simgpu.validation.recording_files import read_machine
from tests.trace.small import SMALL

STUDY = """\
schema: simgpu.study/{version}  # a comment
node: k40
traces: {{AlexNet: {{zoo: alexnet, batch: 64}}, over: {{zoo: alexnet, batch: 32}}}}
runs:
  vDNN: {{policy: vdnn}}
  HOME:
    policy: {{home: {{offload: {offload}}}}}   # two spaces
    {per_trace}: {{AlexNet: {{budget: 4 GB}}}}
baseline: vDNN
tables: [{measure}, throughput]
published:
  - {{run: HOME, {vs}: vDNN, {aggregate}: mean, {excluding}: [over], measure: '{measure}', value: 0.5, source: "of"}}
"""
OLD = {
    "version": "1", "offload": "beside", "per_trace": "for_trace", "measure": "time_added", "vs": "over",
    "aggregate": "of", "excluding": "without",
}  # fmt: skip
NEW = {
    "version": "2", "offload": "overlapped", "per_trace": "per_trace", "measure": "time_increase", "vs": "vs",
    "aggregate": "aggregate", "excluding": "excluding",
}  # fmt: skip


def test_a_study_keeps_its_comments_labels_and_layout(tmp_path: Path) -> None:
    """Labels such as `over` and texts such as "of" are not keys and do not change."""
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY.format(**OLD))
    assert migration.migrate(file) == [file]
    assert file.read_text() == STUDY.format(**NEW)
    assert migration.migrate(file) == []
    assert simgpu.load_study(file).published[0].excluding == ("over",)


def test_a_modelled_trace_of_the_former_key_is_named_and_rewritten(tmp_path: Path) -> None:
    """Keys inside the configuration, and runs of that name, do not change."""
    scenario, study = tmp_path / "mine.yaml", tmp_path / "study.yaml"
    keys = "{model_type: llama, decoder: 3}"
    text = "schema: simgpu.scenario/2\nnode: h100\ntrace: {KEY: " + keys + ", length: 8}  # mine\npolicies: [none]\n"
    scenario.write_text(text.replace("KEY", "decoder"))
    study.write_text(
        "schema: simgpu.study/2\ntraces: {decoder: {decoder: config.json}}\nruns: {decoder: {policy: none}}\n"
    )
    with pytest.raises(
        InputError, match=r"trace\.decoder.* it is now called 'model'; `python -m simgpu\.migration FILE`"
    ):
        simgpu.load_scenario(scenario)
    assert migration.migrate(tmp_path) == [scenario, study]
    assert scenario.read_text() == text.replace("KEY", "model")
    assert "traces: {decoder: {model: config.json}}\nruns: {decoder: {policy: none}}" in study.read_text()


def test_a_trace_folder_reads_as_before(tmp_path: Path) -> None:
    trace = SMALL
    folder = tmp_path / "small"
    write_trace(trace, folder)
    _as_first_format(folder)
    with pytest.raises(InputError, match=r"rewrite the file: `python -m simgpu\.migration FILE`"):
        load_trace(folder)
    assert {file.name for file in migration.migrate(tmp_path)} == {"trace.yaml", *TRACE_COLUMNS}
    assert load_trace(folder) == trace


def _as_first_format(folder: Path) -> None:
    header = folder / "trace.yaml"
    header.write_text(header.read_text().replace("simgpu.trace/2", "simgpu.trace/1"))
    for name, columns in TRACE_COLUMNS.items():
        with (folder / name).open(newline="") as file:
            rows = list(csv.reader(file))
        former = {new: old for old, new in (columns | BLOCK_KINDS).items()}
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([[former.get(cell, cell) for cell in row] for row in rows])


def test_stored_timings_read_as_before(tmp_path: Path) -> None:
    timings = timings_of(simgpu.load_scenario("resnet20-addressed", {"iterations": 1}))
    folder = tmp_path / "resnet20"
    write_timings(timings, folder)
    for file in folder.iterdir():
        former = {new: old for old, new in (METRICS | SPAN_KINDS | TIMELINE_COLUMNS).items()}
        text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
        for new, old in former.items():
            text = text.replace(f'"{new}"', f'"{old}"').replace(f",{new},", f",{old},")
        text = text.replace("simgpu.timings/2", "simgpu.timings/1")
        file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    assert migration.migrate(folder)
    assert read_timings(folder) == timings


@pytest.mark.slow
def test_a_recorded_validation_reads_as_before(tmp_path: Path) -> None:
    shipped = SHIPPED / "cpu-small"
    folder = tmp_path / "cpu-small"
    shutil.copytree(shipped, folder)
    for file in (folder / "machine.yaml", *folder.glob("*/runs.json")):
        text = file.read_text()
        for old, new in (MACHINE_KEYS | RUNS_MEMBERS | METRICS | MACHINE_VALUES["freed memory"]).items():
            text = (
                text.replace(f"{new}:", f"{old}:").replace(f'"{new}"', f'"{old}"').replace(f": {new}\n", f": {old}\n")
            )
        file.write_text(re.sub(r"(simgpu\.\w+)/2", r"\1/1", text))
    with pytest.raises(InputError) as error:
        read_recording(folder)
    assert len(error.value.problems) == 7 and str(error.value).count("python -m simgpu.migration FILE") == 7
    assert len(migration.migrate(folder)) == 7
    for file in (shipped / "machine.yaml", *shipped.glob("*/runs.json")):
        assert (folder / file.relative_to(shipped)).read_text() == file.read_text()
    assert read_recording(folder) == load_recording("cpu-small")


@pytest.mark.parametrize("old", ["saving_waits", "both_d2h", "both_h2d"])
def test_an_old_key_of_a_machine_gives_an_error_with_the_new_key(tmp_path: Path, old: str) -> None:
    text = (SHIPPED / "cpu-small" / "machine.yaml").read_text()
    (tmp_path / "machine.yaml").write_text(text.replace(f"{MACHINE_KEYS[old]}:", f"{old}:"))
    with pytest.raises(InputError, match=f"it is now called '{MACHINE_KEYS[old]}'"):
        read_machine(tmp_path / "machine.yaml")


def test_migrated_tolerances_use_the_current_metric_names(tmp_path: Path) -> None:
    file = tmp_path / "tolerances.yaml"
    file.write_text('schema: simgpu.tolerances/1\ntolerances:\n  "*": 1%\n  bytes_in: 1 MiB  # slack\n')
    migration.migrate(file)
    assert file.read_text() == 'schema: simgpu.tolerances/2\ntolerances:\n  "*": 1%\n  h2d_bytes: 1 MiB  # slack\n'


def test_shipped_files_have_the_current_formats() -> None:
    for name in ("scenarios", "traces", "configs"):
        folder = shipped_folder(name)
        assert all(migration.migrated_yaml(file.read_text()) == file.read_text() for file in folder.rglob("*.yaml"))


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("for_trace", "it is now called 'per_trace'"),
        ("over", "it is now called 'vs'"),
        ("of", "it is now called 'aggregate'"),
        ("without", "it is now called 'excluding'"),
        ("time_added", "it is now called 'time_increase'"),
        ("beside", "it is now called 'overlapped'"),
    ],
)
def test_an_old_name_gives_an_error_with_the_new_name(tmp_path: Path, old: str, message: str) -> None:
    key = next(key for key, value in OLD.items() if value == old)
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY.format(**{**NEW, key: old}))
    with pytest.raises(InputError) as error:
        simgpu.load_study(file)
    assert message in str(error.value)


def test_an_old_column_gives_an_error_with_the_new_column(tmp_path: Path) -> None:
    write_trace(SMALL, tmp_path / "small")
    blocks = tmp_path / "small" / "blocks.csv"
    text = blocks.read_text()
    for new, old in (("host_write", "born"), ("activation", "feature_map")):
        blocks.write_text(text.replace(new, old, 1))
        with pytest.raises(InputError, match=f"it is now called '{new}'"):
            load_trace(tmp_path / "small")


def test_the_command_lists_rewritten_files_and_refuses_missing_paths(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY.format(**OLD))

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simgpu.migration", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(tmp_path).stdout == f"rewrote {file}\n1 files rewritten\n"
    missing = run(tmp_path / "absent")
    assert (missing.returncode, "there is no such file" in missing.stderr) == (2, True)


def test_other_files_are_not_changed(tmp_path: Path) -> None:
    for name, text in (
        ("notes.yaml", "of: 1\nover: 2\n"),
        ("broken.yaml", "schema: [simgpu.study/1\n"),
        ("blocks.csv", "id,born\n"),
        ("timings.json", json.dumps({"schema": "other/1", "bytes_in": 1})),
        ("empty.yaml", ""),
    ):
        (tmp_path / name).write_text(text)
    assert migration.migrate(tmp_path) == []
