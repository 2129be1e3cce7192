"""One GPU's step of torchtitan's Llama 3.1 8B under FSDP: `torchtitan/models/llama` and `parallelize_llama.py`.

At commit 9dec370a of 26 December 2024, when its tables were made. Selective checkpointing recomputes a layer except
attention and every other product (`_save_list`); compiled, each layer is a graph, and the loss is not compiled. Weights
are those that FSDP has gathered, in bfloat16. The tables say that the board is an H100 of 500 W with 2.4 TB/s; its
clock rate is not known. With Float8, linear layers but that of the logits are torchao's (0.14.1), with scales of whole
tensors, and their conversions part of the compiled layers; weights are gathered in bfloat16 here, in float8 there.

Ignored in both rows of a slowdown: gathering of weights and reduction of gradients with their copies, most of which
overlap with a layer's compute, and clipping and AdamW on a GPU's share of the weights.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.errors import MissingExtraError
from simgpu.trace.model import Kernel, Phase
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs

#: `llama3_configs["8B"]`: layers, heads, key-value heads, width, width of the feed-forward part, vocabulary.
_LAYERS, _HEADS, _KEYS, _WIDTH, _HIDDEN, _WORDS = 32, 32, 8, 4096, 14336, 128256
_EACH = _WIDTH // _HEADS
#: The board's memory: 96 GB of HBM2e.
_BOARD = {"gpu.dram_bandwidth": "2.4 TB/s"}
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = _Norm(), _Norm()
        self.wq, self.wo = _linear(_WIDTH, _WIDTH), _linear(_WIDTH, _WIDTH)
        self.wk, self.wv = _linear(_WIDTH, _KEYS * _EACH), _linear(_WIDTH, _KEYS * _EACH)
        self.w1, self.w3, self.w2 = _linear(_WIDTH, _HIDDEN), _linear(_WIDTH, _HIDDEN), _linear(_HIDDEN, _WIDTH)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        h = x + self._attention(self.attention_norm(x), turns)
        y = self.ffn_norm(h)
        fed: torch.Tensor = self.w2(f.silu(self.w1(y)) * self.w3(y))
        return h + fed

    def _attention(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.view(*x.shape[:2], -1, _EACH) for each in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = _turned(q, turns), _turned(k, turns)
        k, v = _repeated(k), _repeated(v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        result = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()
        out: torch.Tensor = self.wo(result.view(*x.shape[:2], -1))
        return out


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    both = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(both * turns.view(1, x.size(1), 1, -1)).flatten(3).type_as(x)


def _repeated(x: torch.Tensor) -> torch.Tensor:
    batch, length, heads, each = x.shape
    times = _HEADS // heads
    return x[:, :, :, None].expand(batch, length, heads, times, each).reshape(batch, length, _HEADS, each)


class TitanModel(nn.Module):
    """The model with its loss."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(_WORDS, _WIDTH, dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(length).float(), 500000.0 ** -(torch.arange(0, _EACH, 2) / _EACH))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.norm, self.output = _Norm(), _linear(_WIDTH, _WORDS)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, self.turns, use_reentrant=False, context_fn=_contexts, preserve_rng_state=False)
        logits = self.output(self.norm(x))
        return {"loss": f.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))}


def _contexts() -> Any:
    """What a layer's checkpoint saves: attention, and the first of each two products."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        saved = operator is _ATTENTION
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            saved = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def timed_titan_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """Forward and backward of a row's micro-batch, with its layers compiled where the row has them so."""
    assert row.sequences is not None and row.tokens is not None
    made = partial(_made, row.tokens, "float8" in row.uses)
    loop = Loop(made, sequences=row.sequences, optimizer=torch.optim.SGD)
    return loop, Runs(_layer if "compile" in row.uses else None, changes=_BOARD, optimizer=False)


def _layer(kernel: Kernel) -> str | None:
    """The layer of an operator, which is a compiled graph."""
    parts = (kernel.layer or "").split(".")
    return parts[1] if parts[0] == "layers" and kernel.phase is not Phase.OPTIMIZER else None


def _made(tokens: int, in_float8: bool, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words = torch.randint(_WORDS, (batch, tokens))
    model: nn.Module = TitanModel(tokens)
    return _in_float8(model) if in_float8 else model, (words, words.clone()), (), None


def _in_float8(model: nn.Module) -> nn.Module:
    """The model with torchao's linear layers."""
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError:
        raise MissingExtraError("predicting rows in float8", "torchao 0.14.1 (without its dependencies)") from None
    converted: nn.Module = convert_to_float8_training(model, module_filter_fn=lambda _, name: name != "output")
    return converted
