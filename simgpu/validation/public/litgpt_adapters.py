"""LitGPT's two adapters, as `lit_gpt/adapter.py` and `adapter_v2.py` have them at commit 0f021f3a of January 2024.

From the third layer on, each head also attends to ten prompts, whose keys and values are stored when they are first
needed. That is in the validation before training, without gradients, so that training finds them stored, and of the
adapter only the gates get gradients. The second version also scales and shifts what each product makes, and trains the
norms.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from simgpu.validation.public.litgpt_models import LitGpt, LowRank, Sizes

_PROMPTS, _FIRST_LAYER = 10, 2


class _Prompts(nn.Module):
    """Attention to the prompts, times a gate a head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.adapter_wte = nn.Parameter(torch.zeros(_PROMPTS, sizes.width))
        self.gating_factor = nn.Parameter(torch.zeros(1, 1, sizes.heads, 1))
        self.register_buffer("products", torch.zeros(3, 1, sizes.heads, _PROMPTS, sizes.head), persistent=False)
        self._scale = sizes.head**-0.5

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        """For queries of all heads; the length comes before the heads in the result."""
        _, keys, values = self.products.unbind(0)
        mask = torch.ones(q.size(2), _PROMPTS, dtype=torch.bool, device=q.device)
        y = f.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=0.0, scale=self._scale)
        return self.gating_factor * y.transpose(1, 2)


def trained_by_the_first(sizes: Sizes) -> int:
    """The number of parameters that the first version trains.

    >>> trained_by_the_first(Sizes(32, 32, 4096, 32000))
    1229760
    """
    return (sizes.layers - _FIRST_LAYER) * (_PROMPTS * sizes.width + sizes.heads)


class _Scaled(nn.Module):
    """A frozen product with a scale and a shift."""

    def __init__(self, linear: nn.Module, outputs: int) -> None:
        super().__init__()
        self.linear = linear
        self.adapter_bias = nn.Parameter(torch.zeros(outputs))
        self.adapter_scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.adapter_scale * (self.linear(x) + self.adapter_bias)
        return result


class AdaptedGpt(LitGpt):
    """The model with an adapter of the first or second version. bits, nested: of the frozen weights."""

    def __init__(self, sizes: Sizes, length: int, *, second: bool, bits: int, nested: bool) -> None:
        super().__init__(sizes, LowRank(1, bits=bits, nested=nested, query=False, value=False), length)
        if second:
            self._scale()
        for block in self.h[_FIRST_LAYER:]:
            block.attn.prompts = _Prompts(sizes).to(torch.bfloat16)

    def _scale(self) -> None:
        linears = (nn.Linear, type(self.lm_head.linear))
        for module in list(self.modules()):
            linear = getattr(module, "linear", None)
            if isinstance(linear, linears):
                module.linear = _Scaled(linear, linear.out_features).to(torch.bfloat16)
        for name, parameter in self.named_parameters():
            if "norm_" in name or "ln_f" in name:
                parameter.requires_grad = True
