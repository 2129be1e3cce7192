"""Recording cases on the CPU: all methods, stored results, and messages about too little memory."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

import torch
from torch.autograd.graph import saved_tensors_hooks

from simgpu.errors import InputError
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.torch.plan import read_plan
from simgpu.validation.comparison import compare_recording
from simgpu.validation.folder import read_recording, write_recording
from simgpu.validation.harness import CasePlan, Recorded, machine, record_cases, session
from simgpu.validation.harness.session import conditions, shortage
from simgpu.validation.measured import Case, MeasuredKind, Method
from simgpu.validation.tables import notes_on

_OFFLOAD = {"prefetch": 1, "stash": 1, "min_bytes": 4096}
PLAN = CasePlan("little", 4, "mlp", ("fc2", "relu2"), _OFFLOAD)
OTHER = CasePlan("little", 8, "mlp", ("fc2", "relu2"), _OFFLOAD)
#: With more activations than weights, so that a plan can save memory.
_GPT = {"tokens": 64, "layers": 2, "width": 32, "heads": 2, "vocabulary": 64}
PLANNED = CasePlan("wide", 8, "gpt2-small", ("blocks.0", "blocks.1"), _OFFLOAD, _GPT)
NOTHING_TO_PLAN = "no plan has a smaller peak than the plain step"
ROOT = Path(__file__).resolve().parents[2]
MEASURE = partial(machine.measure_machine, sizes=(2**12, 2**16), repetitions=2)


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_before_is_not_looked_through() -> Iterator[None]:
    """Each run collects garbage and looks for living tensors: among all that PyTorch and pytest loaded that is slow."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _machine_is_measured_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure_machine", MEASURE)


def record(folder: Path, *plans: CasePlan, **options: Any) -> Recorded:
    return record_cases(folder, plans, **{"device": "cpu", "repetitions": 2, "warmup": 1, **options})


@pytest.fixture(scope="module")
def recorded_case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Recorded]]:
    """A recording of one case."""
    folder = tmp_path_factory.mktemp("recording") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "measure_machine", MEASURE)
        yield folder, record(folder, PLAN)


@pytest.fixture
def case(recorded_case: tuple[Path, Recorded]) -> Case:
    (result,) = recorded_case[1].recording.cases
    return result


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: session.CaseSession) -> Case:
        raise AssertionError(f"{self.plan.name} is recorded again")

    monkeypatch.setattr(session.CaseSession, "run", run)


def saved_bytes() -> int:
    """Of every tensor that autograd saves in a step of the case, as often as it does."""
    sizes = []
    torch.manual_seed(0)
    workload = make_workload("mlp", find_factory("mlp"), PLAN.batch)
    with saved_tensors_hooks(lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor):
        workload.loss(workload.module(*workload.inputs), *workload.labels)
    return sum(sizes)


def test_a_case_has_its_trace_and_a_run_of_each_method(case: Case) -> None:
    assert (case.name, case.trace.info.model, case.trace.info.batch) == ("little-b4", "little", 4)
    assert [*case.runs, *case.absent] == list(Method)
    assert case.absent == {Method.PLAN: NOTHING_TO_PLAN}
    assert case.setup == {"size": {}, "optimizer": "sgd", "seed": 0, "warmup": 1}
    for method, run in case.runs.items():
        assert run.method is method
        assert run.settings == PLAN.settings(method)
        assert len(run.step_ns) == 2
        assert 0 < run.initial_bytes < run.peak_bytes


