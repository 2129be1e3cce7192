"""Operators on fake tensors in the form that they have on CUDA."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import one_hot, softmax

from simgpu.recorder.modelled.gpu_forms import gpu_forms


def test_one_hot_has_its_values() -> None:
    x = torch.tensor([[2, 0], [1, 2]])
    expected = one_hot(x, 4), one_hot(x)
    with gpu_forms("hopper"):
        assert one_hot(x, 4).equal(expected[0]) and one_hot(x).equal(expected[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax_in_float32_converts_float16_itself(dtype: str) -> None:
    with FakeTensorMode(), gpu_forms("hopper"):
        x = torch.randn(2, 3, dtype=getattr(torch, dtype), requires_grad=True)
        result = softmax(x, dim=-1, dtype=torch.float32)
    assert result.dtype is torch.float32 and result.grad_fn is not None
    (before, _), *_ = result.grad_fn.next_functions
    converts = before is not None and before.name() == "ToCopyBackward0"
    assert converts == (dtype == "bfloat16")
