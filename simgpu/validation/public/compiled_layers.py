"""Qwen3's layers as `torch.compile` holds them: what pointwise operators in a row write and only they read is not kept.

Normalizations, rotations of queries and keys, the gated product and what adapters add are one operator each, which
saves its inputs. Adapters are those of prime-rl (`trainer/models/layers/lora` at commit 8718eb143), for which a linear
layer ends a compiled graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

#: `MAX_LORAS` of the benchmark, and the rank in a row's options.
ADAPTERS, RANK = 4, 16


class CompiledLayer(nn.Module):
    """A layer of Transformers' Qwen3 on the same weights, with attention that reads each head of keys once.

    adapted: whether its linear layers are frozen and have adapters; grouped: whether the GPU has grouped products.
    """

    def __init__(self, layer: nn.Module, *, adapted: bool, grouped: bool) -> None:
        super().__init__()
        self.layer = layer
        if not adapted:
            return
        layer.requires_grad_(False)
        for part in (layer.self_attn, layer.mlp):
            for name, each in list(part.named_children()):
                if isinstance(each, nn.Linear):
                    setattr(part, name, Adapted(each, grouped=grouped))

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The output, of the shape of x. turns: cosines and sines."""
        h = x + self._attention(normalized(x, self.layer.input_layernorm), turns)
        y, mlp = normalized(h, self.layer.post_attention_layernorm), self.layer.mlp
        result: torch.Tensor = h + mlp.down_proj(Gated.apply(mlp.gate_proj(y), mlp.up_proj(y)))
        return result

    def _attention(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        part = self.layer.self_attn
        shape = (*x.shape[:-1], -1, part.head_dim)
        q = Turned.apply(normalized(part.q_proj(x).view(shape), part.q_norm), *turns)
        k = Turned.apply(normalized(part.k_proj(x).view(shape), part.k_norm), *turns)
        q, k, v = (each.transpose(1, 2) for each in (q, k, part.v_proj(x).view(shape)))
        out = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: torch.Tensor = part.o_proj(out.transpose(1, 2).reshape(*x.shape[:-1], -1))
        return result


def normalized(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """A normalized tensor. norm: Transformers' module, or one with such attributes."""
    return f.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


class Adapted(nn.Module):
    """A frozen linear layer with adapters, of which the first has all tokens. grouped: products need no `cat`."""

    def __init__(self, base: nn.Linear, *, grouped: bool) -> None:
        super().__init__()
        self.base, self.grouped = base, grouped
        shapes, dtype = ((RANK, base.in_features), (base.out_features, RANK)), base.weight.dtype
        self.down, self.up = (
            nn.ParameterList(torch.zeros(shape, dtype=dtype) for _ in range(ADAPTERS)) for shape in shapes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, x.size(-1))
        base = self.base(rows)
        down, up = torch.stack([*self.down]), torch.stack([*self.up])
        added = rows @ down[0].T @ up[0].T
        if not self.grouped:
            added = torch.cat([added, *(added[:0] for _ in range(ADAPTERS - 1))])
        result = torch.addcmul(base, rows.new_ones(rows.size(0), 1), added)
        return result.view(*x.shape[:-1], -1)


class Turned(torch.autograd.Function):
    """Rotary position embedding, by halves of each head. x: batch, tokens, heads, width."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turned(x, cosines, sines, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _turned(gradients[0], cosines, sines, -1), None, None


def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, direction: int) -> torch.Tensor:
    half = x.size(-1) // 2
    sines = sines[:, :, None, :half]
    result = x * cosines[:, :, None]
    result[..., :half].addcmul_(x[..., half:], sines, value=-direction)
    result[..., half:].addcmul_(x[..., :half], sines, value=direction)
    return result


class Gated(torch.autograd.Function):
    """`silu(gate) * up`."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return f.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        of_up = f.silu(gate).mul_(gradients[0])
        return torch.ops.aten.silu_backward(gradients[0], gate).mul_(up), of_up