def test_a_plan_is_made_run_stored_and_compared(tmp_path: Path) -> None:
    (case,) = record(tmp_path / "mine", PLANNED).recording.cases
    assert read_recording(tmp_path / "mine").cases == (case,)
    run = case.runs[Method.PLAN]
    assert run.plan is not None and run.plan == read_plan(tmp_path / "mine" / "wide-b8" / "plan.json")
    compared = compare_recording(tmp_path / "mine", cases=["wide-b8"])["wide-b8"]["plan"]
    assert compared.simulated is not None and compared.timelines is not None
    predicted = run.plan.predicted
    assert (predicted.step_ns, predicted.d2h_bytes, predicted.h2d_bytes) == (
        compared.simulated.step_ns, run.d2h_bytes, run.h2d_bytes
    )  # fmt: skip
    assert predicted.plain_peak_bytes - predicted.peak_bytes >= predicted.plain_peak_bytes - run.plan.budget_bytes > 0
    states = len(run.plan.recompute) * torch.get_rng_state().nbytes
    assert compared.simulated.peak_bytes <= run.peak_bytes <= compared.simulated.peak_bytes + states
    assert compared.timelines.is_same_order
    (note,) = (each for each in notes_on(compare_recording(tmp_path / "mine")) if each.startswith("wide-b8, plan"))
    assert "budget" in note and ("offload" in note or "recompute" in note)


def test_recorded_bytes_equal_those_that_each_method_copies(case: Case) -> None:
    copied = {method: (run.d2h_bytes, run.h2d_bytes) for method, run in case.runs.items()}
    assert copied[Method.PLAIN] == copied[Method.CHECKPOINT] == (0, 0)
    assert copied[Method.SAVE_ON_CPU] == (saved_bytes(), saved_bytes())
    out, back = copied[Method.ASYNC_OFFLOAD]
    assert 0 < back <= out < saved_bytes(), "weights stay, and what is saved twice goes once"


def test_the_timeline_has_the_counted_copies(case: Case) -> None:
    for run in case.runs.values():
        for kind, message in ((MeasuredKind.COPY_D2H, run.d2h_bytes), (MeasuredKind.COPY_H2D, run.h2d_bytes)):
            assert sum(span.bytes for span in run.spans if span.kind is kind) == message
        assert min(span.start_ns for span in run.spans) == 0
        assert {span.op for span in run.spans} & {kernel.op for kernel in case.trace.kernels}


def test_a_recording_reads_back_as_recorded(recorded_case: tuple[Path, Recorded]) -> None:
    folder, recorded = recorded_case
    assert read_recording(folder) == recorded.recording
    assert recorded.left_out == {}


@pytest.mark.usefixtures("nothing_runs")
def test_cases_that_are_there_are_not_recorded_again(recorded_case: tuple[Path, Recorded]) -> None:
    folder, recorded = recorded_case
    said: list[str] = []
    assert record(folder, PLAN, say=said.append) == recorded
    assert said == ["little-b4: already recorded"]


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (PLAN, {"repetitions": 3}),
        (PLAN, {"warmup": 2}),
        (PLAN, {"seed": 1}),
        (replace(PLAN, optimizer="adam"), {}),
        (replace(PLAN, blocks=("fc1",)), {}),
        (replace(PLAN, offload={**_OFFLOAD, "prefetch": 2}), {}),
    ],
)
def test_a_case_with_another_setup_is_refused(
    recorded_case: tuple[Path, Recorded], plan: CasePlan, options: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"little-b4: contains a case recorded with other settings.*--force"):
        record(recorded_case[0], plan, **options)


@pytest.mark.usefixtures("nothing_runs")
def test_a_case_whose_loop_held_the_output_is_refused(recorded_case: tuple[Path, Recorded], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recorded_case[0], tmp_path / "held"))
    header = folder / PLAN.name / "trace" / "trace.yaml"
    header.write_text(header.read_text().replace("output: released", "output: held"))
    with pytest.raises(InputError, match=r"little-b4: contains a case recorded with other settings.*--force"):
        record(folder, PLAN)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("force", [False, True])
def test_cases_of_another_machine_are_not_mixed_with_it(
    recorded_case: tuple[Path, Recorded], tmp_path: Path, force: bool
) -> None:
    text = (recorded_case[0] / "machine.yaml").read_text()
    (tmp_path / "machine.yaml").write_text(text.replace(f"pytorch: {torch.__version__}", "pytorch: 1.2.3"))
    with pytest.raises(InputError, match=r"pytorch: the folder was recorded with '1\.2\.3', this machine has"):
        record(tmp_path, PLAN, force=force)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("force", [False, True])
