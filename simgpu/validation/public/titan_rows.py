"""One GPU's step of torchtitan's Llama 3.1 under FSDP: `torchtitan/models/llama` and `parallelize_llama.py`.

At commit 9dec370a of 26 December 2024, when its tables were made. Selective checkpointing recomputes a layer except
attention and every other product (`_save_list`); compiled, each layer is a graph, and the loss is not compiled. Weights
are those that FSDP has gathered, in bfloat16. The tables say that the board is an H100 of 500 W with 2.4 TB/s; its
clock rate is not known. With Float8, linear layers but that of the logits are torchao's (0.14.1), with scales of whole
tensors, and their conversions part of the compiled layers; weights are gathered in bfloat16 here, in float8 there.

Where GPUs share the tensors of each layer (`split_layers.py`), a GPU has its part of the heads, of the feed-forward
part and of the words; there checkpoints are full, or save the list of operators of 820504e2 (13 June 2025). Each
operator that a compiled layer repeats counts once, such as the conversion of what three products read
(`async_exchanges.once`). Products with scales of rows take the time of those with scales of tensors: no rate of theirs
was read. The loss needs sums over all GPUs, which are left out.

Ignored in both rows of a slowdown: gathering of weights and reduction of gradients with their copies, most of which
overlap with a layer's compute, and clipping and AdamW on a GPU's share of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.errors import MissingExtraError
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Kernel, Phase
from simgpu.validation.public.async_exchanges import ASYNC, SplitTime, is_exchange, once
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import parts_of
from simgpu.validation.public.split_layers import gathered, in_float8, scattered
from simgpu.validation.public.timed_loop import Runs, traced
from simgpu.workloads.compiled.fused import fused_durations
from simgpu.workloads.timemodel.model import time_model


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model. parts: GPUs that share a layer's tensors; heads, keys, hidden and words are those of one of them."""

    layers: int
    heads: int
    keys: int
    width: int
    hidden: int
    words: int
    parts: int = 1

    def split(self, parts: int) -> Sizes:
        """Those of one of several GPUs."""
        sizes = {name: getattr(self, name) // parts for name in ("heads", "keys", "hidden", "words")}
        return replace(self, parts=parts, **sizes)

    @property
    def each(self) -> int:
        """The width of a head."""
        return self.width // self.heads // self.parts


#: Of `llama3_configs`.
SIZES = {
    "llama-3.1-8b": Sizes(layers=32, heads=32, keys=8, width=4096, hidden=14336, words=128256),
    "llama-3.1-70b": Sizes(layers=80, heads=64, keys=8, width=8192, hidden=28672, words=128256),
}
#: The board's memory: 96 GB of HBM2e.
BOARD = {"gpu.dram_bandwidth": "2.4 TB/s"}
#: The product before what attention adds is scattered, the fourth of a layer.
_BEFORE_SCATTER = 4
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default
_SCATTERED = torch.ops._c10d_functional.reduce_scatter_tensor.default


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts, self.each = sizes.parts, sizes.each
        width, hidden, of_keys = sizes.width, sizes.hidden, sizes.keys * sizes.each
        self.attention_norm, self.ffn_norm = _Norm(width), _Norm(width)
        self.wq, self.wo = _linear(width, sizes.heads * sizes.each), _linear(sizes.heads * sizes.each, width)
        self.wk, self.wv = _linear(width, of_keys), _linear(width, of_keys)
        self.w1, self.w3, self.w2 = _linear(width, hidden), _linear(width, hidden), _linear(hidden, width)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        h = x + self._summed(self.wo, self._attention(self._all(self.attention_norm(x), self.wq), turns))
        y = self._all(self.ffn_norm(h), self.w1)
        return h + self._summed(self.w2, f.silu(self.w1(y)) * self.w3(y))

    def _all(self, x: torch.Tensor, reader: nn.Module) -> torch.Tensor:
        return x if self.parts == 1 else gathered(x, self.parts, in_float8(reader))

    def _summed(self, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = linear(x)
        return result if self.parts == 1 else scattered(result, self.parts, in_float8(linear))

    def _attention(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x) for each in (self.wq, self.wk, self.wv))
        q, k, v = (each.view(*x.shape[:2], -1, self.each) for each in (q, k, v))
        times = q.size(2) // k.size(2)
        q, k = _turned(q, turns), _turned(k, turns)
        k, v = _repeated(k, times), _repeated(v, times)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        result = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()
        return result.view(*x.shape[:2], -1)


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    both = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(both * turns.view(1, x.size(1), 1, -1)).flatten(3).type_as(x)


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, length, heads, each = x.shape
    return x[:, :, :, None].expand(batch, length, heads, times, each).reshape(batch, length, heads * times, each)


class TitanModel(nn.Module):
    """The model with its loss. selective: whether a layer's checkpoint saves some operators, or none."""

    def __init__(self, sizes: Sizes, length: int, *, selective: bool = True) -> None:
        super().__init__()
        self.parts = sizes.parts
        self.contexts = {"context_fn": partial(_contexts, sizes.parts)} if selective else {}
        self.tok_embeddings = nn.Embedding(sizes.words, sizes.width, dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(length).float(), 500000.0 ** -(torch.arange(0, sizes.each, 2) / sizes.each))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.output = _Norm(sizes.width), _linear(sizes.width, sizes.words)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss; of several GPUs, each sums over its words alone."""
        x = self.tok_embeddings(tokens)
        x = x if self.parts == 1 else scattered(x, self.parts)
        for layer in self.layers:
            x = checkpoint(layer, x, self.turns, use_reentrant=False, preserve_rng_state=False, **self.contexts)
        x = self.norm(x)
        logits = self.output(x if self.parts == 1 else gathered(x, self.parts))
        return {"loss": f.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))}


def _contexts(parts: int) -> Any:
    """What a layer's checkpoint saves: attention, the first of each two products, and what is scattered.

    As the sum of all GPUs is saved, the compiler drops the product before it, the fourth, from what is computed again.
    """
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        saved = operator in (_ATTENTION, _SCATTERED)
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            number = products[context.is_recompute]
            saved = number % 2 == 1 or (parts > 1 and number == _BEFORE_SCATTER)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def titan_loop(row: PublishedRow, sizes: Sizes) -> Loop:
    """Forward and backward of a row's micro-batch on one GPU."""
    assert row.sequences is not None
    return Loop(partial(_made, row, sizes), row.sequences, optimizer=torch.optim.SGD)


def timed_titan_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """The loop of a row whose tensors are not split, with its layers compiled where the row has them so."""
    assert row.config is not None
    loop = titan_loop(row, SIZES[row.config])
    return loop, Runs(layer_of if "compile" in row.uses else None, changes=BOARD, optimizer=False)


def time_of_split(row: PublishedRow) -> tuple[int, int, int]:
    """Nanoseconds of forward and backward and of their kernels, and the samples that all GPUs of a group share.

    Layers are all alike, so that two and three of them give the time of each.
    """
    assert row.config is not None and row.sequences is not None
    sizes = SIZES[row.config].split(parts_of(row))
    two, three = (step_of_split(row, replace(sizes, layers=layers)) for layers in (2, 3))
    step = two + (sizes.layers - 2) * (three - two)
    return step, step, row.sequences


def step_of_split(row: PublishedRow, sizes: Sizes) -> int:
    """Nanoseconds of forward and backward of a model whose layers are compiled, with what its GPUs exchange."""
    assert row.node is not None
    node = load_node(row.node, BOARD)
    prices = time_model(node.gpu)
    trace = once(traced(titan_loop(row, sizes), node.gpu, time_model), layer_of)
    computed = fused_durations(trace, prices, layer_of)
    times = SplitTime(node, prices, sizes.parts, ASYNC in row.uses).durations(trace, computed)
    return sum(ns for kernel, ns in zip(trace.kernels, times, strict=True) if kernel.phase is not Phase.OPTIMIZER)


def layer_of(kernel: Kernel) -> str | None:
    """The layer of an operator, which is a compiled graph; none of exchanges, which it does not fuse."""
    parts = (kernel.layer or "").split(".")
    is_compiled = parts[0] == "layers" and kernel.phase is not Phase.OPTIMIZER and not is_exchange(kernel)
    return parts[1] if is_compiled else None


def _made(row: PublishedRow, sizes: Sizes, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    assert row.tokens is not None
    words = torch.randint(sizes.words, (batch, row.tokens))
    model: nn.Module = TitanModel(sizes, row.tokens, selective="selective checkpointing" in row.uses)
    if "float8" in row.uses:
        model = _in_float8(model, "rowwise" if "rowwise scales" in row.uses else "tensorwise")
    return model, (words, words.clone()), (), None


def _in_float8(model: nn.Module, recipe: str) -> nn.Module:
    """The model with torchao's linear layers."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise MissingExtraError("predicting rows in float8", "torchao 0.14.1 (without its dependencies)") from None
    config = Float8LinearConfig.from_recipe_name(recipe)
    converted: nn.Module = convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name != "output"
    )
    return converted
