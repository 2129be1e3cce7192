"""A linear layer of four bits on fake tensors, written after bitsandbytes 0.43 (nn/modules.py, autograd/_functions.py),
and adapters next to it, written after peft 0.17 (tuners/lora/bnb.py).

Its two kernels that unpack are replaced by operators of the same operands whose values are zeros: what is compared are
allocations, saved tensors, products and their order. From 0.46 on they are operators (``bitsandbytes/_ops.py``), too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.workloads.configured.fake_models import Adapted


@torch.library.custom_op("simgpu_tests::dequantize_4bit", mutates_args=())
def dequantize_4bit(packed: torch.Tensor, scales: torch.Tensor, features: int, width: int) -> torch.Tensor:
    """Stands for the kernel that makes a matrix of its packed values."""
    return packed.new_zeros((features, width), dtype=torch.bfloat16)


@torch.library.custom_op("simgpu_tests::dequantize_blockwise", mutates_args=())
def dequantize_blockwise(scales: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    """Stands for the kernel that makes scales of their 8 bits."""
    return scales.new_zeros(scales.shape, dtype=torch.float32)


@dequantize_4bit.register_fake
def _(packed: torch.Tensor, scales: torch.Tensor, features: int, width: int) -> torch.Tensor:
    return packed.new_empty((features, width), dtype=torch.bfloat16)


@dequantize_blockwise.register_fake
def _(scales: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    return scales.new_empty(scales.shape, dtype=torch.float32)


class FourBitLinear(torch.nn.Module):
    """``Linear4bit``. nested: with double quantization."""

    def __init__(self, layer: Any, nested: bool) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        values = layer.weight.numel()
        scales = -(-values // 64)
        self.register_buffer("packed", torch.zeros(-(-values // 2), dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(scales, dtype=torch.uint8 if nested else torch.float32))
        self.register_buffer("outer", torch.zeros(-(-scales // 256)) if nested else None)

    def whole(self) -> Any:
        """The matrix in bfloat16."""
        scales = self.scales
        if self.outer is not None:
            scales = dequantize_blockwise(scales, self.outer)
            scales += 1.0
        return dequantize_4bit(self.packed, scales, self.out_features, self.in_features)

    def forward(self, x: Any) -> Any:
        """With ``bnb_4bit_compute_dtype=torch.bfloat16``, in which the first call leaves the bias."""
        if self.bias is not None and self.bias.dtype is not torch.bfloat16:
            self.bias.data = self.bias.data.to(torch.bfloat16)
        return _FourBitProduct.apply(x.to(torch.bfloat16), self).to(x.dtype)


class _FourBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, layer: FourBitLinear) -> Any:
        ctx.layer = layer
        return functional.linear(x, layer.whole(), layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.matmul(grad, ctx.layer.whole()), None


class _AdaptedFourBits(Adapted):
    """The result is copied, then the adapter's change is converted and added; under autocast nothing is converted."""

    def forward(self, x: Any) -> Any:
        result = self.base_layer(x).clone()
        first, second, dropout = self.lora_A["default"], self.lora_B["default"], self.lora_dropout["default"]
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            return result + second(first(dropout(x))) * 2.0
        return result + (second(first(dropout(x.to(first.weight.dtype)))) * 2.0).to(result.dtype)


def in_four_bits(rank: int, targets: tuple[str, ...], *, nested: bool, rate: float = 0.0) -> Callable[[Any], Any]:
    """Returns a function that packs all linear layers but that of the logits, and adds adapters to the targets.

    rate: of the adapters' dropout.
    """

    def changed(module: Any) -> Any:
        module.requires_grad_(False)
        for name, part in list(module.named_modules()):
            if isinstance(part, torch.nn.Linear) and name != "lm_head":
                parent, _, last = name.rpartition(".")
                packed = FourBitLinear(part, nested)
                adapted = _AdaptedFourBits(packed, rank, torch.float32, rate) if last in targets else packed
                setattr(module.get_submodule(parent), last, adapted)
        return module

    return changed
