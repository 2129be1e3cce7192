"""What the compiled sum of a layer's result, bias and input saves, next to PyTorch's own partitioner."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, which the other module imports, is not installed")

import torch
from torch.nn.functional import dropout

from tests.workloads.compiled.partitioned import Partitioner

_ROWS, _WIDTH = 16, 32


@pytest.mark.parametrize(("rate", "saved"), [(0.0, []), (0.1, [_ROWS * _WIDTH])])
def test_a_sum_saves_the_mask_of_what_it_drops(rate: float, saved: list[int]) -> None:
    """As ``bias_dropout_add_fused_train`` of Megatron-LM; 1 byte for each value."""

    def biased_sum(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + dropout(x + bias, p=rate, training=True)

    torch._dynamo.reset()
    partitioner = Partitioner()
    tensors = [
        torch.zeros(size, dtype=torch.bfloat16, requires_grad=True)
        for size in ((_ROWS, _WIDTH), _WIDTH, (_ROWS, _WIDTH))
    ]
    compiled = torch.compile(biased_sum, backend=partitioner.backend, dynamic=False)
    compiled(*tensors).sum().backward()
    assert partitioner.saved == [saved]