def test_cases_of_an_unknown_machine_are_refused(
    recorded_case: tuple[Path, Recorded], tmp_path: Path, force: bool
) -> None:
    write_recording(recorded_case[1].recording, tmp_path / "mine")
    (tmp_path / "mine" / "machine.yaml").unlink()
    with pytest.raises(InputError, match=r"contains the case little-b4, but no machine\.yaml"):
        record(tmp_path / "mine", replace(PLAN, model="other"), force=force)
    assert not (tmp_path / "mine" / "machine.yaml").exists()


@pytest.mark.usefixtures("nothing_runs")
def test_an_unwritable_folder_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file is not a folder"):
        record(tmp_path / "file" / "mine", PLAN)


def test_force_measures_finished_cases_again(
    recorded_case: tuple[Path, Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded_case[1].recording.cases[0]
    again = replace(first, setup={**first.setup, "seed": 7})
    write_recording(recorded_case[1].recording, tmp_path / "mine")
    monkeypatch.setattr(session.CaseSession, "run", lambda self: again)
    assert record(tmp_path / "mine", PLAN, force=True, seed=7).recording.cases == (again,)
    assert read_recording(tmp_path / "mine").cases == (again,)


def test_an_interrupted_recording_continues(
    recorded_case: tuple[Path, Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded_case[1].recording.cases[0]
    second = replace(first, batch=8, trace=replace(first.trace, info=replace(first.trace.info, batch=8)))
    answers: list[Any] = [first, KeyboardInterrupt()]
    requested: list[str] = []

    def run(self: session.CaseSession) -> Case:
        requested.append(self.plan.name)
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(session.CaseSession, "run", run)
    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "mine", PLAN, OTHER)
    assert torch.get_num_threads() == threads
    assert read_recording(tmp_path / "mine").cases == (first,)
    answers.append(second)
    assert record(tmp_path / "mine", PLAN, OTHER).recording.cases == (first, second)
    assert requested == ["little-b4", "little-b8", "little-b8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB",
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        ("CUDA error: out of memory\nCUDA kernel errors might be", "CUDA error: out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    ],
)
def test_out_of_memory_is_one_line(text: str, message: str) -> None:
    around = InputError.single("net", "iteration", f"a training iteration raised {text}")
    around.__cause__ = RuntimeError(text)
    assert shortage(RuntimeError(text)) == shortage(around) == message
    assert shortage(InputError.single("net", "iteration", text)) == "", "a text alone is no shortage"


def test_a_method_out_of_memory_is_absent_and_the_others_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_method = session.run_method

    def run(method: Method, *arguments: Any, **options: Any) -> Any:
        if method in (Method.PLAIN, Method.ASYNC_OFFLOAD):
            torch.empty(2**60)
        return run_method(method, *arguments, **options)

    monkeypatch.setattr(session, "run_method", run)
    (result,) = record(tmp_path / "mine", PLAN, repetitions=1).recording.cases
    assert list(result.runs) == [Method.CHECKPOINT, Method.SAVE_ON_CPU]
    assert list(result.absent) == [Method.PLAIN, Method.ASYNC_OFFLOAD, Method.PLAN]
    assert result.absent[Method.PLAN] == "nothing can be planned without a plain run"
    reasons = (result.absent[method] for method in (Method.PLAIN, Method.ASYNC_OFFLOAD))
    assert all(f"tried to allocate {2**62} bytes" in why for why in reasons)
    assert read_recording(tmp_path / "mine").cases == (result,)


def test_errors_other_than_out_of_memory_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the sizes of a and b do not match")

    monkeypatch.setattr(session, "run_method", run)
    with pytest.raises(RuntimeError, match="do not match"):
        record(tmp_path / "mine", PLAN)
    assert not (tmp_path / "mine" / PLAN.name).exists()


def test_a_case_beyond_all_memory_is_left_out_and_the_others_are_recorded(
    recorded_case: tuple[Path, Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded_case[1].recording.cases[0]
    run = session.CaseSession.run
    monkeypatch.setattr(session.CaseSession, "run", lambda self: first if self.plan == PLAN else run(self))
    result = record(tmp_path / "mine", replace(PLAN, batch=10**10), PLAN)
    assert result.recording.cases == (first,)
    assert list(result.left_out) == ["little-b10000000000"]
    assert "tried to allocate" in result.left_out["little-b10000000000"]


def test_the_recorders_progress_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any, progress: Callable[[str], None], **__: Any) -> None:
        progress("what autograd saves is not noted")
        raise MemoryError("no room")

    monkeypatch.setattr(session, "record", short)
    said: list[str] = []
    assert record(tmp_path / "mine", PLAN, say=said.append).left_out == {"little-b4": "no room"}
    assert "little-b4: what autograd saves is not noted" in said


def test_keywords_reach_the_factory(tmp_path: Path) -> None:
    plan = CasePlan(
        "narrow",
        2,
        "gpt2-small",
        ("blocks.0",),
        _OFFLOAD,
        {"layers": 1, "width": 8, "heads": 2, "tokens": 4, "vocabulary": 5},
    )
    (result,) = record(tmp_path, plan, repetitions=1).recording.cases
    weights = {block.id: block.bytes for block in result.trace.blocks if block.persistent}
    assert weights["head.norm.weight"] == 8 * 4
    assert result.trace.info.model == "narrow"
    assert result.setup["size"] == plan.size


@pytest.mark.parametrize("is_public", [True, False])
def test_memory_that_pytorch_keeps_is_given_back(is_public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    accelerator = SimpleNamespace(**{"empty_host_cache": lambda: given.append("host")} if is_public else {})
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("device"))
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: given.append("host"), raising=False)
    session.empty(SimpleNamespace(kind="cuda"))
    assert given == ["device", "host"]
    session.empty(SimpleNamespace(kind="cpu"))
    assert given == ["device", "host"]


def test_a_core_is_left_to_copies_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        with conditions(SimpleNamespace(kind="cpu")) as settings:
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 8
        assert settings["threads"] == "3"
        with conditions(SimpleNamespace(kind="cuda")) as settings:
            assert torch.get_num_threads() == 8
        assert settings["TF32 in convolutions"] in ("on", "off")
    finally:
        torch.set_num_threads(before)


_PAGE_FAULTS = """
import resource, torch
from types import SimpleNamespace
from simgpu.validation.harness.session import conditions

def faults(times, size=64 * 2**20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(size, dtype=torch.uint8)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() // size

usual = faults(10)
with conditions(SimpleNamespace(kind="cpu")) as settings:
    faults(20)
    print(settings["freed memory"], usual, faults(10), sep=",")
"""


@pytest.mark.slow
def test_memory_that_is_freed_stays_with_the_process_on_a_cpu() -> None:
    """How often the system is asked for all of a tensor's memory while it is made and dropped ten times.

    In a process of its own, since what others have left free decides what the C library does. It takes a few times
    until the library has settled, as warm-up steps do.
    """
    command = [sys.executable, "-c", _PAGE_FAULTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    message, usual, stored = done.stdout.strip().split(",")
    if message != "retained by the process" or usual == "0":
        pytest.skip("the C library does not retain freed memory, or pages are too large to count")
    assert (int(usual), int(stored)) == (10, 0)


def test_a_missing_device_is_refused_with_a_remedy(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InputError, match=r"sees 0 CUDA devices; .* with --device cpu --small"):
        record(tmp_path / "mine", PLAN, device="cuda")
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"files that are not from a recording, such as 'notes\.txt'"):
        record(tmp_path, PLAN)
