"""Profiles of many steps: only the chosen step is read into memory, and events outside it change nothing."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from simgpu.importers.kineto import iteration
from simgpu.importers.kineto.iteration import marked_steps
from simgpu.importers.kineto.profile import read_profile
from simgpu.trace.model import Phase, Trace
from tests.importers.kineto_files import ExecutionTrace, Profile, small_run

#: From one step's begin to the next, us; a step lasts 90.
PERIOD = 1000


def of_step(event: dict[str, Any], step: int) -> dict[str, Any]:
    """An event of the small run as it comes again in a later step: its own time, numbers and addresses."""
    event = copy.deepcopy(event)
    event["ts"] += PERIOD * step
    reported = event.get("args", {})
    for key in ("External id", "Record function id", "correlation", "Sequence number"):
        if key in reported:
            reported[key] += 100 * step
    if "Addr" in reported:
        reported["Addr"] += 100_000 * step
        reported["Total Allocated"] += 512 * step  # what a step allocates and does not free
    return event


def steps_of(count: int) -> list[list[dict[str, Any]]]:
    """The events of `count` steps, all of them the small run."""
    profile, _ = small_run()
    profile.mark("ProfilerStep#", 0, 90)
    built = []
    for step in range(count):
        events = [of_step(event, step) for event in profile.events]
        events[-1]["name"] = f"ProfilerStep#{step}"
        for number, event in enumerate(event for event in events if event["cat"] == "kernel"):
            event["ts"] = PERIOD * step + 880 + 90 * number  # the last two run while the next step has begun
        built.append(events)
    return built


def crossing(count: int) -> list[dict[str, Any]]:
    """What belongs to no single step: a module around all, a call between two of them and its kernel."""
    profile = Profile()
    profile.module("Net_0", -10, PERIOD * count)
    for step in range(count):
        profile.kernel(PERIOD * step + 95, PERIOD * step + 450, 3, name="between")
    for event in profile.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 100_000
    return profile.events


def write_events(path: Path, *groups: list[dict[str, Any]]) -> Path:
    profile = Profile()
    profile.events = [event for group in groups for event in group]
    return profile.write(path)


def graph_of(step: int, path: Path) -> Path:
    """The execution trace of one step."""
    _, recorded = small_run()
    for node in recorded.nodes:
        for attribute in node["attrs"]:
            if attribute["name"] == "rf_id":
                attribute["value"] += 100 * step
    return recorded.write(path)


def without_marks(trace: Trace) -> Trace:
    """A trace whose notes do not say how many iterations the recording marks."""
    first, _, rest = trace.info.notes.partition(" that the recording marks.")
    assert first.startswith("Iteration ")
    return dataclasses.replace(trace, info=dataclasses.replace(trace.info, notes=rest))


@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("order", ["as it comes", "reversed"])
@pytest.mark.parametrize("step", [0, 2, 4])
def test_events_outside_a_step_change_nothing(tmp_path, step, order, is_joined):
    groups = steps_of(5)
    everything = [*groups, crossing(5)]
    if order == "reversed":
        everything = [group[::-1] for group in everything[::-1]]
    graph = graph_of(step, tmp_path / "graph.json") if is_joined else None
    reported = ImportOptions(iteration=step, execution_trace=graph)
    (tmp_path / "lone").mkdir()
    around, _ = import_trace(write_events(tmp_path / "net.json", *everything), reported)
    module = [event for event in crossing(5) if event["cat"] == "python_function"]
    lone, _ = import_trace(write_events(tmp_path / "lone" / "net.json", groups[step], module), reported)
    assert f"Iteration {step} of the 5" in around.info.notes
    assert without_marks(around) == without_marks(lone)
    assert [kernel.phase for kernel in around.kernels] == [Phase.FORWARD] * 3 + [Phase.BACKWARD, Phase.OPTIMIZER]
    assert any(block.id == "held" for block in around.blocks)


def busy(path: Path, steps: int, operators: int = 400) -> Path:
    """So many steps, each with many operators with a kernel and an allocation."""
    profile = Profile()
    for step in range(steps):
        at = 100 * operators * step
        profile.mark(f"ProfilerStep#{step}", at, 100 * operators - 1)
        for number in range(operators):
            begin, address = at + 100 * number, 4096 * (number + operators * step + 1)
            profile.op("aten::relu", begin + 1, 50, Input_Dims=[[8, 4]])
            profile.memory(begin + 2, address, 512, 512)
            profile.kernel(begin + 3, begin + 4, 20)
            profile.memory(begin + 60, address, -512, 0)
    return profile.write(path / f"{steps}.json")


def retained_events(path: Path) -> int:
    """How many events are kept of the last step."""
    profile = read_profile(path, marked_steps(path)[-1])
    return sum(map(len, (profile.ops, profile.kernels, profile.launches, profile.memory, profile.modules)))


@pytest.fixture
def uncollected():
    """No garbage collection within a test: when one comes depends on all that ran before."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def peak(path: Path) -> int:
    """The most bytes that an import holds at any time: the least of three, as the interpreter's own tables may grow."""
    result = []
    for _ in range(3):
        tracemalloc.start()
        try:
            import_trace(path)
            result.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(result)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncollected")
def test_memory_is_that_of_one_step(tmp_path):
    few, many = busy(tmp_path, 2), busy(tmp_path, 8)
    assert many.stat().st_size > 3.9 * few.stat().st_size
    assert retained_events(few) == retained_events(many) == 400 * 5 + 1
    assert peak(many) < 1.03 * peak(few)


