"""A recording on disk is read back unchanged, and damage is reported."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.plans.making import made_for
from simgpu.torch.plan import Plan, Predicted
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.validation.folder import (
    SHIPPED,
    case_folders,
    load_recording,
    read_recording,
    read_spans,
    shipped_recordings,
    write_case,
    write_machine,
    write_recording,
    write_spans,
)
from simgpu.validation.folder import SPANS as TABLE
from simgpu.validation.measured import (
    Case,
    Copies,
    MeasuredKind,
    MeasuredMachine,
    MeasuredRun,
    MeasuredSpan,
    Method,
    Recording,
)
from simgpu.validation.recording_files import CopiesSection, MachineFile, RunEntry, RunsFile, machine_text, read_machine

MACHINE = MeasuredMachine(
    device="a GPU",
    kind="cuda",
    memory=80 * 2**30,
    alignment=512,
    copy_engines=2,
    copies=Copies(25_123_456_789, 26_000_000_000, 20_000_000_000, 21_000_000_000, 1_500, 9_800),
    launch_ns=4_321,
    host="a processor",
    date="2026-11-22",
    versions={"PyTorch": "2.9.0", "driver": "575.1"},
    settings={"TF32 in convolutions": "on"},
)
SPANS = (
    MeasuredSpan("compute", MeasuredKind.KERNEL, "void gemm<float, 4>(float*)", "aten::mm", 0, 0, 100),
    MeasuredSpan("d2h", MeasuredKind.COPY_D2H, "Memcpy DtoH", "", -1, 100, 150, 4096),
    MeasuredSpan("h2d", MeasuredKind.COPY_H2D, "", "", -1, 100, 150, 4096),
)


def case(batch: int = 4) -> Case:
    trace = chain([5, 7], [10, 14], [100, 200])
    trace = replace(trace, info=replace(trace.info, model="net", batch=batch))
    plain = MeasuredRun(Method.PLAIN, {}, (30, 31, 29), 500, 100, 0, 0, SPANS[:1])
    offload = {"prefetch": 2, "stash": 2, "min_bytes": 1}
    runs = {
        Method.PLAIN: plain,
        Method.CHECKPOINT: replace(plain, method=Method.CHECKPOINT, settings={"blocks": ["a", "b.0"]}),
        Method.ASYNC_OFFLOAD: replace(plain, method=Method.ASYNC_OFFLOAD, settings=offload, spans=SPANS),
    }
    absent = {Method.SAVE_ON_CPU: "out of memory"}
    return Case("net", batch, trace, runs, absent, {"size": {"image": 32}, "seed": 0, "warmup": 3})


def with_plan() -> Case:
    """A case that was also run by a plan."""
    plain = case().runs[Method.PLAIN]
    cost = {each: 0 for each, field in Predicted.model_fields.items() if field.is_required()}
    plan = Plan(
        made_for=made_for(case().trace),
        execute="eager",
        policy="joint",
        node="a GPU",
        budget_bytes=300,
        calls={},
        prefetch=1,
        stash=1,
        predicted=Predicted(**cost),
    )
    return replace(case(), runs={**case().runs, Method.PLAN: replace(plain, method=Method.PLAN, plan=plan)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two cases."""
    path = tmp_path / "mine"
    write_recording(Recording("mine", MACHINE, (case(4), case(8))), path)
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_recording(path)
    return [str(problem) for problem in caught.value.problems]


def test_a_recording_reads_back_as_written(folder: Path) -> None:
    assert read_recording(folder) == Recording("mine", MACHINE, (case(4), case(8)))


