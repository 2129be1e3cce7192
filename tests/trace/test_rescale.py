"""A trace at another batch: what grows, what stays, and what it is called then."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.check import check_trace
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

SHIPPED = ("vgg11-cifar-cpu", "resnet20-cifar-cpu")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_recorded_batch_is_the_recording_itself(name: str) -> None:
    trace = simgpu.load_trace(name)
    assert trace.at_batch(trace.info.batch) is trace


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("batch", [1, 7, 64, 512])
def test_weights_stay_and_samples_grow(name: str, batch: int) -> None:
    trace = simgpu.load_trace(name)
    other = trace.at_batch(batch)
    assert check_trace(other) == []
    assert (other.info.batch, other.info.origin) == (batch, Origin.MODELLED)
    assert "Rescaled from batch 32 (recorded)" in other.info.notes
    for was, now in zip(trace.blocks, other.blocks, strict=True):
        if was.kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE):
            assert now == was
        elif was.shape and was.shape[0] == 32 and was.kind in (BlockKind.INPUT, BlockKind.FEATURE_MAP):
            assert now.bytes * 32 == was.bytes * batch
            assert now.shape == (batch, *was.shape[1:])


@pytest.mark.parametrize("name", SHIPPED)
def test_there_and_back_again(name: str) -> None:
    trace = simgpu.load_trace(name)
    back = trace.at_batch(2 * trace.info.batch).at_batch(trace.info.batch)
    assert [block.bytes for block in back.blocks] == [block.bytes for block in trace.blocks]
    for was, now in zip(trace.kernels, back.kernels, strict=True):
        assert abs(was.duration_ns - now.duration_ns) <= 1


def test_without_a_time_model_durations_grow_with_the_work_and_the_notes_say_so() -> None:
    trace = simgpu.load_trace("resnet20-cifar-cpu")
    doubled = trace.at_batch(64)
    assert f"no time model for {trace.info.device}" in doubled.info.notes
    optimizer = [k for k, kernel in enumerate(trace.kernels) if kernel.phase is Phase.OPTIMIZER]
    assert all(doubled.kernels[k].duration_ns == trace.kernels[k].duration_ns for k in optimizer)
    convolutions = [k for k, kernel in enumerate(trace.kernels) if "convolution" in kernel.op]
    assert convolutions
    assert all(doubled.kernels[k].duration_ns == 2 * trace.kernels[k].duration_ns for k in convolutions)


def test_durations_follow_the_time_model_of_the_gpu() -> None:
    """Launch overhead does not grow with the batch, so doubling it less than doubles a short kernel."""
    gpu = simgpu.load_node("v100").gpu
    trace = _recorded_on(gpu.name, duration_ns=10_000)
    doubled = trace.at_batch(8)
    assert doubled == trace.at_batch(8, gpu)
    assert f"by the time model of {gpu.name}" in doubled.info.notes
    assert 10_000 <= doubled.kernels[0].duration_ns < 20_000


def test_workspaces_and_algorithms_grow_with_their_kernel() -> None:
    doubled = _recorded_on("nothing known", duration_ns=10_000).at_batch(8)
    assert doubled.block_by_id["w"].bytes == 600
    assert doubled.algorithms == (AlgorithmChoice("k", "fft", 14_000, 1000),)


def test_what_was_measured_at_the_recorded_batch_is_left_out() -> None:
    trace = chain([5], [7], [100])
    kernels = tuple(replace(kernel, start_ns=k, spread_ns=1) for k, kernel in enumerate(trace.kernels))
    recorded = replace(trace, kernels=kernels, info=replace(trace.info, framework_peak_bytes=5))
    doubled = recorded.at_batch(2)
    assert doubled.info.framework_peak_bytes is None
    assert {(kernel.start_ns, kernel.spread_ns) for kernel in doubled.kernels} == {(None, None)}


@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_a_batch_is_a_positive_whole_number(batch: object) -> None:
    with pytest.raises(InputError, match="is not a batch size"):
        chain([5], [7], [100]).at_batch(batch)  # type: ignore[arg-type]


def _recorded_on(device: str, duration_ns: int) -> Trace:
    blocks = (
        Block("x", 4096, BlockKind.INPUT, persistent=True, shape=(4, 256), dtype="float32"),
        Block("y", 4096, BlockKind.FEATURE_MAP, shape=(4, 256), dtype="float32"),
        Block("w", 300, BlockKind.WORKSPACE),
    )
    kernel = Kernel("k", "relu", Phase.FORWARD, duration_ns, ("x",), ("y", "w"))
    info = TraceInfo("tiny", 4, device, "float32", Origin.RECORDED, "a test")
    return Trace(info, (kernel,), blocks, (AlgorithmChoice("k", "fft", 7_000, 500),))
