"""Recomputing attention alone can raise the peak: its inputs are held while the recomputed copies of them exist.

A small decoder with eager attention shows it. What was measured with Megatron-LM has another cause, see
`tests.policies.test_attention_recomputed_in_megatron`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder import record
from tests.policies.framework_runs import peak, run

BATCH, WIDTH, HEADS, WORDS, TOKENS = 4, 256, 4, 50, 512
#: Bytes in float32 of one hidden state, and of the scores of a layer.
STATE, SCORES = 4 * BATCH * TOKENS * WIDTH, 4 * BATCH * HEADS * TOKENS**2


class Core(nn.Module):
    """Attention without its projections."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


class Layer(nn.Module):
    """A layer of GPT-2 without dropout."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out, self.core = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Core(fused)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.core(*parts.unbind()).transpose(1, 2).reshape(x.shape))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return result


class Decoder(nn.Module):
    """Layers between an embedding and a head."""

    def __init__(self, layers: int, fused: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer(fused) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).flatten(0, 1)


def made(layers: int, fused: bool, batch: int) -> tuple[Any, ...]:
    tokens, labels = torch.randint(WORDS, (batch, TOKENS)), torch.randint(WORDS, (batch * TOKENS,))
    return Decoder(layers, fused), tokens, labels, nn.CrossEntropyLoss()


def rise(layers: int, fused: bool) -> int:
    """The peak with the attention of all layers recomputed, less the peak without, in bytes."""
    trace = record(partial(made, layers, fused), batch=BATCH, gpu="a100")
    return peak(run(trace, "checkpoint", blocks=["layers.*.core"])) - peak(run(trace, "none"))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_layer_under_recomputation_holds_its_inputs_and_the_others_drop_their_scores(layers: int) -> None:
    """Products copy q, k and v, which are views of one tensor, and save the copies; the tensor itself is freed.

    A checkpoint holds it until the backward of the attention ends, together with the recomputed copies: three states
    more. Every other layer drops its scores. So the peak rises if (layers - 1) * scores < 3 * states.
    """
    assert rise(layers, fused=False) == 3 * STATE - (layers - 1) * SCORES


@pytest.mark.slow
def test_recomputing_fused_attention_saves_only_its_row_statistics() -> None:
    """Its inputs are held anyway, and its output is saved by the projection behind it: less than 1% of the peak."""
    assert -4 * STATE // 10 < rise(4, fused=True) < 0
