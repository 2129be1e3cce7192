"""The models and losses of LitGPT (Lightning-AI/litgpt, in 2023 lit-gpt) as modules that PyTorch can follow.

Operators, saved tensors and temporary memory are those of its `model.py`, `lora.py` and `utils.py` (commits b23eac57 of
October 2023 and 00af8b0d of September 2024): one product makes queries, keys and values of all heads; rotary embedding
is in float32; products of low rank are added to queries and values of all heads at once, by a convolution in groups.
Logits become float32, as Lightning's Fabric converts what a model in bfloat16 returns, and the loss goes over chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as f

from simgpu.validation.public.four_bit import FourBitLinear

_CHUNK = 128


@dataclass(frozen=True)
class Sizes:
    """A model. vocabulary: padded; hidden: width inside the feed-forward part, None for four times the width.

    groups: of queries, None for one a head; each_head: width of a head, None for an equal share; rotated: share of it
    that turns.

    parallel: attention and the feed-forward part read the same input; shared_norm: and its normalization. gated: SwiGLU
    instead of GELU, or with `gelu` a gate by GELU; rms: RMSNorm instead of LayerNorm. capped: as in Gemma 2, norms also
    follow attention and the feed-forward part, and a tanh caps the scores (but not logits that are made in chunks).
    """

    layers: int
    heads: int
    width: int
    vocabulary: int
    hidden: int | None = None
    groups: int | None = None
    each_head: int | None = None
    rotated: float = 1.0
    parallel: bool = False
    shared_norm: bool = False
    gated: bool = True
    gelu: bool = False
    rms: bool = True
    bias: bool = False
    head_bias: bool = False
    capped: bool = False

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.each_head or self.width // self.heads

    @property
    def query_groups(self) -> int:
        """The number of keys and values."""
        return self.groups or self.heads


@dataclass(frozen=True)
class LowRank:
    """LoRA. dropout: of its input; query, key, value, projection, mlp, head: the products that it is added to.

    in_place: zeros for the other rows are filled in place, as since 2024. bits: of the frozen weights; nested: with
    double quantization.
    """

    rank: int
    in_place: bool = True
    bits: int = 16
    nested: bool = False
    dropout: float = 0.05
    query: bool = True
    key: bool = False
    value: bool = True
    projection: bool = False
    mlp: bool = False
    head: bool = False


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean = torch.mean(wide * wide, dim=-1, keepdim=True)
        normal = wide * torch.rsqrt(mean + 1e-5)
        return (self.weight * normal).to(dtype=x.dtype)


class _LowRankLinear(nn.Module):
    """A product with frozen weights, and one of low rank."""

    def __init__(self, inputs: int, outputs: int, bias: bool, stored: LowRank | None, *, is_added: bool) -> None:
        super().__init__()
        low = stored if is_added else None
        self.linear = _frozen(inputs, outputs, bias, stored)
        self.low = low
        if low is not None:
            self.dropout = nn.Dropout(low.dropout)
            self.lora_down = nn.Parameter(torch.zeros(low.rank, inputs))
            self.lora_up = nn.Parameter(torch.zeros(outputs, low.rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        if self.low is None:
            return result
        return result + (self.dropout(x) @ self.lora_down.transpose(0, 1) @ self.lora_up.transpose(0, 1)) * 2.0


def _frozen(inputs: int, outputs: int, bias: bool, low: LowRank | None) -> nn.Linear | FourBitLinear:
    if low is not None and low.bits == 4:
        return FourBitLinear(inputs, outputs, bias=bias, nested=low.nested)
    return nn.Linear(inputs, outputs, bias=bias)


class _LowRankHeads(nn.Module):
    """The product that makes queries, keys and values, and one of low rank for some of them."""

    def __init__(self, sizes: Sizes, low: LowRank | None) -> None:
        super().__init__()
        rows = (sizes.heads + 2 * sizes.query_groups) * sizes.head
        self.linear = _frozen(sizes.width, rows, sizes.bias, low)
        keys = sizes.head * sizes.query_groups
        self._parts: list[int] = []
        self._grouped = sizes.heads != sizes.query_groups
        self._in_place = low is not None and low.in_place
        if low is None:
            return
        places: list[int] = []
        begin = 0
        for part, is_added in ((sizes.head * sizes.heads, low.query), (keys, low.key), (keys, low.value)):
            if is_added:
                self._parts.append(part)
                places += range(begin, begin + part)
            begin += part
        self._places = places
        self.dropout = nn.Dropout(low.dropout)
        self.lora_down = nn.Parameter(torch.zeros(low.rank * len(self._parts), sizes.width))
        self.lora_up = nn.Parameter(torch.zeros(sum(self._parts), low.rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        if not self._parts:
            return result
        down = f.linear(self.dropout(x), self.lora_down)
        up = self._convolved(down.transpose(-2, -1), self.lora_up.unsqueeze(-1)).transpose(-2, -1)
        return result + self._padded(up) * 2.0

    def _convolved(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not self._grouped:
            return f.conv1d(x, weight, groups=len(self._parts))
        pairs = zip(x.chunk(len(self._parts), dim=1), weight.split(self._parts), strict=True)
        return torch.cat([f.conv1d(one, rows) for one, rows in pairs], dim=1)

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros where nothing is added."""
        rows = self.linear.out_features
        if len(self._places) == rows:
            return x
        if self._in_place:
            places = torch.tensor(self._places, device=x.device)
            return x.new_zeros(*x.shape[:-1], rows).index_copy_(dim=-1, index=places, source=x)
        turned = x.transpose(0, 1)
        zeros = turned.new_zeros((*turned.shape[:-1], rows)).view(-1, rows)
        places = torch.tensor(self._places, device=zeros.device)
        filled = zeros.index_copy(1, places, turned.reshape(-1, len(self._places)))
        return filled.view((*turned.shape[:-1], rows)).transpose(0, 1)


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes, low: LowRank | None) -> None:
        super().__init__()
        self.sizes = sizes
        self.attn = _LowRankHeads(sizes, low)
        inside = sizes.head * sizes.heads
        self.proj = _LowRankLinear(inside, sizes.width, sizes.bias, low, is_added=bool(low and low.projection))
        self.prompts: nn.Module | None = None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        sizes, (batch, length, _) = self.sizes, x.shape
        each = sizes.heads // sizes.query_groups
        made = self.attn(x).view(batch, length, sizes.query_groups, each + 2, sizes.head).permute(0, 2, 3, 1, 4)
        q, k, v = made.split((each, 1, 1), dim=2)
        if each > 1:
            k, v = (one.expand(batch, sizes.query_groups, each, length, sizes.head) for one in (k, v))
        q, k, v = (one.reshape(batch, -1, length, sizes.head) for one in (q, k, v))
        turned = int(sizes.rotated * sizes.head)
        q, k = (torch.cat((_rotated(one[..., :turned], cos, sin), one[..., turned:]), dim=-1) for one in (q, k))
        scale = sizes.head**-0.5
        if sizes.capped:
            y = _capped_attention(q, k, v, scale).transpose(1, 2)
        else:
            y = f.scaled_dot_product_attention(q, k, v, dropout_p=0.0, scale=scale, is_causal=True).transpose(1, 2)
        if self.prompts is not None:
            y = y + self.prompts(q)
        result: torch.Tensor = self.proj(y.reshape(batch, length, sizes.head * sizes.heads))
        return result


