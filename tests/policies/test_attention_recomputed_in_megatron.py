"""Recomputing attention alone raises the peak in Megatron-LM: the checkpoint holds the result of the fused projection.

Measured: NVIDIA-NeMo/Megatron-Bridge pull request 3880, Qwen3-30B-A3B on 16 H100, bf16, micro-batches of one sequence:
61.35 GB of allocated memory without recomputation, 63.14 GB with ``core_attn``. The recipe
(perf_recipes/qwen/h100/qwen3_moe.py, commit 067f987d) has 4,096 tokens, expert parallelism of 16 and no other. Sizes
are those of the model's config.json.

The cause, by the sources: query, key and value are views of the result of one projection
(`get_query_key_value_tensors` in Megatron-LM d98e8a64, megatron/core/transformer/attention.py). The norms of query and
key copy theirs (`RMSNorm` in TransformerEngine d0067d0d, ops/basic/rmsnorm.py), and attention copies the value, because
it is not contiguous (`get_qkv_layout`, attention/dot_product_attention/utils.py), so the result is freed. A checkpoint
around attention saves the value as it is given (`CheckpointFunction`), and with it the memory of all three.

Modelled is the attention of all 48 layers, on one GPU. Experts, embedding and loss hold the same with both, and are
left out, so only the difference is compared. Attention is PyTorch's flash attention, which saves what the fused one of
TransformerEngine does.
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

LAYERS, TOKENS, HIDDEN, HEADS, GROUPS, WIDTH = 48, 4096, 2048, 32, 4, 128
MEASURED = 63.14e9 - 61.35e9
#: Bytes in bfloat16 of the result of the fused projection, and of the value alone.
MIXED, VALUE = 2 * TOKENS * WIDTH * (HEADS + 2 * GROUPS), 2 * TOKENS * WIDTH * GROUPS
#: Bytes of the float32 row statistics that fused attention saves, and of two 64-bit states of its random generator.
STATISTICS = 4 * TOKENS * HEADS + 2 * 8


class Core(nn.Module):
    """Attention without its projections."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = [each.contiguous().transpose(1, 2) for each in (q, k, v)]
        result = nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return result.transpose(1, 2).flatten(2)


class Norm(nn.RMSNorm):
    """A norm of contiguous memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.contiguous())


class Layer(nn.Module):
    """The attention of a layer. copies: whether the value has memory of its own when attention gets it."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.copies = copies
        self.norm, self.q_norm, self.k_norm = Norm(HIDDEN), Norm(WIDTH), Norm(WIDTH)
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * GROUPS) * WIDTH, bias=False)
        self.core, self.proj = Core(), nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.qkv(self.norm(x)).view(*x.shape[:2], GROUPS, -1)
        q, k, v = mixed.split([HEADS // GROUPS * WIDTH, WIDTH, WIDTH], dim=-1)
        v = v.contiguous() if self.copies else v
        q = self.q_norm(q.reshape(*x.shape[:2], HEADS, WIDTH))
        # For the rotary embedding: like it, the negation makes new memory, and needs nothing of its input in backward.
        return x + self.proj(self.core(-q, -self.k_norm(k), v))


class Stack(nn.Module):
    """The layers, and a loss."""

    def __init__(self, layers: int, copies: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(copies) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.sum((1, 2))


def made(layers: int, copies: bool, batch: int) -> tuple[Any, ...]:
    tokens = torch.randn(batch, TOKENS, HIDDEN, dtype=torch.bfloat16)
    stack = Stack(layers, copies).to(torch.bfloat16)
    return stack, tokens, torch.randn(batch, dtype=torch.bfloat16), nn.MSELoss()


def rise(layers: int, *, copies: bool = False) -> int:
    """The peak with the attention of all layers recomputed, less the peak without, in bytes."""
    trace = record(partial(made, layers, copies), batch=1, gpu="h100")
    recomputed = run(trace, "checkpoint", blocks=["layers.*.core"], early_stop=False)
    return peak(recomputed) - peak(run(trace, "none"))


@pytest.mark.slow
def test_the_peak_rises_by_what_was_measured() -> None:
    assert rise(LAYERS) == pytest.approx(MEASURED, rel=0.15)


@pytest.mark.slow
def test_each_layer_holds_the_fused_projection_instead_of_the_value_and_the_row_statistics() -> None:
    assert rise(4) - rise(2) == 2 * (MIXED - VALUE - STATISTICS)


@pytest.mark.slow
def test_a_value_with_memory_of_its_own_leaves_only_the_row_statistics_to_save() -> None:
    assert rise(4, copies=True) - rise(2, copies=True) == -2 * STATISTICS
