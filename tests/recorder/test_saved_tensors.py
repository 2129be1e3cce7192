"""What autograd saves: rows known on paper, and the whole against hooks that nobody but the test has set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import simgpu
from simgpu.recorder import record
from simgpu.recorder.notes import Saves
from simgpu.recorder.saved import note_saved
from simgpu.recorder.workload import Workload, find_factory, make_workload
from simgpu.trace.check import check_trace
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, ModuleCall, SavedTensor, Trace
from simgpu.workloads.rescale import at_batch
from tests.plans.iterations import training
from tests.plans.models import MODELS
from tests.recorder.small_models import block, named, record_module, summed
from tests.recorder.variants import SMALLER, small
from tests.sets import slow_except

END = RELEASED_AT_END


def _row(block: str, bytes_: int, after: int | None, before: int | None, dropped: int | str | None) -> SavedTensor:
    """A row that names kernels by their place."""
    named = [None if place is None else f"k{place}" for place in (after, before)]
    return SavedTensor(block, bytes_, *named, f"k{dropped}" if isinstance(dropped, int) else dropped)


def _timed(trace: Trace) -> tuple[SavedTensor, ...]:
    """The rows with only the columns of `_row`."""
    return tuple(
        replace(each, unused_after=None, freed_after=None, layer=None, shape=None, dtype=None) for each in trace.saved
    )


def _ops(trace: Trace, phase: str) -> list[str]:
    return [kernel.op.removeprefix("aten::") for kernel in trace.kernels if kernel.phase == phase]


def test_a_chain_of_layers() -> None:
    trace = record_module(
        lambda: named(
            conv=nn.Conv2d(3, 4, 3),
            relu=nn.ReLU(inplace=True),
            last=nn.Conv2d(4, 2, 3),
            flat=nn.Flatten(),
            fc=nn.Linear(32, 2),
        ),
        torch.randn(2, 3, 8, 8),
    )
    assert _ops(trace, "forward") == ["convolution", "relu_", "convolution", "addmm", "sum"]  # k0 to k4
    assert _ops(trace, "backward") == [
        "ones_like",  # k5
        *("mm", "mm", "sum"),  # k6 to k8: fc
        *("convolution_backward", "threshold_backward", "convolution_backward"),  # k9 to k11: last, relu, conv
    ]
    hidden, picture, features = 2 * 4 * 6 * 6 * 4, 2 * 3 * 8 * 8 * 4, 2 * 2 * 4 * 4 * 4
    assert _timed(trace) == (
        # A convolution saves what it reads before it runs, and backward takes all of it back at once.
        _row("input", picture, None, 11, END),
        _row("conv.weight", 4 * 3 * 9 * 4, None, 11, END),
        # The ReLU saves its result, in the block of the convolution, and the next convolution saves the same block.
        # Only autograd holds it once that convolution has run.
        _row("conv:convolution", hidden, 1, 10, 2),
        _row("conv:convolution", hidden, 1, 9, 2),
        _row("last.weight", 2 * 4 * 9 * 4, 1, 9, END),
        _row("last:convolution", features, 2, 6, 3),
        _row("fc.weight", 2 * 32 * 4, 2, 6, END),
    )
    assert check_trace(trace) == []


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y).sigmoid() + y


def test_a_residual_whose_gradients_meet() -> None:
    trace = record_module(lambda: named(block=_Residual(), act=nn.Tanh()), torch.randn(2, 3, 8, 8))
    assert _ops(trace, "forward") == ["convolution", "convolution", "sigmoid", "add", "tanh", "sum"]  # k0 to k5
    # k6 to k11; the second gradient of y is added to the first one in place.
    assert _ops(trace, "backward") == [
        *("ones_like", "tanh_backward", "sigmoid_backward", "convolution_backward", "add_", "convolution_backward")
    ]
    map_, weight = 2 * 3 * 8 * 8 * 4, 3 * 3 * 9 * 4
    assert _timed(trace) == (
        _row("input", map_, None, 11, END),
        _row("block.first.weight", weight, None, 11, END),
        _row("block.first:convolution", map_, 0, 9, 3),  # the shortcut holds it up to the addition
        _row("block.second.weight", weight, 0, 9, END),
        _row("block:sigmoid", map_, 2, 8, 3),
        _row("act:tanh", map_, 4, 7, 5),  # the loss function's argument is what the model gave
    )


class _Split(nn.Module):
    """Three views of one block, as attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return (query * key) * value


