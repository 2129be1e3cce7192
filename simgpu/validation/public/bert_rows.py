"""Hugging Face's fine-tuning of BERT-large on random data, as `docs/source/en/performance.mdx` of transformers has it.

The table is of January 2022 (V100, CUDA 11.2): `BertForSequenceClassification` with two labels, 512 tokens, the Trainer
with its own AdamW, parameter by parameter, or Adafactor. Gradients were set to zero in place then, so that they live
through the next forward pass; here they are freed before backward, which has the same peak.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from simgpu.recorder.model_packages import transformers_package
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs
from simgpu.validation.public.trainer import TrainerOptimizer

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ACCUMULATED = 4


class _Classifier(nn.Module):
    """BERT with its loss, in float16 where it is to be."""

    def __init__(self, *, checkpoints: bool, half: bool) -> None:
        super().__init__()
        transformers = transformers_package()
        sizes = transformers.BertConfig(**_LARGE)
        sizes._attn_implementation = "eager"
        self.model = transformers.BertForSequenceClassification(sizes)
        if checkpoints:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.half_precision = half

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.half_precision):
            return self.model(input_ids=tokens, labels=labels)


def bert_loop(row: PublishedRow) -> Loop:
    """What a row of the table runs."""
    assert row.sequences is not None and row.tokens is not None
    half = "autocast" in row.uses
    return Loop(
        partial(_made, "checkpoint" in row.uses, half, row.tokens),
        sequences=row.sequences,
        micro_batches=_ACCUMULATED if "accumulation" in row.uses else 1,
        optimizer=_adafactor if "adafactor" in row.uses else partial(torch.optim.AdamW, lr=2e-5, foreach=False),
        iterations=2,
        zero_grad="before-backward",
        grad_scaler=half,
    )


def timed_bert_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """The same with all that takes time in the Trainer's step."""
    optimizer = partial(TrainerOptimizer, adafactor="adafactor" in row.uses)
    return replace(bert_loop(row), optimizer=optimizer), Runs()


def _made(checkpoints: bool, half: bool, tokens: int, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words, labels = torch.randint(100, (batch, tokens)), torch.randint(2, (batch,))
    return _Classifier(checkpoints=checkpoints, half=half), (words, labels), (), None


def _adafactor(parameters: Any) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = transformers_package().Adafactor(parameters, lr=1e-3, relative_step=False)
    return made
