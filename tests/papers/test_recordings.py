"""Recordings next to what is simulated of them: the files read apart, `ideal` and `none`, tasks, and the tables."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.io.shipped import shipped_folder, shipped_names
from simgpu.papers import recordings_files as stated
from simgpu.papers import recordings_runs as module
from simgpu.papers.cache import ResultCache
from simgpu.papers.recordings import Compared, NotCompared, Recordings
from simgpu.papers.recordings_files import Fact
from simgpu.papers.recordings_runs import compare
from simgpu.papers.recordings_tasks import KNOWN, RecordingTask, recording_tasks, recordings_of
from simgpu.papers.tasks import Groups, run_group
from simgpu.workloads.calibration.recordings import load_recordings

DATA = Path(__file__).parents[3] / "shared" / "data"
DIGITS = shipped_folder("traces") / "digits-cnn-cpu"


def in_data(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"the recordings are not next to the repository (../shared/data/{name})")
    return DATA / name


def run(tasks: list[RecordingTask]) -> tuple[ResultCache, dict[str, str]]:
    cache, failed, groups = ResultCache(), dict[str, str](), Groups.of(tasks)
    for number in range(len(groups.groups)):
        done = run_group(groups, number)
        failed |= done.failed
        for key, results in done.results.items():
            cache.put(key, results)
    return cache, failed


def values(facts: list[Fact]) -> dict[str, int]:
    return {fact.what: fact.value for fact in facts}


# --- what files state ---------------------------------------------------------------------------------------


def test_a_trace_states_its_kernels_and_their_time(tmp_path):
    (tmp_path / "kernels.csv").write_text("id,duration_ns\na,5\nb,7\n")
    assert values(stated.of_folder(tmp_path)) == {"kernels": 2, "total kernel time": 12}


def test_triosim_states_microseconds(tmp_path):
    (tmp_path / "trace.csv").write_text("OperatorID,Operator_cudatimenooverlap\n1,2671.0\n2,0.5\n")
    assert values(stated.of_triosim(tmp_path)) == {"kernels": 2, "total kernel time": 2_671_500}


def test_g10_states_milliseconds_without_page_faults(tmp_path):
    (tmp_path / "cudnn256.txt").write_text("0000 0.197632 ms\n0001 0.000001 ms\n")
    (tmp_path / "cudnn256PF.txt").write_text("0000 70.0 ms\n0001 70.0 ms\n")
    assert values(stated.of_g10(tmp_path)) == {"kernels": 2, "total kernel time": 197_633}


def line(instruction: str, **fields: object) -> str:
    return json.dumps({"INSTRUCTION": instruction, **fields})


def result(name: str, size: int, alias: int = -1) -> list[str]:
    return [line("MEMORY", NAME=name, MEMORY=str(size)), line("ALIAS", NAME=name, ALIAS=str(alias))]


LOG = [
    line("CONSTANT", NAME="before"),
    line("MEMORY", NAME="before", MEMORY="999"),
    line("ANNOTATE", ANNOTATION="START"),
    line("CONSTANT", NAME="w"),
    line("MEMORY", NAME="w", MEMORY="100"),
    line("CALL", NAME="relu", ARGS=["w"], RESULT=["y"], TIME="5"),
    *result("y", 50),
    line("CALL", NAME="view", ARGS=["y"], RESULT=["v"], TIME="1"),
    *result("v", 50, alias=0),
    line("RELEASE", NAME="y"),
    line("MUTATE", NAME="add_", ARGS=["v", "w"], MUTATE=[0], TIME="2"),
    line("CALL", NAME="relu", ARGS=["v"], RESULT=["z"], TIME="7"),
    *result("z", 30),
    line("COPY_FROM", DST="v", SRC="z"),
    line("CALL", NAME="relu", ARGS=["v"], RESULT=["u"], TIME="7"),
    *result("u", 60),
]


@pytest.mark.parametrize("packed", [False, True])
def test_a_dtr_log_gives_storage_sizes_until_the_last_release(tmp_path, packed):
    """100 + 50 (y, later v) + 30 (z), of which v's 50 go when v becomes a name of z, + 60 (u)."""
    data = "\n".join(LOG).encode()
    path = tmp_path / "net-b4.log"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert values(stated.of_dtr(path)) == {
        "kernels": 5,
        "total kernel time": 22,
        "constants": 100,
        "peak memory": 190,
    }


def kernel(ts: float, dur: float, correlation: int, stream: int = 7) -> dict[str, Any]:
    about = {"stream": stream, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur, "args": about}


def launch(ts: float, correlation: int) -> dict[str, Any]:
    about = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts, "dur": 1, "args": about}


