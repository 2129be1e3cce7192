"""A recording on a CUDA device, where there is one: whole, timed, and with the memory PyTorch itself counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.recorder import record
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Origin, Trace
from tests.recorder.live_bytes import live_bytes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")

_BATCH = 32
_MIB = 2**20


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record("vgg11", batch=_BATCH, device="cuda", repetitions=3, algorithms=True)


def test_a_recording_on_a_gpu_is_valid_and_names_the_device(trace: Trace) -> None:
    assert check_trace(trace) == []
    assert (trace.info.origin, trace.info.batch) == (Origin.RECORDED, _BATCH)
    assert trace.info.device == torch.cuda.get_device_name(0)
    assert "Recorded on a CPU" not in trace.info.notes
    assert all(kernel.duration_ns > 0 for kernel in trace.kernels)


def test_weights_and_layers_recorded_on_a_gpu_equal_those_on_the_cpu(trace: Trace) -> None:
    other = record("vgg11", batch=_BATCH, device="cpu", repetitions=1, warmup=1)

    def weights(result: Trace) -> dict[str, int]:
        return {block.id: block.bytes for block in result.blocks if block.kind is BlockKind.WEIGHT}

    assert weights(trace) == weights(other)
    assert {kernel.layer for kernel in trace.kernels} == {kernel.layer for kernel in other.kernels}


def test_peak_is_what_pytorch_counts_up_to_its_rounding(trace: Trace) -> None:
    device = torch.device("cuda", 0)
    workload = make_workload("vgg11", find_factory("vgg11"), _BATCH).to(device)
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        run_iteration(workload, optimizer, NoWatcher())
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_iteration(workload, optimizer, NoWatcher())
    peak = torch.cuda.max_memory_allocated(device) - before
    no_scratch = [replace(block, bytes=0) if block.kind is BlockKind.WORKSPACE else block for block in trace.blocks]
    rounded = [replace(block, bytes=_at_most(block.bytes)) for block in trace.blocks]
    assert max(live_bytes(replace(trace, blocks=tuple(no_scratch)))) <= peak
    assert peak <= max(live_bytes(replace(trace, blocks=tuple(rounded))))


def test_the_frameworks_own_peak_holds_all_that_was_recorded(trace: Trace) -> None:
    no_scratch = [replace(block, bytes=0) if block.kind is BlockKind.WORKSPACE else block for block in trace.blocks]
    retained = sum(block.bytes for block in trace.blocks if block.persistent)
    assert trace.info.framework_peak_bytes is not None
    assert trace.info.framework_peak_bytes >= retained + max(live_bytes(replace(trace, blocks=tuple(no_scratch))))


def test_saved_tensors_are_recorded_with_their_paths(trace: Trace) -> None:
    place = {kernel.id: number for number, kernel in enumerate(trace.kernels)}
    assert {"input", *(f"conv{stage}_1:convolution" for stage in range(1, 6))} <= {row.block for row in trace.saved}
    for row in trace.saved:
        assert row.unpacked_before is not None and row.released_after is not None
        assert row.released_after == "end" or place[row.released_after] < place[row.unpacked_before]


def test_convolutions_are_measured_under_every_setting_of_cudnn(trace: Trace) -> None:
    convolving = [kernel.id for kernel in trace.kernels if kernel.op.startswith("aten::convolution")]
    names = ["default", "benchmark", "deterministic", "without-cudnn"]
    assert [(c.kernel, c.algorithm) for c in trace.algorithms] == [(k, name) for k in convolving for name in names]
    assert all(choice.duration_ns > 0 for choice in trace.algorithms)


def _at_most(size: int) -> int:
    """Bytes that PyTorch's CUDA allocator may count for a request of this size.

    It rounds up to 512, and may hand out a piece that is up to 1 MiB larger where more than 1 MiB is asked for.
    """
    return -(-size // 512) * 512 + (_MIB if size > _MIB else 0)
