"""One GPU's step of torchtitan's DeepSeek-V3 under FSDP and 64-fold expert parallelism, with fake communication.

Source: torchtitan at 00cffaeb3 (20 August 2026, pull request 4153), flavor 671B of `models/deepseek_v3/__init__.py`;
`models/deepseek_v3/model.py`, `models/common/moe.py`, `token_dispatcher.py` and `rope.py`. The trainer is GraphTrainer
(`experiments/graph_trainer`): it traces forward and backward into one graph and, with its defaults, runs that graph's
operators one by one (`configs.py`, `inductor_compilation: regional`). Only FlexAttention is compiled. Here its Triton
kernel has the name of cuDNN's operator, which allows heads of two widths, and the time of FlashAttention-2: in
PyTorch's pull request 188644 it reaches 380 TFLOP/s on Blackwell, FlashAttention-2 379 on a B200.

The memory policy `full` saves the input of a layer, and the products that a row names. Of a layer, backward computes
again what it reads: neither the last product nor the weighted sum of the experts' results.

A GPU has four experts of each layer and, gathered, all other weights, in bfloat16. It gets as many rows as it sends,
the same number for each expert, so that a batch of products stands for grouped ones. PyTorch's fake group
(`FakeProcessGroup.hpp`, PyTorch 2.13) gives each GPU its own numbers of rows back and copies its rows, which takes the
time of a copy here. That the rows used this version is assumed.

Left out, the same in all rows: gathers of weights, of which each is a copy to the places of all GPUs (256, or 4 for
experts), reductions of gradients, clipping and AdamW on the GPU's share, by their traffic and launches about 0.2 s of a
step; counts of tokens; that the last layer's output is computed again. The mask also separates documents, of unknown
lengths; here a sequence is one document.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import SAVED
from simgpu.validation.public.timed_loop import Runs, time_of

#: GPUs that share the experts: "EP 64" of the rows.
_GPUS = 64
#: Parts of the sequence whose logits and loss are computed apart (`ChunkedLossWrapper`).
_CHUNKS = 8
#: The number of a product within a layer, by the word for it in a row's options.
_PRODUCTS = {"wkv_a": 3, "wo": 5, "gate": 6}


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Of a model. dense, layers: layers without and with experts; experts: of a layer, on all GPUs.

    queries, keys: widths of the narrow vectors of attention; plain, rotated, values: widths of the parts of a head.
    """

    dense: int = 3
    layers: int = 58
    width: int = 7168
    heads: int = 128
    queries: int = 1536
    keys: int = 512
    plain: int = 128
    rotated: int = 64
    values: int = 128
    hidden: int = 18432
    inner: int = 2048
    experts: int = 256
    chosen: int = 8
    groups: int = 8
    limited: int = 4
    words: int = 129280


#: Of `_671b`.
SIZES = ExpertSizes()


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)


def _norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=1e-5, dtype=torch.bfloat16)


class _Attention(nn.Module):
    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.sizes, heads = sizes, sizes.heads
        self.wq_a, self.q_norm = _linear(sizes.width, sizes.queries), _norm(sizes.queries)
        self.wq_b = _linear(sizes.queries, heads * (sizes.plain + sizes.rotated))
        self.wkv_a, self.kv_norm = _linear(sizes.width, sizes.keys + sizes.rotated), _norm(sizes.keys)
        self.wkv_b = _linear(sizes.keys, heads * (sizes.plain + sizes.values))
        self.wo = _linear(heads * sizes.values, sizes.width)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        sizes, shape = self.sizes, (*x.shape[:2], self.sizes.heads, -1)
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(shape)
        of_query, q_turned = q.split([sizes.plain, sizes.rotated], -1)
        kv, k_turned = self.wkv_a(x).split([sizes.keys, sizes.rotated], -1)
        q_turned, k_turned = _turned(q_turned, turns), _turned(k_turned.unsqueeze(2), turns)
        q = torch.cat([of_query, q_turned], -1)
        of_key, v = self.wkv_b(self.kv_norm(kv)).view(shape).split([sizes.plain, sizes.values], -1)
        k = torch.cat([of_key, k_turned.expand(-1, -1, sizes.heads, -1)], -1)
        result = _attended(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2).contiguous()
        out: torch.Tensor = self.wo(result.view(*x.shape[:2], -1))
        return out


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    both = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(both * turns).flatten(3).type_as(x)


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    fused = torch.ops.aten._scaled_dot_product_cudnn_attention
    result: torch.Tensor = fused(query, key, value, None, torch.is_grad_enabled(), 0.0, True)[0]
    return result