def test_the_same_recording_is_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_recording(read_recording(folder), tmp_path / "again")
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 1 + 2 * (1 + 3 + 3)
    for file in files:
        assert (folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


def test_a_case_has_its_plan(folder: Path, tmp_path: Path) -> None:
    write_case(with_plan(), folder)
    assert (folder / "net-b4" / "plan.json").is_file() and not (folder / "net-b8" / "plan.json").exists()
    assert read_recording(folder) == Recording("mine", MACHINE, (with_plan(), case(8)))


def test_a_plan_and_its_run_need_each_other(folder: Path) -> None:
    write_case(with_plan(), folder)
    plan = folder / "net-b4" / "plan.json"
    plan.rename(folder / "net-b8" / "plan.json")
    missing, extra = problems_of(folder)
    assert missing.startswith(f"{plan}: no such file")
    assert "net-b8/runs.json: runs: has no run of plan, but plan.json" in extra


def test_a_recording_grows_case_by_case(folder: Path, tmp_path: Path) -> None:
    grown = tmp_path / "new" / "mine"
    write_machine(MACHINE, grown)
    assert "has no case" in problems_of(grown)[0]
    write_case(case(8), grown)
    assert [result.batch for result in read_recording(grown).cases] == [8]
    write_case(case(4), grown)
    assert read_recording(grown) == read_recording(folder)


def test_a_case_that_was_being_written_when_the_program_was_killed_is_no_case(folder: Path) -> None:
    (folder / ".net-b16.0a1b.part" / "trace").mkdir(parents=True)
    assert len(case_folders(folder)) == 2
    assert len(read_recording(folder).cases) == 2
    write_machine(MACHINE, folder)


@pytest.mark.parametrize("name", ["notes.txt", "net-b4-old"])
def test_a_folder_with_other_things_is_not_written_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for write in (
        lambda: write_machine(MACHINE, tmp_path),
        lambda: write_recording(Recording("", MACHINE, ()), tmp_path),
    ):
        with pytest.raises(InputError, match=f"contains files that are not from a recording, such as '{name}'"):
            write()


def test_a_machine_keeps_every_number(tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_text(machine_text(MACHINE), encoding="utf-8")
    assert read_machine(tmp_path / "machine.yaml") == MACHINE


_text = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20).map(str.strip)
#: Two of them together are still numbers of a 64-bit column.
_number = st.integers(0, 2**62 - 1)
_kernel = st.builds(
    lambda name, op, call, start, length: MeasuredSpan(
        "compute", MeasuredKind.KERNEL, name, op, call, start, start + length
    ),
    _text,
    _text,
    st.integers(-1, 2**31),
    _number,
    _number,
)
_copy = st.builds(
    lambda way, name, start, length, size: MeasuredSpan(*way, name, "", -1, start, start + length, size),
    st.sampled_from([("d2h", MeasuredKind.COPY_D2H), ("h2d", MeasuredKind.COPY_H2D)]),
    _text,
    _number,
    _number,
    _number,
)


@given(st.lists(st.one_of(_kernel, _copy), max_size=8))
def test_spans_with_any_names_and_numbers_are_read_back(spans: list[MeasuredSpan]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as built:
        path = Path(built) / "plain.csv.gz"
        write_spans(path, spans)
        result = read_spans(path)
    assert result.problems == []
    assert result.rows == spans


def edit_runs(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        document = json.loads((place / "runs.json").read_text())
        change(document)
        (place / "runs.json").write_text(json.dumps(document))

    return damage


def edit_spans(change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        file = place / "async_offload.csv.gz"
        file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()).decode()).encode()))

    return damage


def cut(name: str) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        raw = (place / name).read_bytes()
        (place / name).write_bytes(raw[: len(raw) * 2 // 3])

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: (place / "runs.json").unlink(), "runs.json: no such file"),
        (cut("runs.json"), "is not JSON"),
        (lambda place: (place / "runs.json").write_text("[]"), "is not a mapping"),
        (
            edit_runs(lambda read: read.update(schema="simgpu.runs/9")),
            "'simgpu.runs/9' is another version; this simgpu reads version 2",
        ),
        (edit_runs(lambda read: read.update(modle="net")), "modle: unknown key; did you mean 'model'?"),
        (edit_runs(lambda read: read.pop("setup")), "setup: is missing"),
        (edit_runs(lambda read: read.update(batch="4")), "batch: '4' is not a whole number"),
        (edit_runs(lambda read: read.update(batch=5)), "batch: 5 differs from the trace's 4"),
        (edit_runs(lambda read: read.update(runs={})), "runs: has no run"),
        (edit_runs(lambda read: read["runs"].pop("checkpoint")), "has no run of checkpoint, but a timeline"),
        (edit_runs(lambda read: read["runs"]["plain"].update(step_ns=[])), "runs.plain.step_ns"),
        (
            edit_runs(lambda read: read["runs"]["plain"].update(step_ns=[5, -1])),
            "runs.plain.step_ns[1]: -1 is too small",
        ),
        (edit_runs(lambda read: read["runs"]["plain"].update(step_ns=[0.5])), "runs.plain.step_ns[0]"),
        (
            edit_runs(lambda read: read["runs"]["plain"].update(peak_bytes=99)),
            "99 is less than the 100 allocated",
        ),
        (edit_runs(lambda read: read["runs"].update(offload={})), "runs.offload: unknown key"),
        (
            edit_runs(lambda read: read["absent"].update(plain="no")),
            "absent.plain: is listed as absent and has a run",
        ),
        (lambda place: (place / "plain.csv.gz").unlink(), "plain.csv.gz: no such file"),
        (cut("plain.csv.gz"), "plain.csv.gz: the gzip file is cut off; record the case again"),
        (lambda place: (place / "plain.csv.gz").write_text("stream,kind"), "plain.csv.gz: the gzip file is damaged"),
        (lambda place: (place / "plain.csv.gz").write_bytes(gzip.compress(b"\xff\xfe")), "is not text"),
        (
            edit_spans(lambda text: text.replace("\nd2h,", "\nh2d,")),
            "a copy_d2h belongs to stream d2h, not 'h2d'",
        ),
        (edit_spans(lambda text: text.replace("copy_h2d", "copyin")), "row 4, column kind: 'copyin' is not a kind"),
        (
            edit_spans(lambda text: text.replace("100,150", "100,50")),
            "row 3: ends at 50 ns, before it starts at 100 ns",
        ),
        (edit_spans(lambda text: text.replace("0,0,100", "0,zero,100")), "column start_ns: 'zero' is not a number"),
        (edit_spans(lambda text: text.replace(",end_ns", ",end_us")), "wrong unit: unknown column 'end_us'"),
        (edit_spans(lambda text: text.replace("aten::mm,0,0,100,", "aten::mm,0,0,100,7")), "a kernel copies no bytes"),
        (edit_spans(lambda text: text.replace("DtoH,,,", "DtoH,,3,")), "a copy cannot have an operator call"),
        (lambda place: (place / "plane.csv.gz").write_bytes(b""), "plane.csv.gz: not a file of a case; did you mean"),
        (lambda place: (place / "trace" / "blocks.csv").unlink(), "blocks.csv: no such file"),
        (lambda place: write_trace(chain([1], [1], [1]), place / "trace"), "differs from the trace's"),
        (
            lambda place: place.rename(place.with_name("net-b5")),
            "the case net-b4; rename the folder to net-b4",
        ),
        (lambda place: (place / "README.md").write_text("notes"), ""),
    ],
)
def test_a_damaged_case_is_refused(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder / "net-b4")
    if message:
        assert any(message in problem for problem in problems_of(folder)), problems_of(folder)
    else:
        assert len(read_recording(folder).cases) == 2


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("device: a GPU", "devise: a GPU", "devise: unknown key; did you mean 'device'?"),
        ("memory: 80 GiB", "memory: 80", "memory: 80 has no unit"),
        ("kind: cuda", "kind: tpu", "kind: 'tpu' is not one of the choices"),
        ("date: '2026-11-22'", "date: yesterday", "'yesterday' is not a date"),
        ("latency: 1500 ns", "latency: 1500 GB", "copies.latency"),
        ("alignment: 512 B", "alignment: 0 B", "alignment: '0 B' is zero"),
        ("schema: simgpu.machine/2", "schema: simgpu.node/1", "is not the schema expected here"),
    ],
)
def test_a_damaged_machine_file_is_refused(folder: Path, line: str, instead: str, message: str) -> None:
    file = folder / "machine.yaml"
    assert line in file.read_text()
    file.write_text(file.read_text().replace(line, instead))
    assert any(message in problem for problem in problems_of(folder)), problems_of(folder)