def test_three_views_of_one_block_are_three_tensors() -> None:
    trace = record_module(lambda: named(split=_Split(), act=nn.Tanh()), torch.randn(5, 4))
    assert _ops(trace, "forward") == ["addmm", "mul", "mul", "tanh", "sum"]  # k0 to k4; then ones_like
    part = 5 * 4 * 4
    assert block(trace, "split.qkv:addmm").bytes == 3 * part
    assert _ops(trace, "backward")[:6] == ["ones_like", "tanh_backward", "mul", "mul", "mul", "mul"]  # k5 to k10
    assert [row for row in _timed(trace) if row.block.startswith("split")] == [
        # Each product saves both its factors, the second one first; forward lets go of the views when it returns.
        _row("split.qkv:addmm", part, 0, 9, 2),
        _row("split.qkv:addmm", part, 0, 9, 2),
        _row("split.qkv:addmm", part, 1, 7, 2),
        _row("split:mul", part, 1, 7, 2),
    ]


class _Unused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.sigmoid()
        return x.tanh()


def test_a_saved_tensor_without_a_backward_is_never_unpacked() -> None:
    trace = record_module(lambda: named(fc=nn.Linear(4, 4, bias=False), unused=_Unused()), torch.randn(3, 4))
    assert _ops(trace, "forward") == ["mm", "sigmoid", "tanh", "sum"]
    (row,) = [row for row in _timed(trace) if row.block == "unused:sigmoid"]
    assert row == _row("unused:sigmoid", 3 * 4 * 4, 1, None, 1)


def test_constants_of_the_host_and_of_the_model() -> None:
    constant = torch.full((4,), 3.0)

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor([2.0]) * constant

    trace = record_module(lambda: named(fc=nn.Linear(4, 4), scale=Scaled()), torch.randn(3, 4))
    assert _ops(trace, "forward") == ["addmm", "mul", "mul", "sum"]  # k0 to k3
    assert _ops(trace, "backward")[:3] == ["ones_like", "mul", "mul"]  # k4 to k6: by the constant, by the host's number
    (created,) = [b.id for b in trace.blocks if b.host_write == "k1"]
    (lasting,) = [b.id for b in trace.blocks if b.persistent and b.kind is BlockKind.OTHER]
    description = {row.block: row for row in _timed(trace)}
    assert description[created] == _row(created, 4, 0, 6, None)  # no kernel had touched it when it was saved
    assert description[lasting] == _row(lasting, 16, 1, 5, END)
    assert check_trace(trace) == []


def test_a_checkpoint_saves_its_inputs() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = named(fc=nn.Linear(8, 8), act=nn.Tanh(), out=nn.Linear(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False).sigmoid()

    trace = record_module(Checkpointed, torch.randn(2, 8))
    assert [row.block for row in trace.saved] == ["input", "Checkpointed:sigmoid"]
    assert check_trace(trace) == []


def _seen_by_hooks(name: str, batch: int) -> tuple[int, int]:
    """How many tensors that hold memory are saved in forward, and their bytes."""
    factory = small(name)
    workload = make_workload(name, find_factory(factory) if isinstance(factory, str) else factory, batch)
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        workload.loss(workload.module.train()(*workload.inputs), *workload.labels)
    return len([size for size in sizes if size]), sum(sizes)


@pytest.mark.parametrize("name", ["mlp", "resnet20", "transformer", "words-lstm", "gpt2-small"])
def test_count_and_bytes_are_those_that_other_hooks_see(name: str) -> None:
    trace = record(small(name), batch=2, repetitions=1, warmup=1)
    assert check_trace(trace) == []
    assert (len(trace.saved), sum(row.bytes for row in trace.saved)) == _seen_by_hooks(name, 2)
    place = {kernel.id: number for number, kernel in enumerate(trace.kernels)}
    blocks = trace.block_by_id
    for row in trace.saved:
        assert row.unpacked_before is not None and trace.kernels[place[row.unpacked_before]].phase == "backward"
        release = blocks[row.block].release
        assert row.released_after == END if blocks[row.block].persistent else row.released_after is not None
        # Autograd holds it beyond all others, up to the kernel that it is taken back for.
        if release in place:
            assert place[row.released_after] <= place[release] and place[row.unpacked_before] <= place[release] + 1


def test_looking_changes_no_lifetime_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded() -> Trace:
        return record("resnet20", batch=2, repetitions=1, warmup=1, date="2026-01-01")

    looked = recorded()
    monkeypatch.setattr("simgpu.recorder.session.note_saved", lambda *_, **__: Saves())
    plain = recorded()
    assert looked.saved and not plain.saved
    assert (looked.blocks, looked.sparsity, looked.info) == (plain.blocks, plain.sparsity, plain.info)
    assert [(k.op, k.reads, k.writes) for k in looked.kernels] == [(k.op, k.reads, k.writes) for k in plain.kernels]


def test_views_that_begin_later_in_their_memory_are_saved() -> None:
    tokens = torch.randint(10, (4, 9))
    trace = record_module(lambda: named(e=nn.Embedding(10, 4), fc=nn.Linear(4, 4)), tokens[:, 1:])
    assert {row.layer for row in trace.saved} >= {"e", "fc"}


def test_weights_statistics_and_random_numbers_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def state(workload: Workload) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(value.clone() for value in workload.module.state_dict().values())]

    def compared(name: str, workload: Workload, *more: Any) -> Saves:
        before = state(workload)
        result = note_saved(name, workload, *more)
        assert all(torch.equal(one, two) for one, two in zip(before, state(workload), strict=True))
        assert all(parameter.grad is None for parameter in workload.module.parameters())
        return result

    monkeypatch.setattr("simgpu.recorder.session.note_saved", compared)
    trace = record_module(
        lambda: named(fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4), drop=nn.Dropout(0.5)), torch.randn(8, 4)
    )
    assert any(kernel.op == "aten::bernoulli_" for kernel in trace.kernels)
    assert trace.saved


