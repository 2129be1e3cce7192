"""``scaled_dot_product_attention`` without a device: fused where CUDA fuses it, plain products elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.recorder.modelled.attention import Attention
from simgpu.recorder.operators import operator_name
from simgpu.trace.check import check_trace
from tests.recorder.live_bytes import live_bytes
from tests.recorder.small_models import kernels, named, summed
from tests.recorder.test_no_device import GPU, modelled


def attention(dtype: torch.dtype, is_causal: bool = False) -> Callable[..., Any]:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.scale
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1, is_causal=is_causal)

    return lambda batch: (named(attention=Attention()), torch.ones(batch, 2, 32, 16, dtype=dtype), (), summed)


@pytest.mark.parametrize(
    ("dtype", "architecture", "op"),
    [
        (torch.float32, "ampere", "_scaled_dot_product_efficient_attention"),
        (torch.float16, "volta", "_scaled_dot_product_efficient_attention"),
        (torch.float16, "ampere", "_scaled_dot_product_flash_attention"),
    ],
)
def test_attention_is_one_kernel_that_keeps_no_scores_as_on_a_gpu(dtype: Any, architecture: str, op: str) -> None:
    trace = modelled(attention(dtype), 2, gpu=replace(GPU, architecture=architecture))
    assert len(kernels(trace, op)) == len(kernels(trace, f"{op}_backward")) == 1
    x = 2 * 2 * 32 * 16 * dtype.itemsize
    scores = 2 * 2 * 32 * 32 * dtype.itemsize
    assert x < scores
    assert max(b.bytes for b in trace.blocks) == x
    assert check_trace(trace) == []


_FLASH, _EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


@pytest.mark.parametrize(
    ("dtype", "architecture", "width", "options", "op"),
    [
        (torch.float16, "ampere", 12, {}, _FLASH),
        (torch.float16, "volta", 12, {}, None),
        (torch.bfloat16, "volta", 16, {}, None),
        (torch.bfloat16, "ampere", 16, {"key_heads": 2, "enable_gqa": True}, _FLASH),
        (torch.float32, "ampere", 16, {"key_heads": 2, "enable_gqa": True}, None),
        (torch.bfloat16, "ampere", 264, {}, _EFFICIENT),
        (torch.bfloat16, "ampere", 16, {"tokens": 8, "is_causal": True}, _EFFICIENT),
        (torch.float32, "ampere", 12, {}, _EFFICIENT),
        (torch.float32, "ampere", 10, {}, None),
        (torch.float32, "volta", 10, {}, _EFFICIENT),
        (torch.float64, "ampere", 16, {}, None),
    ],
)
def test_attention_is_fused_where_cuda_fuses_it(
    dtype: torch.dtype, architecture: str, width: int, options: dict[str, Any], op: str | None
) -> None:
    heads, tokens = options.pop("key_heads", 4), options.pop("tokens", 16)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key = nn.Parameter(torch.ones(2, heads, tokens, width, dtype=dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, self.key, self.key, **options)

    trace = modelled(
        lambda batch: (named(attention=Attention()), torch.ones(batch, 4, 16, width, dtype=dtype), (), summed),
        2,
        gpu=replace(GPU, architecture=architecture),
    )
    fused = [kernel.op.removeprefix("aten::") for kernel in trace.kernels if "_scaled_dot_product" in kernel.op]
    assert fused == ([op, f"{op}_backward"] if op else [])
    padded = [kernel for kernel in trace.kernels if kernel.op == "aten::constant_pad_nd" and kernel.phase == "forward"]
    assert len(padded) == (3 if op == _FLASH and width % 8 else 0)
    assert check_trace(trace) == []


class _Operators(TorchDispatchMode):
    """Notes the operators that compute."""

    _VIEWS = ("detach", "expand", "view", "_unsafe_view", "transpose", "unsqueeze")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator_name(func).removeprefix("aten::")
        if name not in self._VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def _run(
    attention: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor]
) -> tuple[list[str], list[torch.Tensor]]:
    """The operators of one call, and its result and gradients."""
    torch.manual_seed(0)
    with _Operators() as operators:
        result = attention(*operands)
    return operators.names, [result, *torch.autograd.grad(result.sum(), operands)]


@pytest.mark.parametrize(("dtype", "key_heads"), [(torch.float64, 4), (torch.float32, 2), (torch.bfloat16, 2)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("mask", ["values", "boolean", "causal"])
def test_plain_products_with_a_mask_are_pytorchs_own_but_add_the_mask_in_place(
    dtype: torch.dtype, key_heads: int, dropout: float, mask: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    random = partial(torch.randn, dtype=dtype, generator=generator, requires_grad=True)
    operands = [random(2, heads, 6, 5) for heads in (4, key_heads, key_heads)]
    boolean, values = torch.ones(6, 6, dtype=torch.bool).tril(), torch.zeros(6, 6, dtype=dtype)
    given = {"values": values, "boolean": boolean, "causal": None}[mask]
    added = values.masked_fill(~boolean, -torch.inf) if mask == "boolean" else given
    rest = {"dropout_p": dropout, "is_causal": mask == "causal", "scale": None, "enable_gqa": True}

    def pytorchs(*operands: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(*operands, added, **rest)[0]
        return result

    names, results = _run(partial(Attention(None), attn_mask=given, **rest), operands)
    expected_names, expected = _run(pytorchs, operands)
    if mask == "boolean":
        assert [name for name in names[:3] if name in ("scalar_tensor", "where")] == ["scalar_tensor"] * 2 + ["where"]
        names = names[3:]
    assert names == [name.replace("add", "add_") for name in expected_names]
    for result, own in zip(results, expected, strict=True):
        assert torch.equal(result, own)


def test_plain_products_with_a_mask_hold_the_scores_once_when_they_add_it() -> None:
    trace = modelled(attention(torch.float64, is_causal=True), 2)
    added = [kernel.op for kernel in trace.kernels].index("aten::add_")
    scores = 2 * 2 * 32 * 32 * 8
    assert [b.bytes for b in trace.blocks if b.id in trace.kernels[added].writes] == [scores]
    assert live_bytes(trace)[added] - live_bytes(trace)[added - 1] == 0
    assert check_trace(trace) == []