def profile(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_profile_states_its_kernels_and_its_timeline(tmp_path):
    """The third kernel is launched 5 us after the second one's end; a fill takes 2 us of a gap."""
    fill = {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 14, "dur": 2, "args": {}}
    events = [kernel(10, 4, 1), kernel(16.5, 2, 2), kernel(30, 5, 3), launch(1, 1), launch(2, 2), launch(22.5, 3), fill]
    results = stated.of_profile(profile(tmp_path, *events))
    assert values(results) == {"kernels": 3, "total kernel time": 11_000, stated.TIMELINE: 25_000}
    assert "2 gaps between them, 14,000 ns in total" in results[-1].note
    assert "1 memory fills take 2,000 ns; 1 of the 3 kernels were launched after" in results[-1].note


def test_a_profile_states_its_peak_on_the_gpu(tmp_path):
    totals = [(1, 500), (1, 900), (1, 100), (0, 5000)]
    memory = [
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Device Type": device, "Total Allocated": total}}
        for device, total in totals
    ]
    assert values(stated.of_profile(profile(tmp_path, kernel(1, 1, 1), *memory)))["peak memory"] == 900


def test_streams_have_no_common_timeline_and_several_iterations_no_common_sum(tmp_path):
    results = stated.of_profile(profile(tmp_path, kernel(1, 1, 1), kernel(1, 1, 2, stream=8)))
    assert stated.TIMELINE not in values(results)
    steps = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n, "dur": 1} for n in (1, 2)]
    assert stated.of_profile(profile(tmp_path, kernel(1, 1, 1), *steps)) == []


