"""Kernels, blocks, layers and sparsity of small networks whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
import torch.utils.checkpoint
from torch import nn

from simgpu.recorder import record
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from tests.recorder.small_models import block, kernels, named, only, plain_sgd, record_module

IMAGES = torch.randn(2, 3, 8, 8)


def _release(trace: Trace, name: str) -> str:
    """Operator after which a block was let go."""
    release = block(trace, name).release
    return next((f"{k.phase}:{k.layer}:{k.op}" for k in trace.kernels if k.id == release), str(release))


def test_an_in_place_relu_writes_the_block_of_the_convolution() -> None:
    trace = record_module(
        lambda: named(conv=nn.Conv2d(3, 4, 3), relu=nn.ReLU(inplace=True), last=nn.Conv2d(4, 1, 3)), IMAGES
    )
    relu = only(trace, "relu_")
    assert relu.reads == relu.writes == ("conv:convolution",)
    assert relu.layer == "relu"
    assert kernels(trace, "convolution")[1].reads[0] == "conv:convolution"
    assert _release(trace, "conv:convolution") == "backward:relu:aten::threshold_backward"
    assert [b.id for b in trace.blocks if b.shape == (2, 4, 6, 6) and b.kind is BlockKind.ACTIVATION] == [
        "conv:convolution"
    ]


def test_a_view_shares_the_block_and_keeps_it() -> None:
    trace = record_module(lambda: named(conv=nn.Conv2d(3, 4, 3), flat=nn.Flatten(), fc=nn.Linear(144, 2)), IMAGES)
    assert "conv:convolution" in only(trace, "addmm").reads
    assert not any(kernel.layer == "flat" for kernel in trace.kernels)
    assert _release(trace, "conv:convolution").startswith("backward:fc:")


def test_a_dropout_mask_is_saved_for_backward_and_drawn_by_an_impure_kernel() -> None:
    trace = record_module(
        lambda: named(fc=nn.Linear(192, 64), drop=nn.Dropout(0.5), flat=nn.Flatten()), IMAGES.flatten(1)
    )
    draw = only(trace, "bernoulli_")
    (mask,) = draw.writes
    assert draw.pure is False and draw.reads == ()
    readers = [kernel for kernel in trace.kernels if mask in kernel.reads]
    assert [kernel.phase for kernel in readers if kernel.op == "aten::mul"] == ["forward", "backward"]
    assert _release(trace, mask) == "backward:drop:aten::mul"
    # The mask is kept instead of the input: that one goes as soon as it has been masked.
    assert _release(trace, "fc:addmm") == "forward:drop:aten::mul"


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y).sigmoid() + y


def test_both_branches_of_a_residual_add_are_alive_at_it_and_their_gradients_meet_in_place() -> None:
    trace = record_module(lambda: named(block=_Residual(), act=nn.Tanh()), IMAGES)
    join = only(trace, "add", "forward")
    assert set(join.reads) == {"block.first:convolution", "block:sigmoid"}
    assert join.layer == "block"
    for branch in join.reads:
        assert _release(trace, branch).startswith("backward:block")
    meeting = only(trace, "add_", "backward")
    (target,) = meeting.writes
    assert target in meeting.reads and len(meeting.reads) == 2
    assert block(trace, target).kind is BlockKind.GRADIENT
    assert meeting.layer == "block.second"


def test_gradients_of_both_uses_of_one_tensor_by_one_operator_meet_in_place() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    trace = record_module(lambda: named(fc=nn.Linear(192, 4), square=Square()), IMAGES.flatten(1))
    assert len(kernels(trace, "add_", "backward")) == 1
    assert not kernels(trace, "add", "backward")


class _GradientPlusOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + torch.ones_like(gradient)


def test_an_addition_of_a_backward_formula_itself_stays_out_of_place() -> None:
    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _GradientPlusOne.apply(x)

    trace = record_module(lambda: named(fc=nn.Linear(192, 4), custom=Custom(), act=nn.Tanh()), IMAGES.flatten(1))
    addition = only(trace, "add", "backward")
    assert addition.layer == "custom"
    assert not set(addition.reads) & set(addition.writes)


def test_batch_norm_writes_its_running_statistics_and_is_not_pure() -> None:
    trace = record_module(lambda: named(conv=nn.Conv2d(3, 4, 3, bias=False), bn=nn.BatchNorm2d(4)), IMAGES)
    norm = only(trace, "native_batch_norm")
    assert {"bn.running_mean", "bn.running_var"} <= set(norm.writes) & set(norm.reads)
    assert norm.pure is False
    count = only(trace, "add_", "forward")
    assert count.reads == count.writes == ("bn.num_batches_tracked",)
    statistics = [block(trace, name) for name in norm.writes if block(trace, name).shape == (4,)]
    assert {b.kind for b in statistics} == {BlockKind.OTHER}
    backward = only(trace, "native_batch_norm_backward")
    assert not {"bn.running_mean", "bn.running_var"} & set(backward.writes)


def test_sparsity_is_the_share_of_exact_zeros_after_the_last_write() -> None:
    torch.manual_seed(3)
    fc = nn.Linear(192, 50)
    x = IMAGES.flatten(1)
    expected = float((torch.relu(fc(x)) == 0).float().mean())
    assert 0 < expected < 1
    frozen = plain_sgd(fc.parameters())
    frozen.param_groups[0]["lr"] = 0.0
    trace = record_module(lambda: named(fc=fc, relu=nn.ReLU(inplace=True)), x, optimizer=lambda _: frozen)
    shares = {sample.block: sample.sparsity for sample in trace.sparsity}
    assert shares["fc:addmm"] == pytest.approx(expected, abs=5e-7)
    out_of_place = record_module(lambda: named(fc=fc, relu=nn.ReLU()), x, optimizer=lambda _: frozen)
    shares = {sample.block: sample.sparsity for sample in out_of_place.sparsity}
    assert shares["relu:relu"] == pytest.approx(expected, abs=5e-7)
    assert shares["fc:addmm"] == 0.0


def test_a_scalar_created_on_the_host_is_initialized_there() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor([2.0])

    trace = record_module(lambda: named(fc=nn.Linear(192, 4), scale=Scaled()), IMAGES.flatten(1))
    scale = only(trace, "mul", "forward")
    created = [b for b in trace.blocks if b.host_write is not None]
    assert [(b.bytes, b.host_write, b.persistent) for b in created] == [(4, scale.id, False)]
    assert check_trace(trace) == []


def test_a_constant_outside_the_module_is_there_from_the_start() -> None:
    constant = torch.full((4,), 2.0)

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * constant

    trace = record_module(lambda: named(fc=nn.Linear(192, 4), scale=Scaled()), IMAGES.flatten(1))
    (other,) = [b for b in trace.blocks if b.kind is BlockKind.OTHER]
    assert (other.bytes, other.persistent, other.release) == (16, True, "end")


def test_optimizer_state_after_warm_up_is_persistent_and_its_scratch_is_not() -> None:
    trace = record_module(lambda: named(fc=nn.Linear(192, 4)), IMAGES.flatten(1), optimizer="adam")
    state = {b.id: b for b in trace.blocks if b.kind is BlockKind.OPTIMIZER_STATE}
    assert {"fc.weight.exp_avg", "fc.weight.exp_avg_sq", "fc.bias.exp_avg", "fc.bias.step"} <= set(state)
    assert all(b.persistent and b.release == "end" and b.layer == "fc" for b in state.values())
    temporary = [name for k in kernels(trace, "sqrt", "optimizer") for name in k.writes]
    assert temporary and all(block(trace, name).kind is BlockKind.OTHER for name in temporary)
    assert all(block(trace, name).release != "end" for name in temporary)
    assert check_trace(trace) == []


def test_backward_of_a_recomputing_checkpoint_is_tagged_and_valid() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = named(fc=nn.Linear(16, 16), act=nn.Tanh(), out=nn.Linear(16, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    trace = record_module(Checkpointed, torch.randn(2, 16))
    assert check_trace(trace) == []
    again = only(trace, "tanh", "backward")
    assert again.layer == "inner.act"
    assert [block(trace, name).kind for name in again.writes] == [BlockKind.ACTIVATION]
    assert only(trace, "tanh_backward").layer == "inner.act"


def test_every_forward_and_backward_kernel_has_a_layer() -> None:
    trace = record("resnet20", batch=2, repetitions=1, warmup=1)
    layers = {str(phase): {k.layer for k in trace.kernels if k.phase == phase} for phase in ("forward", "backward")}
    assert None not in layers["forward"] | layers["backward"]
    # The gradient of a plain residual addition is the gradient that arrives: nothing runs for it.
    additions = {f"stage{stage}_{place}" for stage in (1, 2, 3) for place in (1, 2, 3)} - {"stage2_1", "stage3_1"}
    assert layers["forward"] - layers["backward"] == additions
    assert layers["backward"] < layers["forward"]
    assert {k.layer for k in trace.kernels if k.phase == "optimizer"} == {None}
    for kernel in kernels(trace, "convolution_backward"):
        assert f"{kernel.layer}.weight" in kernel.reads
        assert f"{kernel.layer}.weight.grad" in kernel.writes


def test_recording_twice_differs_only_in_durations() -> None:
    def without_times(name: str) -> Trace:
        trace = record(name, batch=2, repetitions=2, warmup=1, seed=5, date="2026-01-01")
        return replace(trace, kernels=tuple(replace(k, duration_ns=0, iqr_ns=0) for k in trace.kernels))

    for name in ("digits-cnn", "transformer"):
        assert without_times(name) == without_times(name)


def test_the_seed_decides_the_data_and_torchs_own_state_is_put_back() -> None:
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    one = record("mlp", batch=2, repetitions=1, warmup=1, seed=1)
    assert torch.rand(1) == expected
    assert one.sparsity != record("mlp", batch=2, repetitions=1, warmup=1, seed=2).sparsity


def test_a_tensor_on_another_device_is_no_block() -> None:
    class WithMeta(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ones(1000, device="meta").exp()
            return x

    trace = record_module(lambda: named(fc=nn.Linear(192, 4), meta=WithMeta()), IMAGES.flatten(1))
    assert not [k for k in trace.kernels if k.layer == "meta"]
    assert all(b.bytes < 4000 for b in trace.blocks)
