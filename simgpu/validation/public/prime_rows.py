"""Supervised fine-tuning of prime-rl's benchmark: `trainer/sft/train.py` and `trainer/model.py` at commit 8718eb143.

That is of 19 January 2026, when its table was made. The model is Transformers' Qwen3 with float32 weights, each layer
checkpointed and a group of FSDP2, the tied embedding and head another. On one GPU such a group makes its weights in
bfloat16 before they are used, in backward again, and its gradients in float32 at the end, on its reduce-scatter stream
(`torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`). The loop's name `out` holds the logits in float32 until
the next forward pass has ended, although it deletes the name `logits`.

Approximated: layers run in single operators, not compiled, with PyTorch's flash attention for that of the package, at
the rate of its version; FSDP's buffers for all weights of a group together; the head's weights in bfloat16, which FSDP
frees during the loss. Gradients are clipped for times only, as that takes little memory. For times, the layers are
compiled one by one and the rest is not; FSDP's copies of weights run one after another with the layers, not at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from simgpu.recorder.model_packages import transformers_package
from simgpu.trace.model import Kernel, Phase
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs
from simgpu.workloads.timemodel.attention import FlashVersion

#: Sizes by the `config.json` of each model.
_SIZES = {
    "qwen3-0.6b": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    },
    "qwen3-4b": {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e6,
    },
}
#: Micro-batches of a step, by the default of `benchmarks/scripts/run_single_benchmark.py`.
MICRO_BATCHES = 2


def layers_of(config: str) -> int:
    """The number of layers of a model."""
    return int(_SIZES[config]["num_hidden_layers"])


def qwen3(config: str, layers: int | None = None) -> nn.Module:
    """Transformers' Qwen3 with float32 weights, and a head that shares the embedding's. layers: None for all."""
    transformers = transformers_package()
    given = _SIZES[config] | {"num_hidden_layers": layers or layers_of(config)}
    sizes = transformers.Qwen3Config(**given, sliding_window=None, use_cache=False)
    sizes._attn_implementation = "sdpa"
    model: nn.Module = transformers.Qwen3Model(sizes)
    return model


class _SftModel(nn.Module):
    """The model with its loss."""

    def __init__(self, config: str) -> None:
        super().__init__()
        self.model = qwen3(config)
        self._output: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of one micro-batch."""
        whole = self.model
        shared = whole.embed_tokens.weight.to(torch.bfloat16)
        x = f.embedding(tokens, shared)
        turns = whole.rotary_emb(x, torch.arange(tokens.size(1), device=tokens.device)[None])
        for layer in whole.layers:
            x = checkpoint(in_bfloat16, layer, x, turns, use_reentrant=False)
        logits = self._logits(functional_call(whole.norm, halves(whole.norm), (x,)), shared)
        self._output = logits
        loss = f.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), reduction="none")
        return {"loss": loss.mean()}

    @staticmethod
    def _logits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return f.linear(x, weight).float().contiguous()


def halves(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a group in bfloat16, as FSDP makes them before a module runs."""
    return {name: each.to(torch.bfloat16) for name, each in module.named_parameters()}


def in_bfloat16(layer: nn.Module, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A layer's output."""
    result: torch.Tensor = functional_call(layer, halves(layer), (x,), {"position_embeddings": turns})[0]
    return result


def prime_loop(row: PublishedRow) -> Loop:
    """What a row of fine-tuning runs."""
    assert row.config is not None and row.sequences is not None and row.tokens is not None
    return Loop(
        partial(_made, row.config, row.tokens),
        sequences=row.sequences,
        micro_batches=MICRO_BATCHES,
        optimizer=torch.optim.AdamW,
        zero_grad="end",
        gradients_apart=True,
    )


class ClippedAdamW(torch.optim.AdamW):
    """AdamW after clipping gradients to a norm of 1, with multi-tensor operators."""

    def step(self, closure: Any = None) -> Any:
        """One step; there is no closure."""
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 1.0)
        return super().step(closure)


def timed_prime_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """The same with all that takes time on the GPU, and its layers compiled."""
    return replace(prime_loop(row), optimizer=ClippedAdamW), Runs(layer_of, flash=flash_of(row))


def flash_of(row: PublishedRow) -> FlashVersion:
    """The version of flash attention that a row states."""
    return FlashVersion.THREE if "attention FA3" in row.options else FlashVersion.TWO


def layer_of(kernel: Kernel) -> str | None:
    """The layer of an operator, which is a compiled graph."""
    parts = (kernel.layer or "").split(".")
    return parts[2] if parts[:2] == ["model", "layers"] and kernel.phase is not Phase.OPTIMIZER else None


def _made(config: str, tokens: int, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words = torch.randint(1000, (batch, tokens))
    return _SftModel(config), (words, words.clone()), (), None
