"""Reinforcement learning of prime-rl's benchmark: `trainer/rl/train.py` and what it runs, at commit 8718eb143.

The benchmark feeds synthetic samples of full length, two micro-batches in a step (`scripts/run_single_benchmark.py`).
Weights, FSDP2 and checkpoints are those of `prime_rows.py`, the layers those of `compiled_layers.py`. The head computes
log-probabilities for 2,048 words at a time, and again in backward (`models/layers/lm_head.py`), where it also computes
a gradient of its weights, even of frozen ones.

With LoRA, each linear layer has four adapters, of which the first has all tokens; weights and adapters are float32 and
used in bfloat16. The benchmark registers no run with the loop, so that there is no optimizer: nothing is updated, and
gradients stay and add up (`optim.py`, `runs.py`). Without LoRA the optimizer is AdamW.

With offload (`utils/act_offloading.py`), the inputs of checkpoints and what else forward saves are copied to pinned
memory when saved and back when used, on the stream that computes; weights stay. The workflow of the benchmark sets
expandable segments for PyTorch's allocator (`.github/workflows/benchmarks.yaml`).

INTELLECT-3 (`glm_layers.py`) runs on eight GPUs that share its weights. Its time is that of the weights that FSDP has
gathered, in bfloat16; ignored in both rows of a slowdown are gathering of weights and reduction of the adapters'
gradients with their copies, most of which overlap with a layer's compute, and clipping on a GPU's share. Its embedding
and head are two, and only adapters have gradients.

Approximated, besides what `prime_rows.py` says: one product with the first adapter stands for a grouped product, and
the embedding's weights in bfloat16 live from a forward pass to the next. Left out: masks and statistics of the loss,
which are a few numbers for each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from simgpu.hardware.nodes import load_node
from simgpu.validation.public.compiled_layers import CompiledLayer
from simgpu.validation.public.glm_layers import GLM_SIZES, GlmModel
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.prime_rows import (
    MICRO_BATCHES,
    ClippedAdamW,
    flash_of,
    halves,
    layer_of,
    layers_of,
    qwen3,
)
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs, time_of

#: Words in a chunk of the head, the default.
_CHUNK = 2048
#: Smaller tensors are not offloaded, in bytes.
_LEAST = 1024


class _ChunkedHead(torch.autograd.Function):
    """Log-probabilities of the labels and entropies, a chunk of the words at a time; labels are in the first chunk.

    Names live as long as in the source, as a chunk's tensors do until the next one has the same names.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.size(0)
        largest = x.new_full((rows,), -float("inf"), dtype=torch.float32)
        total, weighted, chosen = (x.new_zeros((rows,), dtype=torch.float32) for _ in range(3))
        for start, part in _chunks(weight):
            logits = x @ part.t()
            wide = logits.to(torch.float32).mul_(1.0)
            largest, total, weighted = _updated(largest, total, weighted, wide)
            if start == 0:
                chosen.copy_(wide.gather(1, labels[:, None])[:, 0])
        sums = largest + torch.log(total)
        ctx.save_for_backward(x, weight, labels, sums)
        return chosen - sums, sums - weighted / total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, labels, sums = ctx.saved_tensors
        of_x, of_weight = torch.zeros_like(x), torch.zeros_like(weight)
        each = gradients[0].to(torch.float32)
        for start, part in _chunks(weight):
            logits = x @ part.t()
            wide = logits.to(torch.float32).mul_(1.0)
            likely = torch.exp(wide - sums[:, None])
            of_logits = (-each)[:, None] * likely
            if start == 0:
                of_logits.scatter_add_(1, labels[:, None], each[:, None])
            of_logits.mul_(1.0)
            of_x.add_(of_logits.to(x.dtype) @ part)
            product = of_logits.to(weight.dtype).t() @ x
            of_weight[start : start + _CHUNK].add_(product)
        return of_x, of_weight, None


