"""Experts on fake tensors: each gets its even share of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

import simgpu
from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.modelled.balanced_routing import BalancedRouting
from simgpu.trace.model import Phase, Trace


def test_the_first_experts_get_the_rest() -> None:
    routing = BalancedRouting(experts=4, chosen=2)
    places = [routing.nonzero(torch.ones(2, 7, device="meta")) for _ in range(8)]
    assert [each.shape[0] for each in places if each is not None] == [4, 4, 3, 3] * 2


def test_all_experts_have_tokens_and_other_masks_need_values() -> None:
    routing = BalancedRouting(experts=4, chosen=2)
    every = routing.nonzero(torch.ones(4, device="meta"))
    assert every is not None and every.shape == (4, 1)
    assert routing.nonzero(torch.ones(5, device="meta")) is None
    assert routing.nonzero(torch.ones(3, 7, device="meta")) is None


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 8),
        ({"get_text_config": lambda: SimpleNamespace(n_routed_experts=64, num_experts_per_tok=6)}, 64),
        ({"num_experts": 8}, None),
        ({"num_experts": True, "num_experts_per_tok": True}, None),
        ({"num_experts": 2, "num_experts_per_tok": 4}, None),
        ({}, None),
    ],
)
def test_a_configuration_says_how_many_experts_there_are(config: dict[str, Any], experts: int | None) -> None:
    module: Any = nn.Linear(1, 1)
    module.config = SimpleNamespace(**config)
    found = BalancedRouting.of(module)
    assert (found and found.experts) == experts


class _Experts(nn.Module):
    """Asks as the modules of transformers do which tokens are an expert's."""

    def __init__(self, count: int = 4, *parts: nn.Module) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_experts=count, num_experts_per_tok=1)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), *parts) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.argmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            _, rows = torch.where((chosen == number)[None])
            result.index_add_(0, rows, expert(x[rows]))
        return result


class _OwnMask(nn.Module):
    """Uses some rows, by a mask with the shape of that of an expert's tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, rows = torch.where((x.sum(-1) > 0)[None])
        return x.index_add(0, rows, x[rows])


def _within_another() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), _Experts(), nn.Linear(8, 3))


def _rows(trace: Trace) -> list[int]:
    return [
        trace.block_by_id[kernel.writes[0]].bytes // 32
        for kernel in trace.kernels
        if kernel.op == "aten::addmm" and ".experts." in f".{kernel.layer}" and kernel.phase is Phase.FORWARD
    ]


def test_experts_within_another_module_are_recorded() -> None:
    trace = record(lambda: (_within_another(), torch.randn(10, 8)), batch=10, gpu="h100")
    assert _rows(trace) == [3, 3, 2, 2]
    assert "balanced routing" in trace.info.notes


class _ExpertsWithTokens(_Experts):
    """Calls those that have tokens, by their number, as Mixtral and GPT-OSS do in transformers 4.55."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.functional.one_hot(x.argmax(-1), 4).T[:, None]
        result = torch.zeros_like(x)
        for number in (mask.sum((-1, -2)) > 0).nonzero():
            _, rows = torch.where(mask[number[0]])
            result.index_add_(0, rows, self.experts[number](x[rows]))
        return result


def test_experts_with_tokens_are_called_by_their_numbers() -> None:
    trace = record(lambda: (_ExpertsWithTokens(), torch.randn(10, 8)), batch=10, gpu="h100")
    called = [kernel.layer for kernel in trace.kernels if kernel.op == "aten::addmm" and kernel.phase is Phase.FORWARD]
    assert called == [f"experts.{number}.0" for number in range(4)]


def test_a_step_of_experts_is_recorded() -> None:
    module = _within_another()
    with simgpu.record_step(module, torch.optim.SGD(module.parameters()), gpu="h100") as recording:
        module(torch.randn(10, 8)).sum().backward()
    assert any("balanced routing" in note for note in recording.requests.notes)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())


def test_each_mixture_has_its_own_number_of_experts() -> None:
    trace = record(lambda: (nn.Sequential(_Experts(4), _Experts(2)), torch.randn(10, 8)), batch=10, gpu="h100")
    assert _rows(trace) == [3, 3, 2, 2, 5, 5]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: nn.Sequential(_Experts(), _OwnMask()), id="after the mixture"),
        pytest.param(lambda: nn.Sequential(_OwnMask(), _Experts()), id="before it"),
        pytest.param(lambda: _Experts(4, _OwnMask()), id="in an expert"),
    ],
)
def test_a_mask_outside_the_mixture_needs_values(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"aten.nonzero.default needs the values of a tensor"):
        record(lambda: (model(), torch.randn(10, 8)), batch=10, gpu="h100")
