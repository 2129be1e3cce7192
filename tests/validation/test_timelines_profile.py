"""A real profile of VGG-13 on an H100 as a timeline, and made ones for what it has not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.importers import import_trace
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.matching import calls_of, match
from simgpu.validation.timelines.profile import spans_of_profile

PROFILE = Path(__file__).parents[3] / "shared" / "data" / "h100-kineto" / "profiler_vgg13-iter41.json"
needs_recording = pytest.mark.skipif(
    not PROFILE.exists(), reason="the recording is not next to the repository (../shared/data/h100-kineto)"
)

#: VGG-13 as a recorder describes it: what autograd hands on.
WORDS = {
    *("aten::convolution", "aten::relu_", "aten::max_pool2d_with_indices", "aten::_adaptive_avg_pool2d", "aten::addmm"),
    *("aten::native_dropout", "aten::_log_softmax", "aten::nll_loss_forward", "aten::ones_like"),
    *("aten::nll_loss_backward", "aten::_log_softmax_backward_data", "aten::mm", "aten::sum", "aten::mul"),
    *("aten::native_dropout_backward", "aten::threshold_backward", "aten::_adaptive_avg_pool2d_backward"),
    *("aten::max_pool2d_with_indices_backward", "aten::convolution_backward"),
}
LAYERS = (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(PROFILE.read_text())["traceEvents"]
    return result


@pytest.fixture(scope="module")
def spans() -> tuple[MeasuredSpan, ...]:
    return spans_of_profile(PROFILE, WORDS)


@needs_recording
def test_every_kernel_and_every_fill_is_there_and_inside_the_step(spans, events) -> None:
    ran = [event for event in events if event.get("cat") in ("kernel", "gpu_memset")]
    first = min(event["ts"] for event in ran)
    recorded = Counter((e["name"], (e["ts"] - first) * 1000, (e["ts"] - first + e["dur"]) * 1000) for e in ran)
    assert Counter((span.name, span.start_ns, span.end_ns) for span in spans) == recorded
    assert len(spans) == 292 + 33
    assert {(span.stream, span.kind, span.bytes) for span in spans} == {("compute", MeasuredKind.KERNEL, 0)}
    assert [span.start_ns for span in spans] == sorted(span.start_ns for span in spans)


@needs_recording
def test_calls_are_the_layers_in_order_forward(spans) -> None:
    expected = []
    for layer in LAYERS:
        expected += ["max_pool2d_with_indices"] if layer == "M" else ["convolution", "relu_"]
    expected += [
        "_adaptive_avg_pool2d",
        "addmm",
        "relu_",
        "native_dropout",
        "addmm",
        "relu_",
        "native_dropout",
        "addmm",
    ]
    expected += ["_log_softmax", "nll_loss_forward"]
    ops = [call.op.removeprefix("aten::") for call in calls_of(spans)]
    first_backward = next(place for place, op in enumerate(ops) if op.endswith("backward"))
    assert ops[:first_backward] == [*expected, "ones_like"]


@needs_recording
def test_calls_are_the_layers_in_order_backward(spans) -> None:
    ops = [call.op.removeprefix("aten::") for call in calls_of(spans)]
    first_backward = next(place for place, op in enumerate(ops) if op.endswith("backward"))
    first_optimizer = next(place for place, op in enumerate(ops) if op.startswith("_foreach"))
    linear = ["mm", "mm", "sum"]
    expected = ["nll_loss_backward", "_log_softmax_backward_data", *linear]
    expected += ["native_dropout_backward", "threshold_backward", *linear] * 2 + ["_adaptive_avg_pool2d_backward"]
    for layer in reversed(LAYERS):
        expected += (
            ["max_pool2d_with_indices_backward"] if layer == "M" else ["threshold_backward", "convolution_backward"]
        )
    backward = [op for op in ops[first_backward:first_optimizer] if op != "fill_"]
    assert backward == expected


@needs_recording
def test_without_trace_operators_kernels_have_the_importers_operators(spans) -> None:
    message = spans_of_profile(PROFILE, ())
    names = [event.op for event in message if not event.name.startswith("Memset")]
    assert names == [kernel.op for kernel in import_trace(PROFILE)[0].kernels]
    assert len(calls_of(message)) > len(calls_of(spans))


@needs_recording
def test_a_call_is_numbered_in_the_order_of_its_launch(spans) -> None:
    assert [call.number for call in calls_of(spans)] == list(range(len(calls_of(spans))))
    assert match(spans, [call.op for call in calls_of(spans)]).is_complete


# --- what the recording has not -------------------------------------------------------------------------------


def op(name: str, start: float, takes: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": takes, "args": more}


def work(
    category: str, name: str, correlation: int, launched: float, start: float, takes: float, size: int = 0
) -> list:  # type: ignore[type-arg]
    """A launch and what it launched."""
    arguments = {"correlation": correlation, "device": 0, "stream": 7, **({"bytes": size} if size else {})}
    where = {"ph": "X", "pid": 0, "tid": 7}
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": launched,
        "dur": 0.5,
    }
    return [
        {**launch, "args": {"correlation": correlation}},
        {**where, "cat": category, "name": name, "ts": start, "dur": takes, "args": arguments},
    ]


def profile(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def mark(number: int, start: float, takes: float) -> dict[str, Any]:
    return {**op(f"ProfilerStep#{number}", start, takes), "cat": "user_annotation"}


def test_copies_match_by_direction_and_calls_by_the_outermost_name(tmp_path: Path) -> None:
    file = profile(
        tmp_path / "profile.json",
        mark(0, 0, 9),
        op("aten::mm", 1, 2),
        *work("kernel", "of the step before", 1, 2, 3, 4),
        mark(1, 10, 90),
        op("aten::linear", 11, 9),
        op("aten::addmm", 12, 7),
        op("aten::copy_", 13, 2),
        *work("kernel", "prepare", 2, 14, 20, 2),
        *work("kernel", "gemm", 3, 16, 22.25, 5),
        *work("gpu_memset", "Memset (Device)", 4, 17, 28, 1, 16),
        op("aten::copy_", 30, 5),
        *work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 5, 31, 32, 10, 4096),
        op("aten::copy_", 36, 5),
        *work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 6, 37, 33, 3, 512),
        op("aten::clone", 50, 5),
        *work("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 7, 51, 52, 4, 64),
        *work("kernel", "nobody's", 8, 60, 61, 1),
    )
    result = spans_of_profile(file, {"aten::addmm", "aten::copy_"})
    assert [
        (span.stream, span.name.partition(" (")[0], span.op, span.call, span.start_ns, span.end_ns) for span in result
    ] == [
        ("compute", "prepare", "aten::addmm", 0, 0, 2000),
        ("compute", "gemm", "aten::addmm", 0, 2250, 7250),
        ("compute", "Memset", "aten::addmm", 0, 8000, 9000),
        ("d2h", "Memcpy DtoH", "", -1, 12_000, 22_000),
        ("h2d", "Memcpy HtoD", "", -1, 13_000, 16_000),
        ("compute", "Memcpy DtoD", "aten::clone", 1, 32_000, 36_000),
        ("compute", "nobody's", "nobody's", 2, 41_000, 42_000),
    ]
    copies = {span.kind: span.bytes for span in result if span.kind is not MeasuredKind.KERNEL}
    assert copies == {MeasuredKind.COPY_D2H: 4096, MeasuredKind.COPY_H2D: 512}


def test_kernels_that_prepare_a_copy_belong_to_the_copy(tmp_path: Path) -> None:
    """As PyTorch copies out a weight that an operator reads transposed."""
    file = profile(
        tmp_path / "profile.json",
        op("aten::addmm", 1, 30),
        op("aten::copy_", 2, 20),
        op("aten::clone", 3, 6),
        op("aten::copy_", 4, 4),
        *work("kernel", "transpose", 1, 5, 6, 2),
        op("aten::copy_", 10, 4),
        *work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 2, 11, 12, 8, 4096),
        op("aten::copy_", 24, 2),
        *work("kernel", "its own copy", 3, 25, 26, 1),
        *work("kernel", "gemm", 4, 27, 28, 5),
    )
    result = spans_of_profile(file, {"aten::addmm"})
    assert [(span.name, span.op, span.call) for span in result if span.kind is MeasuredKind.KERNEL] == [
        ("transpose", "aten::copy_", 0),
        ("its own copy", "aten::addmm", 1),
        ("gemm", "aten::addmm", 1),
    ]
    assert [(call.start_ns, call.end_ns) for call in calls_of(result)] == [(0, 2000), (20_000, 27_000)]


def test_an_operator_name_covers_its_in_place_form(tmp_path: Path) -> None:
    inside = op("aten::clamp_min_", 2, 2)
    file = profile(tmp_path / "profile.json", op("aten::relu_", 1, 5), inside, *work("kernel", "clamp", 1, 3, 9, 1))
    assert [span.op for span in spans_of_profile(file, {"aten::relu"})] == ["aten::relu_"]


def test_a_profile_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no GPU kernels"):
        spans_of_profile(profile(tmp_path / "profile.json", op("aten::relu_", 1, 5)), ())


def test_steps_without_kernels_are_refused(tmp_path: Path) -> None:
    outside = work("kernel", "clamp", 1, 3, 9, 1)
    file = profile(tmp_path / "profile.json", *outside, mark(1, 10, 20))
    with pytest.raises(InputError, match="marks steps, but none has kernels"):
        spans_of_profile(file, ())
