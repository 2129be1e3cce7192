"""A product with weights of four bits, as bitsandbytes stores and multiplies them (`nn/modules.py`, `autograd`).

Two values share a byte, and each block of 64 has a scale in float32. With double quantization the scales take a byte,
and each block of 256 of them has one of its own. Forward and backward make the weights in the format of the input anew,
each for one product. In version 0.42, which LitGPT asks for, the product keeps its input not as a saved tensor but by a
name: it lives as long as what the product returned, or what was made of that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

_BLOCK, _SCALES = 64, 256


class FourBitLinear(nn.Module):
    """A frozen linear layer. nested: with double quantization."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, nested: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        scales = -(-inputs * outputs // _BLOCK)
        self.register_buffer("packed", torch.zeros(inputs * outputs // 2, 1, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(scales, dtype=torch.uint8 if nested else torch.float32))
        self.register_buffer("outer", torch.zeros(-(-scales // _SCALES) if nested else 0, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def _apply(self, fn: Any, recurse: bool = True) -> FourBitLinear:
        """Moves it; the packed weights and their scales keep their formats."""
        kept = {name: each.dtype for name, each in self._buffers.items() if each is not None}
        super()._apply(fn, recurse)
        for name, dtype in kept.items():
            each = self._buffers[name]
            self._buffers[name] = None if each is None else each.to(dtype)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, in the format of x."""
        result: torch.Tensor = _FourBitProduct.apply(x, self)
        return result

    def made(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights in a format of whole bytes: first in float16, of which Lightning packed them."""
        scales = self.scales
        if scales.dtype == torch.uint8:
            scales = torch.empty(scales.shape, dtype=torch.float32, device=scales.device)
        return torch.empty(self.out_features, self.in_features, dtype=torch.float16, device=scales.device).to(dtype)


class _FourBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: FourBitLinear) -> torch.Tensor:
        ctx.layer, ctx.kept = layer, x
        return f.linear(x, layer.made(x.dtype), layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.matmul(gradients[0], ctx.layer.made(gradients[0].dtype)), None
