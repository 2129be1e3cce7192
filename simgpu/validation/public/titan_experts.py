"""One GPU's step of torchtitan's DeepSeek-V3 under FSDP and 64-fold expert parallelism, with fake communication.

Source: torchtitan at 00cffaeb3 (20 August 2026, pull request 4153), flavor 671B of `models/deepseek_v3/__init__.py`;
`models/deepseek_v3/model.py`, `models/common/moe.py`, `token_dispatcher.py` and `rope.py`. The trainer is GraphTrainer
(`experiments/graph_trainer`): it traces forward and backward into one graph and, with its defaults, runs that graph's
operators one by one (`configs.py`, `inductor_compilation: regional`). Only FlexAttention is compiled. Here its Triton
kernel has the name of PyTorch's operator for other devices, which allows heads of two widths, and the time of
FlashAttention-2: in PyTorch's pull request 188644 it reaches 380 TFLOP/s on Blackwell, FlashAttention-2 379 on a B200.

The memory policy `full` saves the input of a layer, and the products that a row names. Of a layer, backward computes
again what it reads: neither the last product nor the weighted sum of the experts' results.

A GPU stores its part of all weights, their gradients and AdamW's states in float32. It gathers a layer's weights in
bfloat16 before each pass (`simple_fsdp.py`), of the experts its four. It gets as many rows as it sends, the same number
for each expert, so that a batch of products stands for grouped ones. PyTorch's fake group (`FakeProcessGroup.hpp`,
PyTorch 2.13) copies: a gather repeats the GPU's own part, and an exchange has the GPU's own rows, as many as it sends.
Here, each takes the time of one copy of that size. That the rows used this version is assumed.

Left out: gathers ahead of use and copies between their buffers; counts of tokens; that the last layer's output is
computed again. The mask also separates documents, of unknown lengths; here a sequence is one document. With
communication faked, `run_train.sh` leaves PyTorch's allocator at its defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as f
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import SAVED
from simgpu.validation.public.timed_loop import Runs, time_of

#: GPUs that share the experts: "EP 64" of the rows.
_GPUS = 64
#: GPUs that share the other weights: "FSDP 256". Four of them have the same experts.
_SHARDS = 256
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
    return nn.Linear(inputs, outputs, bias=False, device="meta")


def _norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=1e-5, device="meta")


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
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    result: torch.Tensor = fused(query, key, value, None, 0.0, True)[0]
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
        self.w1, self.w3 = (nn.Parameter(torch.empty(shape, device="meta")) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(shape[0], shape[2], shape[1], device="meta"))
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
        result: torch.Tensor = _Combined.apply(_Exchanged.apply(returned), sorted_scores[:, None], tokens[:, None], x)
        return result

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


#: Whether a layer's forward pass is computed again.
_AGAIN: ContextVar[bool] = ContextVar("again", default=False)


class _Combined(torch.autograd.Function):
    """The sum of each token's rows by their scores, in single precision but for the sum; backward does not read it."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, scores: torch.Tensor, tokens: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        wide = rows.float()
        ctx.save_for_backward(wide, scores, tokens)
        total = torch.zeros_like(x)
        if _AGAIN.get():
            return total
        weighted = (wide * scores).to(x.dtype)
        return total.scatter_add(0, tokens.expand(weighted.shape), weighted)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wide, scores, tokens = ctx.saved_tensors
        gradient = gradients[0].gather(0, tokens.expand(wide.shape)).float()
        of_scores = (gradient * wide).sum(-1, keepdim=True)
        del wide
        gradient = gradient * scores
        return gradient.to(gradients[0].dtype), of_scores, None, None