def _capped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    scores = q @ k.mT * scale
    scores = torch.tanh(scores / 50.0) * 50.0
    mask = torch.ones(q.size(2), q.size(2), dtype=q.dtype, device=q.device).triu(diagonal=1)
    mask.masked_fill_(mask.bool(), torch.finfo(q.dtype).min)
    weights = f.softmax(scores + mask, dim=-1, dtype=torch.float).to(dtype=q.dtype)
    return weights @ v


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (turned * sin)).type_as(x)


class _FeedForward(nn.Module):
    def __init__(self, sizes: Sizes, low: LowRank | None) -> None:
        super().__init__()
        self._gelu = sizes.gelu
        hidden = sizes.hidden or 4 * sizes.width
        added = bool(low and low.mlp)
        self.gate = _LowRankLinear(sizes.width, hidden, sizes.bias, low, is_added=added)
        self.up = _LowRankLinear(sizes.width, hidden, sizes.bias, low, is_added=added) if sizes.gated else None
        self.down = _LowRankLinear(hidden, sizes.width, sizes.bias, low, is_added=added)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        if self.up is None:
            inside = f.gelu(gate)
        else:
            wide = self.up(x)
            inside = (f.gelu(gate) if self._gelu else f.silu(gate)) * wide
        result: torch.Tensor = self.down(inside)
        return result