def test_copies_over_the_link_are_those_between_devices(tmp_path):
    names = ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)", "Unified Memory Memcpy HtoD")
    copies = [{"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 1, "dur": 1} for name in names]
    assert stated.link_copies(profile(tmp_path, *copies)) == 2


# --- ideal and none -----------------------------------------------------------------------------------------


def test_a_shipped_recording_is_equal():
    rows = compare("digits", DIGITS, "")
    assert [row.what for row in rows] == ["kernels", "total kernel time", "peak memory, from recorded lifetimes"]
    assert all(row.equal and row.difference == 0 and not row.note for row in rows)
    assert {(row.name, row.origin, row.device) for row in rows} == {("digits", "recorded", "CPU (AMD EPYC)")}


@pytest.mark.parametrize("dropped", [0, -1])
def test_data_that_an_import_dropped_are_noticed(monkeypatch, dropped):
    """As if a reader of the format had lost a kernel that the file has."""
    trace = module.read_trace(DIGITS)
    left = [kernel for kernel in trace.kernels if kernel is not trace.kernels[dropped]]
    real = module.simulate

    def lossy(trace: Any, *args: Any, **options: Any) -> Any:
        loose = tuple(replace(block, release=None, host_write=None, persistent=True) for block in trace.blocks)
        return real(replace(trace, kernels=tuple(left), blocks=loose, sparsity=(), algorithms=()), *args, **options)

    monkeypatch.setattr(module, "simulate", lossy)
    kernels, compute, *_ = compare("digits", DIGITS, "")
    assert (kernels.difference, compute.difference) == (-1, -trace.kernels[dropped].duration_ns)


LOGS = {
    "resnet32-b56": (286, 291905487, 35584920, 10061179152),
    "densenet121-b84": (2072, 355299140, 82830040, 11020749360),
    "unet-b6": (247, 435278292, 93386276, 8415764640),
    "transformer-b10": (2821, 276259118, 263197248, 9864405000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_dtr_logs_are_equal_in_all_that_is_known_of_them(name):
    rows = {row.what: row for row in compare(name, in_data(f"titanv-dtr/{name}.log"), "titan-v")}
    kernels, compute, constants, peak = LOGS[name]
    known = {"kernels": kernels, "total kernel time": compute, "constants": constants, "peak memory": peak}
    assert {what: row.recorded for what, row in rows.items()} == known
    assert all(row.equal for row in rows.values())
    assert {row.device for row in rows.values()} == {"Titan V"}


def test_a_vgg13_of_triosim_is_equal():
    rows = compare("vgg13", in_data("h100-triosim/vgg13"), "h100")
    assert [(row.recorded, row.equal) for row in rows] == [(77, True), (94_038_000, True)]


def test_a_profile_is_equal_but_for_its_gaps_and_joined_for_what_the_allocator_rounds():
    joined = {row.what: row for row in compare("joined", in_data("h100-kineto"), "h100")}
    alone = {row.what: row for row in compare("alone", in_data("h100-kineto/profiler_vgg13-iter41.json"), "h100")}
    for rows in (joined, alone):
        assert rows["kernels"].recorded == 292 and rows["kernels"].equal
        assert rows["total kernel time"].recorded == 346_344_000 and rows["total kernel time"].equal
        assert rows[stated.TIMELINE].difference == 346_344_000 - 347_021_000
        assert "677,000 ns in total" in rows[stated.TIMELINE].note
    assert alone["peak memory"].equal and not alone["peak memory"].note
    assert -(1 << 20) < joined["peak memory"].difference < 0
    assert "rounded up to 512 bytes the peak is" in joined["peak memory"].note


# --- tasks --------------------------------------------------------------------------------------------------


def test_shipped_recordings_are_compared_and_modelled_traces_are_listed():
    names = {task.name for task in recording_tasks()}
    reasons = {row.name: row.why for row in recordings_of(ResultCache(), {}).not_compared}
    assert names | reasons.keys() - {"other recordings"} == set(shipped_names("traces"))
    assert not names & reasons.keys()
    assert "vgg16-b128-v100" in reasons and reasons["vgg16-b128-v100"].startswith("modelled")
    assert "--recordings" in reasons["other recordings"]


def test_the_known_recordings_are_those_listed_for_calibration_of_the_time_model():
    listed = load_recordings()
    profile = "h100-kineto/profiler_vgg13-iter41.json"  # here known by its folder, in which its execution trace is
    others = {each.path: each.gpu for each in listed.recordings if each.path != profile}
    assert others.items() <= KNOWN.items()
    assert KNOWN.keys() - others.keys() == {"h100-kineto", *(each.path for each in listed.not_compared)}


def test_a_folder_that_is_not_there_is_the_users_mistake(tmp_path):
    with pytest.raises(InputError, match="no such folder; give the folder with the recordings"):
        recording_tasks(tmp_path / "nowhere")


def small_folder(folder: Path) -> Path:
    (folder / "titanv-dtr").mkdir(parents=True)
    (folder / "titanv-dtr" / "unet-b6.log").write_text("\n".join(LOG))
    (folder / "mine-b4.log").write_text("\n".join(LOG[2:]))
    (folder / "README.md").write_text("nothing to see here")
    shutil.copytree(DIGITS, folder / "deeper" / "digits")
    shutil.copytree(shipped_folder("traces") / "hpc-cg", folder / "solver")
    return folder


def of_folder(tasks: list[RecordingTask], folder: Path) -> list[RecordingTask]:
    return [task for task in tasks if Path(task.path).is_relative_to(folder)]


def test_recordings_are_detected_by_their_content(tmp_path):
    folder = small_folder(tmp_path)
    results = of_folder(recording_tasks(folder), folder)
    assert [(task.name, task.gpu) for task in results] == [
        ("deeper/digits", ""),
        ("mine-b4.log", ""),
        ("titanv-dtr/unet-b6.log", "titan-v"),
    ]


def test_a_recordings_folder_reports_what_was_compared(tmp_path):
    folder = small_folder(tmp_path)
    cache, failed = run(of_folder(recording_tasks(folder), folder))
    results = recordings_of(cache, failed, folder)
    assert {row.name for row in results.compared} == {"deeper/digits", "mine-b4.log", "titanv-dtr/unet-b6.log"}
    assert not results.unequal and not results.managed
    why = {row.name: row.why for row in results.not_compared}
    assert why["solver"].startswith("modelled") and why["mine-b4.log"].startswith("no managed run")
    assert {name for name in why if why[name] == f"is not in {folder}"} == KNOWN.keys() - {"titanv-dtr/unet-b6.log"}
    assert {row.name for row in results.failed} == {task.name for task in recording_tasks()}  # these were not run
    assert {row.why for row in results.failed} == {"did not run"}


def test_a_damaged_recording_fails_alone(tmp_path):
    folder = small_folder(tmp_path)
    (folder / "mine-b4.log").write_text("\n".join(LOG[2:])[:-40])
    cache, failed = run(of_folder(recording_tasks(folder), folder))
    results = recordings_of(cache, failed, folder)
    (broken,) = (row for row in results.failed if row.name == "mine-b4.log")
    assert "mine-b4.log" in broken.why and "did not run" not in broken.why
    assert {row.name for row in results.compared} == {"deeper/digits", "titanv-dtr/unet-b6.log"}


def test_a_task_is_another_when_its_files_change(tmp_path):
    folder = small_folder(tmp_path)
    before = {task.name: task.key for task in of_folder(recording_tasks(folder), folder)}
    (folder / "mine-b4.log").write_text("\n".join(LOG[2:]).replace('"5"', '"6"'))
    after = {task.name: task.key for task in of_folder(recording_tasks(folder), folder)}
    assert {name for name in before if before[name] != after[name]} == {"mine-b4.log"}


# --- tables -------------------------------------------------------------------------------------------------

TWO = Recordings(
    (
        Compared("a", "imported", "H100", "ideal", "total kernel time", "ns", 5000, 5000),
        Compared("a", "imported", "H100", "none", "peak memory", "bytes", 2000, 1990, "rounded"),
    ),
    not_compared=(NotCompared("b", "modelled"),),
    failed=(NotCompared("c", "cut off"),),
)


def test_tables_show_numbers_in_full_and_why_they_differ():
    assert TWO.rows() == [
        ("a (imported, H100)", "", "", ""),
        ("  total kernel time", "5,000 ns", "5,000 ns", "equal"),
        ("  peak memory", "2,000 bytes", "1,990 bytes", "-10 bytes (-0.500%)"),
    ]
    assert TWO.notes() == ["a, peak memory: rounded", "b: modelled", "c: FAILED: cut off"]
    assert "FAILED: cut off" in repr(TWO) and "Unified Memory" not in repr(TWO)
    assert [row.what for row in TWO.unequal] == ["peak memory"]


def test_plain_values_and_a_frame():
    plain = TWO.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert [(row["difference"], row["equal"]) for row in plain["compared"]] == [(0, True), (-10, False)]
    frame = TWO.frame()
    assert frame["simulated"].tolist() == [5000, 1990] and frame["equal"].tolist() == [True, False]