def test_problems_of_all_files_are_reported_together(folder: Path) -> None:
    (folder / "machine.yaml").write_text("schema: simgpu.machine/2\n")
    (folder / "net-b4" / "trace" / "trace.yaml").unlink()
    (folder / "net-b4" / "plain.csv.gz").unlink()
    (folder / "net-b8" / "runs.json").write_text("{}")
    files = {Path(problem.partition(": ")[0]).relative_to(folder).as_posix() for problem in problems_of(folder)}
    assert files == {"machine.yaml", "net-b4/trace/trace.yaml", "net-b4/plain.csv.gz", "net-b8/runs.json"}


def test_a_path_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in problems_of(tmp_path / "nowhere")[0]
    assert "is not a recording" in problems_of(tmp_path)[0]
    (tmp_path / "file").write_text("text")
    assert "is not a recording" in problems_of(tmp_path / "file")[0]


def test_a_recording_loads_by_path_or_shipped_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert load_recording("mine") == load_recording(folder) == load_recording("./mine") == read_recording(folder)
    monkeypatch.setattr("simgpu.validation.folder.SHIPPED", folder)
    with pytest.raises(InputError, match="no shipped recording is called 'mime'; none ship; give the path of one"):
        load_recording("mime")
    monkeypatch.setattr("simgpu.validation.folder.SHIPPED", folder.parent)
    monkeypatch.chdir("/")
    assert shipped_recordings() == ("mine",)
    assert load_recording("mine") == read_recording(folder)
    with pytest.raises(InputError, match="did you mean 'mine'"):
        load_recording("mime")


def test_the_format_is_described_field_by_field() -> None:
    text = (SHIPPED / "README.md").read_text(encoding="utf-8")
    machine = {"schema" if name == "schema_" else name for name in MachineFile.model_fields} - {"copies"}
    copies = {f"copies.{name}" for name in CopiesSection.model_fields}
    runs = {"schema" if name == "schema_" else name for name in RunsFile.model_fields} - {"runs", "absent"}
    each = {f"runs.<method>.{name}" for name in RunEntry.model_fields}
    columns = {column.name for column in TABLE.columns}
    for name in machine | copies | runs | each | {"absent.<method>"} | columns:
        assert f"`{name}`" in text, name


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_recordings())
def test_shipped_recordings_can_be_read(name: str) -> None:
    recording = load_recording(name)
    assert recording.name == name
    for result in recording.cases:
        assert {*result.runs, *result.absent} >= set(Method) - {Method.PLAN}, result.name
        assert all(run.spans for run in result.runs.values()), result.name
