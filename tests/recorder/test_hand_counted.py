"""A two-layer network small enough to know every tensor on paper."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Origin, Phase, Trace
from tests.recorder.live_bytes import live_bytes
from tests.recorder.small_models import block, named, record_module

# Batch 5, widths 4 -> 8 -> 3, float32: bytes of everything that exists, by hand.
X, H, Y, LOSS = 5 * 4 * 4, 5 * 8 * 4, 5 * 3 * 4, 4
W1, B1, W2, B2 = 8 * 4 * 4, 8 * 4, 3 * 8 * 4, 3 * 4


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record_module(lambda: named(fc1=nn.Linear(4, 8), relu=nn.ReLU(), fc2=nn.Linear(8, 3)), torch.randn(5, 4))


def test_the_kernels_are_the_operators_in_order(trace: Trace) -> None:
    description = [(kernel.op.removeprefix("aten::"), str(kernel.phase), kernel.layer) for kernel in trace.kernels]
    assert description == [
        ("addmm", "forward", "fc1"),
        ("relu", "forward", "relu"),
        ("addmm", "forward", "fc2"),
        ("sum", "forward", "loss"),
        ("ones_like", "backward", "loss"),
        ("mm", "backward", "fc2"),
        ("mm", "backward", "fc2"),
        ("sum", "backward", "fc2"),
        ("threshold_backward", "backward", "relu"),
        ("mm", "backward", "fc1"),
        ("sum", "backward", "fc1"),
        *[("add_", "optimizer", None)] * 4,
    ]


def test_memory_while_each_kernel_runs_is_what_it_is_on_paper(trace: Trace) -> None:
    held = LOSS  # the loop's own variable
    gradients2 = W2 + B2
    gradients = gradients2 + W1 + B1
    assert live_bytes(trace) == [
        H,  # addmm makes the hidden layer
        H + H,  # relu makes its own result
        H + Y,  # what went into relu is gone, its result is kept
        H + Y + LOSS,
        H + held + LOSS,  # the loss's gradient; nobody holds the output any more
        H + held + LOSS + H,  # gradient of the hidden layer
        H + held + LOSS + H + W2,
        H + held + LOSS + H + W2 + B2,
        H + held + LOSS + H + gradients2 + H,  # through relu
        held + LOSS + H + gradients2 + W1,
        held + LOSS + H + gradients,
        *[held + gradients] * 4,
    ]


def test_persistent_blocks_are_the_batch_and_the_weights(trace: Trace) -> None:
    retained = {name: (b.bytes, b.kind, b.layer) for name, b in trace.block_by_id.items() if b.persistent}
    assert retained == {
        "input": (X, BlockKind.INPUT, None),
        "fc1.weight": (W1, BlockKind.WEIGHT, "fc1"),
        "fc1.bias": (B1, BlockKind.WEIGHT, "fc1"),
        "fc2.weight": (W2, BlockKind.WEIGHT, "fc2"),
        "fc2.bias": (B2, BlockKind.WEIGHT, "fc2"),
    }
    assert all(trace.block_by_id[name].release == "end" for name in retained)


def test_kinds_of_what_the_iteration_makes(trace: Trace) -> None:
    created: dict[BlockKind, list[int]] = {}
    for b in trace.blocks:
        if not b.persistent:
            created.setdefault(b.kind, []).append(b.bytes)
    assert created == {
        BlockKind.ACTIVATION: [H, H, Y, LOSS],
        BlockKind.GRADIENT: [LOSS, H, H],
        BlockKind.WEIGHT_GRADIENT: [W2, B2, W1, B1],
    }


def test_a_weight_is_one_block_read_in_forward_and_written_by_the_optimizer(trace: Trace) -> None:
    using = [k for k in trace.kernels if "fc2.weight" in k.reads + k.writes]
    assert [(k.phase, "fc2.weight" in k.writes) for k in using] == [
        (Phase.FORWARD, False),
        (Phase.BACKWARD, False),
        (Phase.OPTIMIZER, True),
    ]
    assert using[-1].pure is False
    assert set(using[-1].reads) == {"fc2.weight", "fc2.weight.grad"}


def test_gradients_are_let_go_after_the_last_step_and_not_at_the_end(trace: Trace) -> None:
    last = trace.kernels[-1].id
    gradients = [b for b in trace.blocks if b.kind is BlockKind.WEIGHT_GRADIENT]
    assert [b.release for b in gradients] == [last] * 4
    assert all(b.release not in ("end", last) for b in trace.blocks if b.kind is BlockKind.GRADIENT)


def test_views_are_neither_kernels_nor_blocks(trace: Trace) -> None:
    assert not {"aten::t", "aten::expand", "aten::detach", "aten::view"} & {k.op for k in trace.kernels}
    assert len(trace.blocks) == 5 + 4 + 3 + 4


def test_shapes_types_and_arithmetic(trace: Trace) -> None:
    hidden = block(trace, "fc1:addmm")
    assert (hidden.shape, hidden.dtype) == ((5, 8), "float32")
    assert trace.kernels[0].flops == 2 * 5 * 4 * 8
    assert trace.kernels[1].flops is None


def test_provenance_and_validity(trace: Trace) -> None:
    assert check_trace(trace) == []
    info = trace.info
    assert (info.origin, info.batch, info.dtype, info.date) == (Origin.RECORDED, 5, "float32", "2026-01-01")
    assert torch.__version__ in info.tool
    assert "Recorded on a CPU" in info.notes
    assert info.device.startswith("CPU (")