class _Block(nn.Module):
    def __init__(self, sizes: Sizes, low: LowRank | None) -> None:
        super().__init__()
        self.sizes = sizes
        self.norm_1, self.attn = _norm(sizes), _Attention(sizes, low)
        self.norm_2 = None if sizes.shared_norm else _norm(sizes)
        self.mlp = _FeedForward(sizes, low)
        self.after_1, self.after_2 = (_norm(sizes) if sizes.capped else nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first = self.norm_1(x)
        h: torch.Tensor = self.after_1(self.attn(first, cos, sin))
        if self.sizes.parallel:
            second = first if self.norm_2 is None else self.norm_2(x)
            both: torch.Tensor = self.mlp(second) + h + x
            return both
        assert self.norm_2 is not None, "one after the other, each has its own"
        x = h + x
        last: torch.Tensor = x + self.after_2(self.mlp(self.norm_2(x)))
        return last


def _norm(sizes: Sizes) -> nn.Module:
    return _RmsNorm(sizes.width) if sizes.rms else nn.LayerNorm(sizes.width, eps=1e-5)


class LitGpt(nn.Module):
    """The model; with `low`, all but the products of low rank is frozen, and the head works on chunks of positions.

    length: of the longest sequence.
    """

    def __init__(self, sizes: Sizes, low: LowRank | None, length: int) -> None:
        super().__init__()
        self._chunks = low is not None
        added = bool(low and low.head)
        self.lm_head = _LowRankLinear(sizes.width, sizes.vocabulary, sizes.head_bias, low, is_added=added)
        self.wte = nn.Embedding(sizes.vocabulary, sizes.width)
        self.h = nn.ModuleList(_Block(sizes, low) for _ in range(sizes.layers))
        self.ln_f = _norm(sizes)
        self.to(torch.bfloat16)
        turned = int(sizes.rotated * sizes.head)
        angles = torch.outer(torch.arange(length).float(), 1.0 / 10000 ** (torch.arange(0, turned, 2) / turned))
        angles = angles.repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        if low is not None:
            for name, parameter in self.named_parameters():
                parameter.requires_grad = "lora_" in name

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Logits, in chunks of positions or all at once."""
        length = tokens.size(1)
        x = self.wte(tokens)
        for block in self.h:
            x = block(x, self.cos[:length], self.sin[:length])
        x = self.ln_f(x)
        parts = x.split(_CHUNK, dim=1) if self._chunks else (x,)
        # All are there before the first of them is converted.
        return [made.float() for made in [self.lm_head(part) for part in parts]]


def chunked_loss(logits: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each position with the next token: chunk by chunk, or 128 rows after the other."""
    wanted = targets[..., 1:]
    logits[-1] = logits[-1][..., :-1, :]
    rows = [part.reshape(-1, part.size(-1)) for part in logits]
    labels: Sequence[torch.Tensor] = [part.reshape(-1) for part in wanted.split(logits[0].size(1), dim=1)]
    if len(rows) == 1:
        rows, labels = list(rows[0].split(_CHUNK)), labels[0].split(_CHUNK)
    losses = [f.cross_entropy(part, want, reduction="none") for part, want in zip(rows, labels, strict=True)]
    return torch.cat(losses).mean()
