"""A trace made without a device, rescaled, against the one that is made at the other batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.hardware.nodes import load_node
from simgpu.recorder import record
from simgpu.trace.check import check_trace
from simgpu.workloads.rescale import at_batch
from simgpu.workloads.timemodel.model import time_model
from tests.recorder.test_attention import attention
from tests.recorder.test_no_device import modelled
from tests.sets import slow_rows_except


@pytest.mark.parametrize(
    ("model", "batch", "other"),
    slow_rows_except(
        [("resnet20", 32, 64), ("vgg11", 32, 128), ("transformer", 8, 24)], ("vgg11", 32, 128), ("transformer", 8, 24)
    ),
)
def test_a_rescaled_recording_equals_one_at_that_batch_except_for_time(model: str, batch: int, other: int) -> None:
    """Kernels that are given a block for its shape alone, or read a part of it, are taken to read it all: under 1%."""
    rescaled = at_batch(record(model, batch=batch, gpu="v100"), other)
    created = record(model, batch=other, gpu="v100")
    assert check_trace(rescaled) == []
    assert dict(rescaled.block_by_id) == dict(created.block_by_id)
    assert set(rescaled.algorithms) == set(created.algorithms)
    assert [kernel.flops for kernel in rescaled.kernels] == [kernel.flops for kernel in created.kernels]
    assert rescaled.compute_ns == pytest.approx(created.compute_ns, rel=0.01)
    assert "unknown shape" not in rescaled.info.notes


@pytest.mark.parametrize("gpu", ["v100", "rtx4090"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rescaled_fused_attention_equals_one_at_that_batch(gpu: str, is_causal: bool) -> None:
    """Memory-efficient attention on the V100, flash attention on the RTX 4090, with and without a causal mask."""
    made = [
        modelled(attention(torch.float16, is_causal), batch, time_model, gpu=load_node(gpu).gpu) for batch in (2, 6)
    ]
    rescaled = at_batch(made[0], 6)
    assert any("_scaled_dot_product" in kernel.op for kernel in rescaled.kernels)
    assert [kernel.flops for kernel in rescaled.kernels] == [kernel.flops for kernel in made[1].kernels]
    assert rescaled.compute_ns == pytest.approx(made[1].compute_ns, rel=0.01)
