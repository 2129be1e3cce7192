"""One GPU's step of llm-foundry's MPT 1B under FSDP: `llmfoundry/models/mpt/modeling_mpt.py` at 8c8dd48f.

With the benchmark's settings (`scripts/train/benchmarking/submit_benchmarks.py`): flash attention of the package,
normalizations in bfloat16, weights and the sum of the layers' results in float32 under autocast. With amp_fp8, all
linear layers but that of the logits are TransformerEngine's, with delayed scaling: input, weight and gradient are
converted once and transposed, as backward needs both orders, and each of the three products multiplies float8.

Approximated: a conversion and its transposition are two kernels here and one there; flash-attn's fused cross-entropy
is a sum over the logits and a product with them, of the same traffic. Ignored in both rows of a slowdown: gathering of
weights, reduction of gradients, clipping and the optimizer on a GPU's share, which takes part in every fourth pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs

#: `scripts/train/yamls/pretrain/mpt-1b.yaml`: layers, heads, width, vocabulary.
_LAYERS, _HEADS, _WIDTH, _WORDS = 24, 16, 2048, 50368
_HALF, _FORWARD, _BACKWARD = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2


class _Float8Product(torch.autograd.Function):
    """A linear layer whose three products multiply float8."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x8, w8 = x.to(_FORWARD), weight.to(_FORWARD)
        ctx.save_for_backward(x8.t().contiguous(), w8.t().contiguous())
        return _scaled(x8, w8, bias.to(_HALF))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned_x, turned_w = ctx.saved_tensors
        g8 = grads[0].to(_BACKWARD)
        of_weight = _scaled(g8.t().contiguous(), turned_x)
        return _scaled(g8, turned_w), of_weight.float(), grads[0].sum(0).float()


def _scaled(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product of a and the transpose of b, each with one scale."""
    one = torch.ones((), device=a.device)
    result: torch.Tensor = torch._scaled_mm(a, b.t(), one, one, bias=bias, out_dtype=_HALF)
    return result


class _Float8Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.to(_HALF).flatten(0, -2)
        made: torch.Tensor = _Float8Product.apply(flat, self.weight, self.bias)
        return made.view(*x.shape[:-1], -1)


class _Norm(nn.LayerNorm):
    """In bfloat16, outside autocast (`LPLayerNorm`)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(_HALF), self.bias.to(_HALF)
            return f.layer_norm(x.to(_HALF), self.normalized_shape, weight, bias, self.eps)


class _Block(nn.Module):
    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = _Norm(_WIDTH), _Norm(_WIDTH)
        self.joint, self.out = linear(_WIDTH, 3 * _WIDTH), linear(_WIDTH, _WIDTH)
        self.up, self.down = linear(_WIDTH, 4 * _WIDTH), linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.joint(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        fed: torch.Tensor = self.down(f.gelu(self.up(self.norm_2(x))))
        return x + fed


class _Loss(torch.autograd.Function):
    """A mean over the rows that reads the logits once, and once more for their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return logits.sum(-1, dtype=torch.float32).mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        made: torch.Tensor = logits * grads[0].to(_HALF)
        return made


class MptModel(nn.Module):
    """The model with its loss. linear: the class of its linear layers."""

    def __init__(self, tokens: int, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(tokens, _WIDTH)
        self.blocks = nn.ModuleList(_Block(linear) for _ in range(_LAYERS))
        self.norm_f = _Norm(_WIDTH)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        with torch.autocast(tokens.device.type, _HALF):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device)[None])
            for block in self.blocks:
                x = block(x)
            logits = f.linear(self.norm_f(x), self.wte.weight)
            loss: torch.Tensor = _Loss.apply(logits.flatten(0, 1))
        return {"loss": loss}


def timed_mpt_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """Forward and backward of a row's micro-batch."""
    assert row.sequences is not None and row.tokens is not None
    linear = _Float8Linear if "float8" in row.uses else nn.Linear
    loop = Loop(partial(_made, row.tokens, linear), sequences=row.sequences, optimizer=torch.optim.SGD)
    return loop, Runs(optimizer=False)


def _made(tokens: int, linear: type[nn.Linear], batch: int) -> tuple[nn.Module, Any, Any, Any]:
    return MptModel(tokens, linear), (torch.randint(_WORDS, (batch, tokens)),), (), None