def _updated(
    largest: torch.Tensor, total: torch.Tensor, weighted: torch.Tensor, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    most = torch.maximum(largest, torch.amax(logits, dim=-1))
    before = torch.exp(largest - most)
    exponents = torch.exp(logits - most[:, None])
    total = total * before + exponents.sum(dim=-1)
    return most, total, weighted * before + (exponents * logits).sum(dim=-1)


def _chunks(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, weight.size(0), _CHUNK):
        yield start, weight[start : start + _CHUNK]


def _run(layer: nn.Module, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = functional_call(layer, halves(layer), (x, turns))
    return result


class PolicyModel(nn.Module):
    """The model with its loss. layers: None for all; adapted, grouped: as in `CompiledLayer`.

    moved: receives the bytes of each tensor that a forward pass offloads; None without offload.
    """

    def __init__(
        self, config: str, layers: int | None = None, *, adapted: bool, grouped: bool, moved: list[int] | None = None
    ) -> None:
        super().__init__()
        self.moved = moved
        self._shared: torch.Tensor | None = None
        if config in GLM_SIZES:
            assert adapted  # all that its rows have
            self.model: Any = GlmModel(GLM_SIZES[config], layers, grouped=grouped)
            return
        self.model = qwen3(config, layers)
        if adapted:
            self.model.requires_grad_(False)
        compiled = (CompiledLayer(layer, adapted=adapted, grouped=grouped) for layer in self.model.layers)
        self.model.layers = nn.ModuleList(compiled)

    def forward(self, tokens: torch.Tensor, advantages: torch.Tensor, sampled: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of one micro-batch. sampled: log-probabilities of the tokens when they were sampled."""
        labels = torch.cat([tokens[:, 1:], tokens.new_zeros(tokens.size(0), 1)], dim=1)
        self._shared = self.model.embed_tokens.weight.to(torch.bfloat16)
        with nullcontext() if self.moved is None else self._offloading(self.moved):
            found, entropy = self._outputs(tokens, labels, self._shared)
        found, entropy = (torch.cat([each.new_zeros(1), each[:-1]]) for each in (found, entropy))
        weights = torch.exp(found - sampled) * advantages
        return {"loss": -(weights.detach() * found).sum() / tokens.numel()}

    def _outputs(self, tokens: torch.Tensor, labels: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = self.model
        x = f.embedding(tokens, shared)
        turns = whole.rotary_emb(x, torch.arange(tokens.size(1), device=tokens.device)[None])
        for layer in whole.layers:
            x = checkpoint(_run, layer, x, turns, use_reentrant=False, preserve_rng_state=False)
        x = functional_call(whole.norm, halves(whole.norm), (x,))
        head = whole.lm_head.weight if isinstance(whole, GlmModel) else shared
        found: tuple[torch.Tensor, ...] = _ChunkedHead.apply(x.view(-1, x.size(-1)), head, labels.view(-1))
        return found

    def _offloading(self, moved: list[int]) -> saved_tensors_hooks:
        """Drops what forward saves, and makes it anew where backward uses it."""
        moved.clear()
        weights = {each.untyped_storage()._cdata for each in (self._shared,) if each is not None}

        def pack(tensor: torch.Tensor) -> Any:
            size = tensor.numel() * tensor.element_size()
            is_weight = isinstance(tensor, nn.Parameter) or tensor.untyped_storage()._cdata in weights
            if size < _LEAST or is_weight:
                return tensor
            moved.append(size)
            return tensor.shape, tensor.dtype, tensor.device

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            shape, dtype, device = packed
            return torch.empty(shape, dtype=dtype, device=device)

        return saved_tensors_hooks(pack, unpack)


class _Accumulating(torch.optim.Optimizer):
    """Clips gradients, updates nothing, and leaves the gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Clips; there is no closure."""
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 1.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing."""


def policy_loop(row: PublishedRow) -> Loop:
    """What a row of reinforcement learning runs."""
    return _loop(row, None, [])


def policy_time(row: PublishedRow) -> tuple[int, int, int]:
    """Nanoseconds of a step and of its kernels, and its samples.

    Layers are alike, so that each beyond the third takes what the third adds to two. Of several GPUs, what runs on a
    share of the weights is left out.
    """
    assert row.config is not None and row.node is not None
    runs = []
    for layers in (2, 3):
        moved: list[int] = []
        how = Runs(layer_of, optimizer=row.gpus == 1, offloaded=moved, flash=flash_of(row))
        runs.append(time_of(_loop(row, layers, moved), row.node, how))
    (step, kernels, samples), (longer, more, _) = runs
    others = (GLM_SIZES[row.config].layers if row.config in GLM_SIZES else layers_of(row.config)) - 2
    return step + others * (longer - step), kernels + others * (more - kernels), samples


def _loop(row: PublishedRow, layers: int | None, moved: list[int]) -> Loop:
    assert row.config is not None and row.node is not None and row.tokens is not None
    adapted = "lora" in row.uses
    new = partial(
        PolicyModel,
        row.config,
        layers,
        adapted=adapted,
        grouped=load_node(row.node).gpu.architecture == "hopper",  # of compute capability 9, as MultiLoRALinear asks
        moved=moved if "offloaded checkpoints" in row.uses else None,
    )
    return Loop(
        partial(_made, new, row.tokens),
        sequences=1,
        micro_batches=MICRO_BATCHES,
        optimizer=_Accumulating if adapted else ClippedAdamW,
        # Without an optimizer, the second micro-batch already has all that stays.
        iterations=1 if adapted else 2,
        zero_grad="end",
        gradients_apart=True,
        expandable=True,
    )


def _made(new: Any, tokens: int, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words = torch.randint(100, (batch, tokens))
    return new(), (words, torch.randn(tokens), torch.randn(tokens)), (), None
