"""Real steps watched: every kernel of the trace has its call, in order, and copies are those of the method."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch.profiler import ProfilerActivity

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.workload import Workload, find_factory, make_workload
from simgpu.trace.model import Trace
from simgpu.validation.calibration import durations
from simgpu.validation.devices import Device, open_device
from simgpu.validation.managed.methods import Managed, managed
from simgpu.validation.measured import MeasuredKind, MeasuredSpan, Method
from simgpu.validation.timelines.matching import match
from simgpu.validation.timelines.profile import spans_of_profile
from simgpu.validation.timelines.recording import profiled_step, record_timeline, warm_up_profiler, write_profile

BATCH = 4


class Model(NamedTuple):
    """A built-in model as a trace, and the same one to run."""

    trace: Trace
    workload: Workload
    optimizer: torch.optim.Optimizer

    @property
    def ops(self) -> list[str]:
        return [kernel.op for kernel in self.trace.kernels]


def model(name: str) -> Model:
    trace = record(name, batch=BATCH, device="cpu", repetitions=1, warmup=1)
    workload = make_workload(name, find_factory(name), BATCH).to(torch.device("cpu"))
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01, momentum=0.9)
    with managed(Method.PLAIN, workload, open_device("cpu"), {}) as plain:
        for _ in range(2):
            plain.step(optimizer)
    return Model(trace, workload, optimizer)


@pytest.fixture(scope="module")
def mlp() -> Model:
    return model("mlp")


@pytest.fixture(scope="module")
def transformer() -> Model:
    return model("transformer")


@pytest.fixture
def device() -> Iterator[Device]:
    result = open_device("cpu")
    yield result
    result.close()


def watched(device: Device, of: Model, method: Method = Method.PLAIN, **settings: Any) -> list[MeasuredSpan]:
    """A step's timeline; its copies are as many bytes as the method says."""

    def step(by: Managed) -> Callable[[], object]:
        return lambda: by.step(of.optimizer)

    with managed(method, of.workload, device, settings) as by:
        spans = record_timeline(device, step(by), set(of.ops))
        assert (moved(spans, MeasuredKind.COPY_D2H), moved(spans, MeasuredKind.COPY_H2D)) == tuple(by.take_copied())
    return list(spans)


def moved(spans: list[MeasuredSpan] | tuple[MeasuredSpan, ...], kind: MeasuredKind) -> int:
    return sum(span.bytes for span in spans if span.kind is kind)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_a_plain_step_is_the_trace_kernel_by_kernel(device: Device, name: str, request: pytest.FixtureRequest) -> None:
    of: Model = request.getfixturevalue(name)
    spans = watched(device, of)
    result = match(spans, of.ops)
    assert result.is_complete
    assert len(result.pairs) == len(of.trace.kernels) == len(spans)
    step = spans[-1].end_ns
    assert sum(durations(spans, result, step)) == step


def test_the_host_s_thread_does_one_thing_at_a_time(device: Device, mlp: Model) -> None:
    spans = watched(device, mlp)
    assert spans[0].start_ns == 0
    assert all(span.start_ns <= span.end_ns for span in spans)
    assert all(one.end_ns <= other.start_ns for one, other in itertools.pairwise(spans))
    assert [span.call for span in spans] == list(range(len(spans)))


def test_synchronous_offload_copies_both_ways_between_the_same_kernels(device: Device, mlp: Model) -> None:
    spans = watched(device, mlp, Method.SAVE_ON_CPU)
    assert moved(spans, MeasuredKind.COPY_D2H) == moved(spans, MeasuredKind.COPY_H2D) > 0
    assert match(spans, mlp.ops).is_complete
    assert {span.stream for span in spans} == {"compute", "d2h", "h2d"}
    copies = [span for span in spans if span.stream != "compute"]
    assert {(span.stream, span.kind) for span in copies} == {
        ("d2h", MeasuredKind.COPY_D2H),
        ("h2d", MeasuredKind.COPY_H2D),
    }
    assert all((span.op, span.call) == ("", -1) for span in copies)


def test_asynchronous_offload_does_not_change_kernels(device: Device, mlp: Model) -> None:
    spans = watched(device, mlp, Method.ASYNC_OFFLOAD, prefetch=1, stash=1, min_bytes=1)
    assert moved(spans, MeasuredKind.COPY_D2H) > 0
    assert match(spans, mlp.ops).is_complete


def test_checkpointing_adds_calls_that_the_trace_has_not(device: Device, transformer: Model) -> None:
    block = next(
        name for name, module in transformer.workload.module.named_modules() if name and list(module.children())
    )
    spans = watched(device, transformer, Method.CHECKPOINT, blocks=[block])
    result = match(spans, transformer.ops)
    assert result.unmatched_positions == ()
    again = [result.calls[place].op for place in result.unmatched_calls]
    inside = [kernel.op for kernel in transformer.trace.kernels if f"{kernel.layer}.".startswith(f"{block}.")]
    assert again
    assert match_in_order(again, inside)


