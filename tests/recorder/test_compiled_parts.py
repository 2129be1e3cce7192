"""Compiled parts of a recorded step: their graphs run operator by operator, wherever the compiler was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch._dynamo import eval_frame
from torch.nn import functional

import simgpu
from simgpu.errors import InputError
from simgpu.recorder.step.recording import StepRecording
from simgpu.trace.check import check_trace
from simgpu.trace.model import Phase, Trace

X, LABELS = torch.randn(16, 32), torch.randint(8, (16,))


class Mixed(nn.Module):
    """Layers, of which some may be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.middle = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(self.first(x).tanh()) * 2))


def part() -> nn.Module:
    model = Mixed()
    model.middle = torch.compile(model.middle)
    return model


def part_in_place() -> nn.Module:
    model = Mixed()
    model.middle.compile()
    return model


def whole() -> nn.Module:
    return torch.compile(Mixed())


def whole_in_place() -> nn.Module:
    model = Mixed()
    model.compile()
    return model


def recorded(
    model: nn.Module, gpu: str | None = None, loss: Callable[..., torch.Tensor] | None = None
) -> StepRecording:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with simgpu.record_step(model, optimizer, gpu=gpu) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            (loss or functional.cross_entropy)(model(X), LABELS).backward()
            optimizer.step()
    return recording


def operators(trace: Trace) -> list[str]:
    return [kernel.op for kernel in trace.kernels if kernel.phase is not Phase.OPTIMIZER]


def saved(trace: Trace) -> list[tuple[int, str | None]]:
    return [(row.bytes, row.dtype) for row in trace.saved]


@pytest.mark.parametrize(("wrapped", "in_place"), [(part, part_in_place), (whole, whole_in_place)])
def test_graphs_run_operator_by_operator_however_the_compiler_was_called(
    wrapped: Callable[[], nn.Module], in_place: Callable[[], nn.Module]
) -> None:
    traces = [recorded(make(), gpu).trace for make in (wrapped, in_place) for gpu in (None, "h100")]
    assert [problem for trace in traces for problem in check_trace(trace)] == []
    first = traces[0]
    # TorchInductor's own form of GELU, of which no operator is left uncompiled.
    assert "aten::erf" in operators(first) and "aten::gelu" not in operators(first)
    assert all(operators(each) == operators(first) and saved(each) == saved(first) for each in traces)
    assert {each.is_compiled for each in first.modules if each.module in (".", "middle")} == {True}


def test_a_whole_compiled_model_is_the_one_that_record_compiled_finds() -> None:
    def factory(batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]:
        return Mixed(), torch.randn(batch, 32), torch.randint(8, (batch,)), functional.cross_entropy

    other = simgpu.record_compiled(factory, batch=16).trace
    assert operators(recorded(whole()).trace) == operators(other)


@pytest.mark.slow
def test_calls_that_ran_compiled_before_are_recorded_all_the_same() -> None:
    model = part()
    functional.cross_entropy(model(X), LABELS).backward()
    model.zero_grad()
    assert operators(recorded(model).trace) == operators(recorded(part()).trace)


def test_a_compiled_loss_is_no_part_of_the_model() -> None:
    trace = recorded(Mixed(), loss=torch.compile(functional.cross_entropy)).trace
    assert operators(trace) != operators(recorded(Mixed()).trace)
    assert not any(each.is_compiled for each in trace.modules)


def test_other_backends_run_their_own_code() -> None:
    model = Mixed()
    model.middle = torch.compile(model.middle, backend="aot_eager")
    assert "aten::gelu" in operators(recorded(model).trace)


def test_the_recording_says_that_compiled_parts_ran_unfused() -> None:
    recording = recorded(part(), "h100")
    assert "Compiled parts ran operator by operator:" in recording.trace.info.notes
    assert any("compiled parts ran operator by operator" in note for note in recording.requests.notes)
    assert "ompiled parts" not in recorded(Mixed(), "h100").trace.info.notes


def test_afterwards_all_is_as_before() -> None:
    model, own = part_in_place(), eval_frame._maybe_set_eval_frame
    compiled, kind = model.middle._compiled_call_impl, type(model.middle)
    recorded(model)
    assert eval_frame._maybe_set_eval_frame is own
    assert model.middle._compiled_call_impl is compiled and type(model.middle) is kind
    assert not model.middle._forward_hooks and not model.middle._forward_pre_hooks


def test_flex_attention_in_a_compiled_part_is_refused() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(1, 2, 32, 8)
            return self.last(flex_attention(x, x, x)).flatten(0, 2)[:16]

    with pytest.raises(InputError, match="flex_attention"):
        recorded(torch.compile(Attention()))
