"""INTELLECT-3 as prime-rl compiles it: GLM-4.5-Air's layers, with adapters, in bfloat16.

Source: `trainer/models/glm4_moe`, `trainer/models/layers` (`attn.py`, `moe.py`) and `lora/multi_moe.py` of prime-rl at
commit 8718eb143. The sizes are the defaults of its `Glm4MoeConfig`; that queries, keys and values have a bias and are
not normalized is GLM 4.5 Air's in NVIDIA's Megatron-Bridge (`models/glm_vl/glm_45v_provider.py`). INTELLECT-3 is that
model, trained further (Prime Intellect, "Announcing INTELLECT-3": 106B, on top of GLM 4.5 Air's base model).

The first layer is dense. In the others a router chooses eight of 128 experts for each token, and the rows of tokens are
sorted by expert; the products of all experts are one grouped product. Here each expert has its even share of the
tokens, so that a grouped product is a batch of products. Adapters are on attention, on the dense layer and on each
expert, not on the router and the shared expert; of the experts' four adapters one is used. As `compiled_layers.py`
says, what pointwise operators in a row write and only they read is not kept.

Left out: the sum of tokens of each expert, which is a few numbers, and that the host waits in each layer for the number
of the adapter that it uses. Rows that are added where their tokens are take the time of their traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from simgpu.validation.public.compiled_layers import ADAPTERS, RANK, Adapted, Gated, Turned, normalized

#: What adapters add is scaled by alpha / rank, of which alpha is 32 by default.
_SCALE = 32 / RANK
_EPSILON, _BASE = 1e-5, 10000.0


@dataclass(frozen=True, slots=True)
class GlmSizes:
    """Of a model. dense: hidden values of the first layer; hidden: of an expert; chosen: experts of a token."""

    words: int = 151552
    width: int = 4096
    layers: int = 46
    heads: int = 96
    keys: int = 8
    head: int = 128
    turned: int = 64
    dense: int = 10944
    hidden: int = 1408
    experts: int = 128
    chosen: int = 8


#: By the `config` of a published row.
GLM_SIZES = {"intellect-3": GlmSizes()}


class GlmModel(nn.Module):
    """The model without its loss, all but its adapters frozen. layers: None for all; grouped: as in `CompiledLayer`."""

    def __init__(self, sizes: GlmSizes, layers: int | None = None, *, grouped: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.words, sizes.width, dtype=torch.bfloat16)
        numbers = range(layers or sizes.layers)
        self.layers = nn.ModuleList(_Layer(sizes, dense=number == 0, grouped=grouped) for number in numbers)
        self.norm = _Norm(sizes.width)
        self.lm_head = _linear(sizes.width, sizes.words)
        self.rotary_emb = _Rotation(sizes.turned)
        for name, each in self.named_parameters():
            each.requires_grad_(is_adapter(name))


def is_adapter(name: str) -> bool:
    """Whether a weight of this name is an adapter's."""
    return bool({"down", "up"} & set(name.split(".")))


class _Norm(nn.Module):
    """RMS normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = _empty(width), _EPSILON

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalized(x, self)


class _Rotation(nn.Module):
    """Cosines and sines for the part of each head that is rotated, of shape 1, tokens, width of the part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exponents = torch.arange(0, self.width, 2, device=x.device) / self.width
        angles = positions[..., None] / _BASE**exponents
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