def test_a_model_that_refuses_hooks_is_recorded_without() -> None:
    class Gradient(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.disable_saved_tensors_hooks("no hooks in here"):
                return x.tanh()

    description: list[str] = []
    trace = record(
        lambda: (named(fc=nn.Linear(4, 4), gradient=Gradient()), torch.randn(2, 4), (), summed),
        batch=2,
        repetitions=1,
        warmup=1,
        progress=description.append,
    )
    assert trace.saved == ()
    assert "what autograd saves is not noted: no hooks in here" in description
    assert check_trace(trace) == []


def test_attention_without_dropout_gives_the_same_again() -> None:
    class Attention(nn.Module):
        def __init__(self, dropout: float) -> None:
            super().__init__()
            self.dropout = dropout

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)

    def purity(dropout: float) -> set[bool | None]:
        trace = record_module(lambda: named(fc=nn.Linear(8, 8), attention=Attention(dropout)), torch.randn(2, 2, 4, 8))
        return {k.pure for k in trace.kernels if k.layer == "attention" and k.phase == "forward"}

    assert purity(0.0) == {True}
    assert False in purity(0.5)


def test_saved_tensors_come_back_from_a_folder_and_grow_with_the_batch(tmp_path: Any) -> None:
    trace = record(SMALLER["gpt2-small"], batch=2, repetitions=1, warmup=1)
    write_trace(trace, tmp_path / "gpt")
    assert read_trace(tmp_path / "gpt") == trace
    doubled = at_batch(trace, 4)
    assert check_trace(doubled) == []
    again = record(SMALLER["gpt2-small"], batch=4, repetitions=1, warmup=1)
    assert doubled.saved == tuple(replace(each, shape=None) for each in again.saved)
    assert doubled.modules == tuple(replace(each, input_types=()) for each in again.modules)


def test_calls_of_modules_have_the_kernels_and_saved_tensors_inside_them() -> None:
    shared = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = shared, nn.Tanh()

        def forward(self, x: torch.Tensor, *, plus: torch.Tensor) -> torch.Tensor:
            return self.act(self.fc(self.act(self.fc(x)))) + plus

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.twice = nn.Linear(4, 4), Twice()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.twice(self.first(x), plus=x.exp())

    trace = record_module(Model, torch.randn(3, 4))
    # k0 first, k1 exp, k2 to k6 twice: fc, act, fc, act, add.
    assert trace.modules == (
        ModuleCall(".", None, "k6", 0, 7, ("input",), ("float32:3x4",), kind="Model"),
        ModuleCall(
            "first",
            None,
            "k0",
            0,
            1,
            ("input",),
            ("float32:3x4",),
            kind="Linear(in_features=4, out_features=4, bias=True)",
        ),
        ModuleCall("twice", "k1", "k6", 1, 6, ("first:addmm", "Model:exp"), ("float32:3x4",) * 2, kind="Twice"),
        ModuleCall(
            "twice.fc",
            "k1",
            "k2",
            1,
            2,
            ("first:addmm",),
            ("float32:3x4",),
            kind="Linear(in_features=4, out_features=4, bias=True)",
        ),
        ModuleCall("twice.act", "k2", "k3", 3, 1, ("twice.fc:addmm",), ("float32:3x4",), kind="Tanh()"),
        ModuleCall(
            "twice.fc",
            "k3",
            "k4",
            4,
            2,
            ("twice.act:tanh",),
            ("float32:3x4",),
            kind="Linear(in_features=4, out_features=4, bias=True)",
        ),
        ModuleCall("twice.act", "k4", "k5", 6, 1, ("twice.fc:addmm#2",), ("float32:3x4",), kind="Tanh()"),
    )
    assert [row.layer for row in trace.saved] == [
        "first",
        *["twice.fc"] * 2,
        "twice.act",
        *["twice.fc"] * 2,
        "twice.act",
    ]