class _Gathered(torch.autograd.Function):
    """A weight in bfloat16 from one GPU's part in float32; backward reduces its gradient in float32, to that part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, shape: torch.Size, parts: int) -> torch.Tensor:
        ctx.values = part.numel()
        return part.to(torch.bfloat16).expand(parts, -1).reshape(-1)[: shape.numel()].view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0].float().reshape(-1)[: ctx.values].clone(), None, None


def _divide(model: nn.Module) -> dict[str, tuple[torch.Size, int]]:
    """Replaces each weight by one GPU's part; the shape of the weight and the number of parts, by name."""
    found = {}
    for prefix, module in model.named_modules():
        for name, each in list(module.named_parameters(recurse=False)):
            parts = _SHARDS // _GPUS if isinstance(module, _Experts) else _SHARDS
            found[f"{prefix}.{name}"] = each.shape, parts
            setattr(module, name, nn.Parameter(torch.zeros(-(-each.numel() // parts))))
    return found


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
        self.tok_embeddings = nn.Embedding(sizes.words, sizes.width, device="meta")
        angles = torch.outer(torch.arange(length).float(), 1e4 ** -(torch.arange(0, sizes.rotated, 2) / sizes.rotated))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles)[None, :, None])
        layers = [_Layer(sizes, dense=number < sizes.dense) for number in range(sizes.dense + sizes.layers)]
        self.layers, self.dense = nn.ModuleList(layers), sizes.dense
        self.norm, self.output = _norm(sizes.width), _linear(sizes.width, sizes.words)
        self.whole = _divide(self)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        x = f.embedding(tokens, self._weights("tok_embeddings")["weight"])
        for number in range(len(self.layers)):
            saved = self.saved - {_PRODUCTS["gate"]} if number < self.dense else self.saved
            contexts = partial(_contexts, saved)
            x = checkpoint(self._layer, number, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        x = functional_call(self.norm, self._weights("norm"), (x,))
        return {"loss": _ChunkedLoss.apply(x, self._weights("output")["weight"], targets)}

    def _layer(self, number: int, x: torch.Tensor) -> torch.Tensor:
        name = f"layers.{number}"
        result: torch.Tensor = functional_call(self.layers[number], self._weights(name), (x, self.turns))
        return result

    def _weights(self, prefix: str) -> dict[str, torch.Tensor]:
        """The gathered weights of a module, by their names in it."""
        named = self.get_submodule(prefix).named_parameters()
        return {name: _Gathered.apply(part, *self.whole[f"{prefix}.{name}"]) for name, part in named}


class _ChunkedLoss(torch.autograd.Function):
    """`ChunkedLossWrapper`: logits, loss and gradients of one part of the sequence after another, all in forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        of_x, of_weight = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(weight)
        total = x.new_zeros((), dtype=torch.float32)
        parts = zip(x.chunk(_CHUNKS, 1), of_x.chunk(_CHUNKS, 1), targets.chunk(_CHUNKS, 1), strict=True)
        for part, place, of in parts:
            with torch.enable_grad():
                used = part.contiguous().detach().requires_grad_(), weight.detach().requires_grad_()
                loss = _loss(f.linear(*used), of)
                gradients = torch.autograd.grad(loss, used)
            total += loss.detach()
            place.copy_(gradients[0])
            of_weight += gradients[1]
            del loss, gradients, used
        ctx.save_for_backward(of_x, of_weight)
        ctx.dtype = x.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        of_x, of_weight = ctx.saved_tensors
        return of_x.to(ctx.dtype), of_weight, None


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return f.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1), reduction="sum")


def _contexts(saved: frozenset[int]) -> Any:
    """saved: numbers of products within a layer, whose results are saved."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator is not torch.ops.aten.mm.default:
            return CheckpointPolicy.PREFER_RECOMPUTE
        products[context.is_recompute] += 1
        kept = products[context.is_recompute] in saved
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    first, again = create_selective_checkpoint_contexts(policy)
    return first, _again(again)


@contextmanager
def _again(mode: AbstractContextManager[Any]) -> Iterator[None]:
    token = _AGAIN.set(True)
    try:
        with mode:
            yield
    finally:
        _AGAIN.reset(token)


class _ClippedAdamW(torch.optim.AdamW):
    """The fused AdamW after clipping gradients to a norm of 1."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, fused=True)

    def step(self, closure: Any = None) -> Any:
        """One step; there is no closure."""
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 1.0)
        return super().step(closure)


def experts_loop(row: PublishedRow, sizes: ExpertSizes = SIZES) -> Loop:
    """Forward and backward of a row's batch on one GPU."""
    assert row.sequences is not None
    return Loop(partial(_made, row, sizes), row.sequences, optimizer=_ClippedAdamW)


def time_with_experts(row: PublishedRow) -> tuple[int, int, int]:
    """Nanoseconds of a step and of its kernels, and its samples.

    Layers with experts are alike, so that each beyond the third takes what the third adds to two.
    """
    assert row.node is not None
    two, three = (time_of(experts_loop(row, replace(SIZES, layers=layers)), row.node, Runs()) for layers in (2, 3))
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