def counting(monkeypatch) -> list[Any]:
    """The steps that are read from now on, one after another."""
    anies: list[Any] = []

    def read(path, step=None):
        anies.append(step if step is None else step.name)
        return read_profile(path, step)

    monkeypatch.setattr(iteration, "read_profile", read)
    return anies


def test_steps_in_which_nothing_was_launched_are_not_read(tmp_path, monkeypatch):
    idle = Profile()
    for step in range(5, 40):
        idle.mark(f"ProfilerStep#{step}", PERIOD * step, 90)
    path = write_events(tmp_path / "net.json", *steps_of(5), idle.events)
    read = counting(monkeypatch)
    trace, _ = import_trace(path)
    assert "Iteration 4 of the 40" in trace.info.notes
    assert read == ["ProfilerStep#39", "ProfilerStep#4"]


@pytest.mark.parametrize("step", [0, 1])
def test_an_execution_trace_of_an_early_step_does_not_take_a_reading_for_each(tmp_path, monkeypatch, step):
    path = write_events(tmp_path / "net.json", *steps_of(20))
    read = counting(monkeypatch)
    trace, _ = import_trace(path, ImportOptions(execution_trace=graph_of(step, tmp_path / "graph.json")))
    assert f"Iteration {step} of the 20" in trace.info.notes
    assert read == ["ProfilerStep#19", f"ProfilerStep#{step}"]


def test_an_execution_trace_of_no_step(tmp_path):
    path = write_events(tmp_path / "net.json", *steps_of(3))
    with pytest.raises(
        InputError, match=r"does not match net\.json: it contains only 0 of 4 operators that launched kernels"
    ):
        import_trace(path, ImportOptions(execution_trace=graph_of(7, tmp_path / "graph.json")))


def test_an_execution_trace_whose_numbers_are_others_joins_by_order(tmp_path, monkeypatch):
    """Steps differ by one operator; the execution trace is the second one's."""
    profile, recorded = Profile(), ExecutionTrace()
    for step in range(4):
        profile.mark(f"ProfilerStep#{step}", PERIOD * step, 90)
        for number in range(step + 1):
            profile.op("aten::relu", PERIOD * step + 10 * number + 1, 5, Input_Dims=[[8, 4]])
            profile.kernel(PERIOD * step + 10 * number + 2, PERIOD * step + 10 * number + 3, 4)
    recorded.node("ProfilerStep#1", 501, [], [])
    for function in (502, 503):
        recorded.node("aten::relu", function, [], [])
    read = counting(monkeypatch)
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert len(trace.kernels) == 2
    assert read == ["ProfilerStep#3", "ProfilerStep#1"]


def test_work_whose_call_is_not_recorded_belongs_to_the_step_in_which_it_ran(tmp_path):
    groups = steps_of(3)
    lonely = Profile()
    for step in range(3):
        lonely.kernel(0, PERIOD * step + 5, 2 + step, launch=False, name="lonely")
    for event in lonely.events:
        event["args"]["correlation"] += 100_000
    trace, _ = import_trace(write_events(tmp_path / "net.json", lonely.events, *groups), ImportOptions(iteration=1))
    assert [kernel.duration_ns for kernel in trace.kernels if kernel.op == "lonely"] == [3000]
    assert "Kernels whose launch was not recorded: 1." in trace.info.notes


def test_kernels_of_another_gpu_in_another_step_are_noticed(tmp_path):
    groups = steps_of(3)
    next(event for event in groups[0] if event["cat"] == "kernel")["args"]["device"] = 1
    with pytest.raises(InputError, match=r"has kernels of several GPUs \(0, 1\)"):
        import_trace(write_events(tmp_path / "net.json", *groups))


def test_marks_in_another_notation_are_recognised(tmp_path):
    """JSON may write any letter by its number; then the file is read once more."""
    path = write_events(tmp_path / "net.json", *steps_of(3))
    plain, _ = import_trace(path)
    path.write_text(path.read_text().replace("ProfilerStep", "Profiler\\u0053tep"))
    assert marked_steps(path) == []
    assert import_trace(path)[0] == plain


def test_similar_names_are_no_marks(tmp_path):
    path = write_events(tmp_path / "net.json", *steps_of(3))
    plain, _ = import_trace(path)
    shadows = [
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#9", "pid": 0, "tid": 7, "ts": 1, "dur": 9},
        {"ph": "X", "cat": "user_annotation", "name": "mine", "args": {"name": "ProfilerStep#9"}, "ts": 1, "dur": 9},
        {"ph": "X", "cat": "python_function", "name": '{"a": "ProfilerStep#9"}', "ts": 1, "dur": 9},
    ]
    text = path.read_text().replace('"traceEvents": [', '"traceEvents": [' + json.dumps(shadows)[1:-1] + ", ")
    path.write_text(text)
    assert [step.name for step in marked_steps(path)] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert import_trace(path)[0] == plain


@pytest.mark.parametrize("piece", [1, 7, 100, 4000])
def test_marks_are_recognised_across_piece_borders(tmp_path, monkeypatch, piece):
    path = write_events(tmp_path / "net.json", *steps_of(3))
    expected = marked_steps(path)
    assert len(expected) == 3
    monkeypatch.setattr(iteration, "_PIECE", piece)
    monkeypatch.setattr(iteration, "_REACH", 200)
    assert marked_steps(path) == expected