def match_in_order(some: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(op in rest for op in some)


def test_only_work_on_the_device_counts(device: Device) -> None:
    x, there = torch.randn(8, 8), device.host_buffer(256)

    def step() -> None:
        torch.empty(3)
        view = x.view(64)[:4].detach()
        with torch.profiler.record_function("nothing"):
            there.copy_(x.view(-1).view(torch.uint8))
        view.add_(1)
        x.relu().sum().item()

    assert [span.op for span in record_timeline(device, step, ())] == [
        *("aten::add_", "aten::relu", "aten::sum", "aten::_local_scalar_dense"),
    ]
    assert [span.op for span in record_timeline(device, step, {"aten::empty"})][:2] == ["aten::empty", "aten::add_"]


# --- the profiler's way, as far as it goes without a GPU ------------------------------------------------------


def test_the_profiler_s_operators_are_the_recorder_s(device: Device, transformer: Model, tmp_path: Path) -> None:
    """A profile of the CPU, with a kernel put where each operator without others inside it was called."""
    file = tmp_path / "profile.json"
    with managed(Method.PLAIN, transformer.workload, device, {}) as plain:
        write_profile(device, lambda: plain.step(transformer.optimizer), file, [ProfilerActivity.CPU])
    recorded = json.loads(file.read_text())
    calls = [event for event in recorded["traceEvents"] if event.get("cat") == "cpu_op"]
    lone = [op for op, after in itertools.pairwise([*sorted(calls, key=order), None]) if not has_inside(op, after)]
    for number, op in enumerate(lone, start=1):
        recorded["traceEvents"] += launched(op, number)
    file.write_text(json.dumps(recorded))
    result = match(spans_of_profile(file, set(transformer.ops)), transformer.ops)
    assert result.unmatched_positions == ()
    surplus = {result.calls[place].op for place in result.unmatched_calls}
    # What launches nothing on a GPU, and what surrounds autograd's nodes.
    assert not surplus & set(transformer.ops)


def order(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], -event["dur"]


def has_inside(op: dict[str, Any], after: dict[str, Any] | None) -> bool:
    return after is not None and after["ts"] + after["dur"] <= op["ts"] + op["dur"]


def launched(op: dict[str, Any], number: int) -> list[dict[str, Any]]:
    arguments = {"correlation": number, "device": 0, "stream": 7}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 0, "args": arguments}
    kernel = {"ph": "X", "cat": "kernel", "name": f"kernel{number}", "pid": 0, "tid": 7, "dur": 0.001}
    here = {"pid": op["pid"], "tid": op["tid"], "ts": op["ts"]}
    return [{**launch, **here}, {**kernel, "ts": op["ts"] + 10, "args": arguments}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a CUDA device")
def test_profiling_without_a_gpu_raises_an_input_error(device: Device, mlp: Model) -> None:
    with (
        managed(Method.PLAIN, mlp.workload, device, {}) as plain,
        pytest.warns(UserWarning, match="CUDA is not available"),
        pytest.raises(InputError, match="has no GPU kernels"),
    ):
        profiled_step(device, lambda: plain.step(mlp.optimizer), set(mlp.ops))


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a CUDA device")
def test_a_device_without_profiled_kernels_is_refused_before_timing(device: Device) -> None:
    warm_up_profiler(device)
    device.kind = "cuda"
    with (
        pytest.warns(UserWarning, match="CUDA is not available"),
        pytest.raises(InputError, match="profiler saw no kernel on this device: has no GPU kernels"),
    ):
        warm_up_profiler(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")
def test_the_profiler_can_be_warmed_up_twice_on_a_gpu() -> None:
    device = open_device("cuda")
    for _ in range(2):
        warm_up_profiler(device)
    device.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")
def test_every_kernel_recorded_on_a_gpu_has_its_call() -> None:
    device = open_device("cuda")
    trace = record("mlp", batch=BATCH, device="cuda", repetitions=2, warmup=2)
    workload = make_workload("mlp", find_factory("mlp"), BATCH).to(device.torch_device)
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01, momentum=0.9)
    ops = [kernel.op for kernel in trace.kernels]
    with managed(Method.SAVE_ON_CPU, workload, device, {}) as by:
        by.step(optimizer)
        by.take_copied()
        spans = record_timeline(device, lambda: by.step(optimizer), set(ops))
        out, into = by.take_copied()  # of two steps: the profiler's warm-up is one
    assert match(spans, ops).unmatched_positions == ()
    assert (2 * moved(spans, MeasuredKind.COPY_D2H), 2 * moved(spans, MeasuredKind.COPY_H2D)) == (out, into)