class _Layer(nn.Module):
    """A layer. dense: whether it has no experts."""

    def __init__(self, sizes: GlmSizes, *, dense: bool, grouped: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _Norm(sizes.width), _Norm(sizes.width)
        self.self_attn = _Attention(sizes, grouped=grouped)
        self.mlp = _Dense(sizes, grouped=grouped) if dense else _Mixture(sizes)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        h = x + self.self_attn(self.input_layernorm(x), turns)
        result: torch.Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return result


class _Attention(nn.Module):
    """Attention whose queries, keys and values have a bias; the first values of each head are rotated."""

    def __init__(self, sizes: GlmSizes, *, grouped: bool) -> None:
        super().__init__()
        self.head = sizes.head
        for name, heads in (("q_proj", sizes.heads), ("k_proj", sizes.keys), ("v_proj", sizes.keys)):
            setattr(self, name, Adapted(_linear(sizes.width, heads * sizes.head, bias=True), grouped=grouped))
        self.o_proj = Adapted(_linear(sizes.heads * sizes.head, sizes.width), grouped=grouped)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = (each(x).view(*x.shape[:-1], -1, self.head) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = _rotated(q, turns), _rotated(k, turns)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(*x.shape[:-1], -1))
        return result


def _rotated(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    width = turns[0].size(-1)
    return torch.cat((Turned.apply(x[..., :width], *turns), x[..., width:]), dim=-1)


class _Dense(nn.Module):
    """The feed-forward part of the first layer."""

    def __init__(self, sizes: GlmSizes, *, grouped: bool) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (Adapted(_linear(sizes.width, sizes.dense), grouped=grouped) for _ in range(2))
        self.down_proj = Adapted(_linear(sizes.dense, sizes.width), grouped=grouped)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(Gated.apply(self.gate_proj(x), self.up_proj(x)))
        return result


class _Mixture(nn.Module):
    """A router, experts, and one expert that all tokens share."""

    def __init__(self, sizes: GlmSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.router = _linear(sizes.width, sizes.experts)
        self.experts = _Experts(sizes)
        self.shared = nn.ModuleList(_linear(sizes.width, sizes.hidden) for _ in range(2))
        self.shared_down = _linear(sizes.hidden, sizes.width)
        self.register_buffer("bias", torch.zeros(sizes.experts), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, x = x.shape, x.view(-1, x.size(-1))
        scores, order = self._routed(x)
        rows = (order // self.sizes.chosen)[:, None].expand(-1, x.size(1))
        result = self.experts(torch.gather(x, 0, rows))
        result = _Weighted.apply(result, scores.view(-1)[order][:, None])
        gate, up = (each(x) for each in self.shared)
        out: torch.Tensor = self.shared_down(Gated.apply(gate, up))
        return out.scatter_add(0, rows, result).view(shape)

    def _routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights of each token's experts, and the order of tokens and experts by expert."""
        scores = torch.sigmoid(self.router(x).to(torch.float32))
        _, chosen = torch.topk(scores + self.bias, self.sizes.chosen, dim=1)
        best = scores.gather(1, chosen)
        return best / (best.sum(-1, keepdim=True) + 1e-20), torch.argsort(chosen.view(-1), stable=True)


class _Experts(nn.Module):
    """Gated feed-forward parts with adapters; the rows of all experts are in their order, as many for each."""

    def __init__(self, sizes: GlmSizes) -> None:
        super().__init__()
        self.experts = sizes.experts
        self.gate, self.into = (_Grouped(sizes.experts, sizes.width, sizes.hidden) for _ in range(2))
        self.out = _Grouped(sizes.experts, sizes.hidden, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(self.experts, -1, x.size(-1))
        parts = self.gate(x), self.into(x)
        gate, up = (torch.add(base, added, alpha=_SCALE) for base, added in parts)
        base, added = self.out(Gated.apply(gate, up))
        return torch.add(base, added, alpha=_SCALE).flatten(0, 1)


class _Grouped(nn.Module):
    """A frozen product of each expert, and what its first adapter adds, before it is scaled."""

    def __init__(self, experts: int, width: int, columns: int) -> None:
        super().__init__()
        self.weight = _empty(experts, columns, width)
        self.down = nn.ParameterList(_empty(experts, RANK, width) for _ in range(ADAPTERS))
        self.up = nn.ParameterList(_empty(experts, columns, RANK) for _ in range(ADAPTERS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        down, up = (each[0].transpose(1, 2) for each in (self.down, self.up))
        return torch.bmm(x, self.weight.transpose(1, 2)), torch.bmm(torch.bmm(x, down), up)


class _Weighted(torch.autograd.Function):
    """Rows times their weights, in single precision."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weights)
        return (x.to(torch.float32) * weights).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weights = ctx.saved_tensors
        grad = gradients[0].to(torch.float32)
        return (grad * weights).to(x.dtype), (grad * x.to(torch.float32)).sum(1, keepdim=True)


def _linear(width: int, columns: int, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(width, columns, bias=bias, dtype=torch.bfloat16)


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.bfloat16))
