"""Experts on fake tensors: each gets its even share of the tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder.modelled.balanced_routing import BalancedRouting
from simgpu.recorder.modelled.gpu_forms import gpu_forms


def test_the_first_experts_get_the_rest() -> None:
    routing = BalancedRouting(experts=4, chosen=2)
    places = [routing.nonzero(torch.ones(2, 7, device="meta")) for _ in range(8)]
    assert [each.shape[0] for each in places if each is not None] == [4, 4, 3, 3] * 2


def test_all_experts_have_tokens_and_other_masks_need_values() -> None:
    routing = BalancedRouting(experts=4, chosen=2)
    every = routing.nonzero(torch.ones(4, device="meta"))
    assert every is not None and every.shape == (4, 1) and routing.is_used
    assert routing.nonzero(torch.ones(5, device="meta")) is None
    assert routing.nonzero(torch.ones(3, 7, device="meta")) is None


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 8),
        ({"get_text_config": lambda: SimpleNamespace(n_routed_experts=64, num_experts_per_tok=6)}, 64),
        ({"num_experts": 8}, None),
        ({}, None),
    ],
)
def test_a_configuration_says_how_many_experts_there_are(config: dict[str, Any], experts: int | None) -> None:
    module: Any = nn.Linear(1, 1)
    module.config = SimpleNamespace(**config)
    found = BalancedRouting.of(module)
    assert (found and found.experts) == experts


def test_one_hot_in_the_form_of_a_gpu_has_its_values() -> None:
    x = torch.tensor([[2, 0], [1, 2]])
    expected = nn.functional.one_hot(x, 4), nn.functional.one_hot(x)
    with gpu_forms("hopper"):
        assert nn.functional.one_hot(x, 4).equal(expected[0]) and nn.functional.one_hot(x).equal(expected[1])
