"""LitGPT's fine-tuning as its two tables of measurements describe it: the model, LoRA, and the loop.

The tables are `tutorials/resource-tables.md` (October 2023) and `config_hub/finetune/README.md`, with its YAML files.
Sizes are those of `config.py`. In the first, the longest sequence of the data comes first, and no later one is so long;
in the second, all are cut at 512 tokens. Optimizer: AdamW on what is not frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from simgpu.validation.public.litgpt_adapters import AdaptedGpt, trained_by_the_first
from simgpu.validation.public.litgpt_models import LitGpt, LowRank, Sizes, chunked_loss
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow

#: By the name of a configuration.
SIZES = {
    "falcon-7b": Sizes(32, 71, 4544, 65024, groups=1, parallel=True, shared_norm=True, gated=False, rms=False),
    "falcon-40b": Sizes(60, 128, 8192, 65024, groups=8, parallel=True, gated=False, rms=False),
    "gemma-2b": Sizes(18, 8, 2048, 256000, 16384, groups=1, gelu=True),
    "gemma-2-9b": Sizes(42, 16, 3584, 256000, 14336, groups=8, each_head=256, gelu=True, capped=True),
    "gemma-7b": Sizes(28, 16, 3072, 256000, 24576, each_head=256, gelu=True),
    "llama-2-7b": Sizes(32, 32, 4096, 32000, 11008),
    "llama-2-13b": Sizes(40, 40, 5120, 32000, 13824),
    "llama-3.1-8b": Sizes(32, 32, 4096, 128256, 14336, groups=8),
    "llama-3.2-1b": Sizes(16, 32, 2048, 128256, 8192, groups=8),
    "llama-3.2-3b": Sizes(28, 24, 3072, 128256, 8192, groups=8),
    "mistral-7b": Sizes(32, 32, 4096, 32000, 14336, groups=8),
    "mistral-7b-v0.2": Sizes(32, 32, 4096, 32000, 14336, groups=8),
    "phi-1.5": Sizes(
        *(24, 32, 2048, 51200),
        rotated=0.5,
        parallel=True,
        shared_norm=True,
        gated=False,
        rms=False,
        bias=True,
        head_bias=True,
    ),
    "phi-3-mini-4k": Sizes(32, 32, 3072, 32064, 8192),
    "stablelm-alpha-3b": Sizes(16, 32, 4096, 50688, rotated=0.25, parallel=True, gated=False, rms=False, bias=True),
}
#: LoRA of the configurations that differ from the others: on all products.
_ON_ALL = {"key": True, "projection": True, "mlp": True, "head": True}
_LOW = {
    "phi-3-mini-4k": LowRank(8, **_ON_ALL),
    **dict.fromkeys(("gemma-2b", "gemma-2-9b", "gemma-7b"), LowRank(16, dropout=0.1, **_ON_ALL)),
}


def litgpt_loop(row: PublishedRow) -> Loop:
    """What a row of one of the tables runs."""
    assert row.config is not None and row.sequences is not None and row.tokens is not None
    is_first_table = "resource-tables" in row.source
    low = replace(LowRank(8), in_place=False) if is_first_table else _LOW.get(row.config, LowRank(32))
    if "4-bit weights" in row.uses:
        low = replace(low, bits=4, nested="nf4-dq" in row.options)
    sizes, tokens = SIZES[row.config], row.tokens
    if "adapter" in row.uses:
        # The table gives the number of trained parameters.
        second = f"trainable {trained_by_the_first(sizes):,}" not in row.options
        model = partial(AdaptedGpt, sizes, tokens, second=second, bits=low.bits, nested=low.nested)
    else:
        model = partial(LitGpt, sizes, low if "lora" in row.uses else None, tokens)
    rounds = 1 if is_first_table else 2
    return Loop(
        partial(_made, model, tokens),
        sequences=row.sequences,
        micro_batches=rounds,
        optimizer=_adamw,
        iterations=rounds,
        zero_grad="end",
        hold_output=True,
    )


def _made(model: Callable[[], nn.Module], tokens: int, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words = torch.randint(100, (batch, tokens))
    return model(), (words,), (words.clone(),), chunked_loss


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in parameters if each.requires_grad], lr=3e-4, weight_decay=0.01)