def test_what_was_saved_is_freed_with_its_operator_of_backward() -> None:
    trace = record_module(lambda: named(fc=nn.Linear(4, 4), act=nn.Tanh()), torch.randn(3, 4))
    assert _ops(trace, "backward") == ["ones_like", "tanh_backward", "mm", "sum"]  # k3 to k6
    # The bias's gradient is summed after the operator has dropped its input, and before autograd frees it.
    ends = {row.block: (row.unused_after, row.freed_after) for row in trace.saved}
    assert ends == {"input": ("k5", "k6"), "act:tanh": ("k4", "k4")}


def test_without_a_device_saved_tensors_are_those_of_gpu_operators() -> None:
    trace = record(SMALLER["gpt2-small"], batch=2, gpu="2080ti")
    assert check_trace(trace) == []
    (first, _) = [kernel for kernel in trace.kernels if kernel.op.endswith("_efficient_attention")]
    assert first.pure is True
    # Queries, keys and values before it runs, then its result and what its backward needs of the softmax.
    (qkv,) = {name for name in first.reads if name.endswith("qkv:addmm")}
    assert [row.bytes for row in trace.saved if row.block == qkv] == [2 * 16 * 32 * 4] * 3
    after = [row for row in trace.saved if row.packed_after == first.id and row.block in first.writes]
    assert {row.block for row in after} >= set(first.writes[:2])


@pytest.mark.parametrize("name", slow_except(["unet", "t5", "lstm-cells", "bert-bf16"], "lstm-cells", "bert-bf16"))
def test_a_step_of_ones_own_loop_saves_what_a_recording_of_several_passes_finds(name: str) -> None:
    trace = record(MODELS[name], batch=2, repetitions=1, warmup=1)
    train = training(name)
    workload, optimizer = train.workload, train.optimizer

    def step() -> None:
        workload.loss(workload.output(), *workload.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with simgpu.record_step(workload.module, optimizer) as recording:
        step()
        step()
    again = recording.trace
    assert check_trace(again) == []
    rows = [
        [replace(row, block="", released_after=row.released_after or END) for row in each.saved]
        for each in (trace, again)
    ]
    assert rows[0] == rows[1]
    assert [replace(call, inputs=()) for call in trace.modules] == [replace(call, inputs=()) for call in again.modules]


def test_a_step_without_a_device_saves_what_a_recording_without_a_device_finds() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        torch.manual_seed(0)
        return MODELS["vit"](batch)

    trace = record(factory, batch=2, gpu="v100")
    model, (images,), labels, loss = factory(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with simgpu.record_step(model, optimizer, gpu="v100") as recording:
        for _ in range(2):
            loss(model(images.cuda()), labels.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
    kinds = [[(row.layer, row.shape, row.dtype) for row in each.saved] for each in (trace, recording.trace)]
    assert kinds[0] == kinds[1] and all(row.freed_after for row in recording.trace.saved)
    assert [call.module for call in recording.trace.modules] == [call.module for call in trace.modules]
    times = [[(k.op, k.duration_ns) for k in each.kernels if k.phase == "forward"] for each in (trace, recording.trace)]
    assert times[1][: len(times[0])] == times[0]


def test_a_step_in_which_hooks_are_refused_is_recorded_without_saved_tensors() -> None:
    model = named(fc=nn.Linear(4, 4))
    with simgpu.record_step(model) as recording:
        torch.func.grad(lambda x: model(x).sum())(torch.randn(4))
        model(torch.randn(2, 4)).sum().backward()
    assert recording.trace.saved == () and recording.trace.kernels
