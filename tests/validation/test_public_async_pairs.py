"""Which products exchanges pair with, against the pass of PyTorch that pairs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.validation.test_public_predictions import installed

if not installed("torch", "2.13"):
    pytest.skip("the pass is that of PyTorch 2.13", allow_module_level=True)

import torch
from torch._inductor.fx_passes import micro_pipeline_tp as passes
from torch.fx.experimental.proxy_tensor import make_fx

C10D, GPUS, BATCH, TOKENS, WIDTH = torch.ops._c10d_functional, 8, 2, 16, 32


def _gathered(x: torch.Tensor) -> torch.Tensor:
    """Along the tokens, as DTensor does it."""
    everyone = C10D.wait_tensor(C10D.all_gather_into_tensor(x, GPUS, "tp"))
    return torch.cat(torch.split(everyone, BATCH), 1)


def _scattered(x: torch.Tensor) -> torch.Tensor:
    stacked = torch.cat(torch.split(x, TOKENS // GPUS, 1))
    return C10D.wait_tensor(C10D.reduce_scatter_tensor(stacked, "sum", GPUS, "tp"))


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = torch.ops.aten.reshape(x, [-1, x.size(-1)])
    return torch.ops.aten.reshape(torch.mm(rows, weight), [*x.shape[:-1], weight.size(1)])


def _pairs(function: Callable[..., Any], tokens: int) -> list[int]:
    """The number of products of each exchange's pair in a compiled graph."""
    graph = make_fx(function, tracing_mode="fake")(torch.ones(BATCH, tokens, WIDTH), torch.ones(WIDTH, WIDTH)).graph
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    found = [len(passes._find_consumer_matmuls(each.res_node)) for each in passes.find_all_gather_patterns(graph)]
    scatters = passes.find_reduce_scatter_patterns(graph)
    return found + [int(passes._find_producer_matmul(each.input_node) is not None) for each in scatters]


def test_products_that_read_what_is_gathered_as_first_factor_are_paired() -> None:
    def products(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        everyone = _gathered(x)
        return [_product(everyone, each) for each in (w, 2 * w)]

    assert _pairs(products, TOKENS // GPUS) == [2]


def test_conversions_of_what_is_gathered_are_not_paired() -> None:
    assert _pairs(lambda x, w: _product(_gathered(x) / x.abs().max(), w), TOKENS // GPUS) == [0]


def test_gathered_second_factors_are_not_paired() -> None:
    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = torch.ops.aten.reshape(_gathered(x), [-1, WIDTH])
        return torch.mm(torch.ones(WIDTH, BATCH * TOKENS), rows)

    assert _pairs(gradient, TOKENS // GPUS) == [0]


def test_gathered_gradients_of_weights_are_not_paired() -> None:
    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = torch.ops.aten.reshape(_gathered(x), [-1, WIDTH])
        return torch.mm(rows.t(), torch.ones(BATCH * TOKENS, WIDTH))

    assert _pairs(gradient, TOKENS // GPUS) == [0]


def test_a_product_is_paired_with_its_scatter_and_a_sum_of_products_is_not() -> None:
    assert _pairs(lambda x, w: _scattered(_product(x, w)), TOKENS) == [1]
    assert _pairs(lambda x, w: _scattered(_product(x, w) + _product(x, 2 * w)), TOKENS) == [0]