class _FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = _linear(width, hidden), _linear(hidden, width), _linear(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.w2(f.silu(self.w1(x)) * self.w3(x))
        return result


class _Router(nn.Module):
    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.sizes, self.gate = sizes, _linear(sizes.width, sizes.experts)
        self.register_buffer("correction", torch.zeros(sizes.experts))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and numbers of the chosen experts of each token."""
        sizes = self.sizes
        scores = torch.sigmoid(f.linear(x.float(), self.gate.weight.float()))
        grouped = (scores + self.correction).unflatten(-1, (sizes.groups, -1))
        best = grouped.topk(2, dim=-1)[0].sum(-1).topk(sizes.limited, dim=-1, sorted=False)[1]
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, False)
        inside = grouped.masked_fill(outside.unsqueeze(-1), -float("inf")).flatten(-2)
        places = inside.topk(sizes.chosen, dim=-1, sorted=False)[1]
        chosen = scores.gather(-1, places)
        return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * 2.5, places


class _Experts(nn.Module):
    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.router, self.chosen = _Router(sizes), sizes.chosen
        shape = sizes.experts // _GPUS, sizes.inner, sizes.width
        self.w1, self.w3 = (nn.Parameter(torch.empty(shape, dtype=torch.bfloat16)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(shape[0], shape[2], shape[1], dtype=torch.bfloat16))
        self.shared_experts = _FeedForward(sizes.width, sizes.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, places = self.router(x)
        routed = self._routed(x.view(-1, x.size(-1)), scores, places).view(x.shape)
        result: torch.Tensor = routed + self.shared_experts(x)
        return result

    def _routed(self, x: torch.Tensor, scores: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(places.view(-1), stable=True)
        sorted_scores, tokens = scores.view(-1)[order], order // self.chosen
        received = _Exchanged.apply(x[tokens])
        by_expert = torch.arange(received.size(0), device=x.device)
        results = self._products(received[by_expert])
        returned = torch.empty_like(results)
        returned[by_expert] = results
        weighted = (_Exchanged.apply(returned).float() * sorted_scores[:, None]).to(x.dtype)
        return torch.zeros_like(x).scatter_add(0, tokens[:, None].expand(-1, x.size(1)), weighted)

    def _products(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(self.w1.size(0), -1, x.size(1))
        inner = f.silu(rows @ self.w1.transpose(1, 2)) * (rows @ self.w3.transpose(1, 2))
        return (inner @ self.w2.transpose(1, 2)).view(x.shape)


class _Exchanged(torch.autograd.Function):
    """Rows of the fake exchange, as many as are sent, in backward as well."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].clone()


class _Layer(nn.Module):
    def __init__(self, sizes: ExpertSizes, *, dense: bool) -> None:
        super().__init__()
        self.attention, self.attention_norm, self.ffn_norm = _Attention(sizes), _norm(sizes.width), _norm(sizes.width)
        self.feed_forward = _FeedForward(sizes.width, sizes.hidden) if dense else _Experts(sizes)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        result: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return result


class ExpertsModel(nn.Module):
    """The model with its loss. saved: words of `_PRODUCTS`."""

    def __init__(self, sizes: ExpertSizes, length: int, saved: frozenset[str]) -> None:
        super().__init__()
        self.saved = frozenset(_PRODUCTS[word] for word in saved)
        self.tok_embeddings = nn.Embedding(sizes.words, sizes.width, dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(length).float(), 1e4 ** -(torch.arange(0, sizes.rotated, 2) / sizes.rotated))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles)[None, :, None])
        layers = [_Layer(sizes, dense=number < sizes.dense) for number in range(sizes.dense + sizes.layers)]
        self.layers, self.dense = nn.ModuleList(layers), sizes.dense
        self.norm, self.output = _norm(sizes.width), _linear(sizes.width, sizes.words)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        x = self.tok_embeddings(tokens)
        for number, layer in enumerate(self.layers):
            saved = self.saved - {_PRODUCTS["gate"]} if number < self.dense else self.saved
            contexts = partial(_contexts, saved)
            x = checkpoint(layer, x, self.turns, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        parts = zip(self.norm(x).chunk(_CHUNKS, 1), targets.chunk(_CHUNKS, 1), strict=True)
        return {"loss": torch.stack([_loss(self.output(part), of) for part, of in parts]).sum()}


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return f.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1), reduction="sum")


def _contexts(saved: frozenset[int]) -> Any:
    """saved: numbers of products within a layer, whose results are saved."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *given: Any, **_: Any) -> CheckpointPolicy:
        kept = _is_unread(operator, given)
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] in saved
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _is_unread(operator: Any, given: tuple[Any, ...]) -> bool:
    """Whether backward reads neither its result nor what follows: experts' results, weighted, rounded, added up."""
    aten = torch.ops.aten
    if operator is aten.scatter_add.default:
        return True
    return operator in (aten.mul.Tensor, aten._to_copy.default) and (
        given[0].dim() == 2 and given[0].dtype is torch.float32
    )


def experts_loop(row: PublishedRow, sizes: ExpertSizes = SIZES) -> Loop:
    """Forward and backward of a row's batch on one GPU."""
    assert row.sequences is not None
    return Loop(partial(_made, row, sizes), row.sequences, optimizer=torch.optim.SGD)


def time_with_experts(row: PublishedRow) -> tuple[int, int, int]:
    """Nanoseconds of a step and of its kernels, and its samples.

    Layers with experts are alike, so that each beyond the third takes what the third adds to two.
    """
    assert row.node is not None
    two, three = (
        time_of(experts_loop(row, replace(SIZES, layers=layers)), row.node, Runs(optimizer=False)) for layers in (2, 3)
    )
    step, kernels = (one + (SIZES.layers - 2) * (more - one) for one, more in zip(two[:2], three[:2], strict=True))
    return step, kernels, two[2]


def saved_products(row: PublishedRow) -> frozenset[str]:
    """The products whose results a row saves.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [sorted(saved_products(row)) for row in published_rows() if row.id in ("t-039", "t-041")]
    [['gate'], ['gate', 'wkv_a', 'wo']]
    """
    return frozenset(row.options.partition(SAVED)[2].split(" + ")) & frozenset(_PRODUCTS)


def _made(row: PublishedRow, sizes: ExpertSizes, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    assert row.tokens is not None
    tokens = torch.zeros(batch, row.tokens, dtype=torch.int64)
    return ExpertsModel(sizes, row.tokens, saved_products(row)), (tokens, tokens), (), None
