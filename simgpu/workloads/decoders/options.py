"""`TrainingOptions`: how a decoder is trained, apart from its batch, its samples' length and the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from simgpu.errors import Problem, did_you_mean
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer

#: Number formats of weights.
DTYPES = ("bfloat16", "float16", "float32")
#: Lower precisions of autocast.
AUTOCASTS = ("bfloat16", "float16")


class AttentionForm(StrEnum):
    """Implementations of attention in transformers."""

    SDPA = "sdpa"  # PyTorch's fused operator, the default
    EAGER = "eager"  # products, softmax and mask, one after another


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a decoder is trained. Values are checked where they are used, all at once.

    dtype: number format of the weights, their gradients and the optimizer state, and without autocast of activations:
        one of `DTYPES`.
    autocast: format of products under ``torch.autocast``, one of `AUTOCASTS`; None: no autocast. Forward and loss run
        inside the context, backward outside. Other operators have the formats of CUDA's lists.
    attention: a value of `AttentionForm`.
    optimizer: a value of `simgpu.workloads.lowering.optimizer.Optimizer`.
    micro_batches: equal parts of the batch, each of which runs forward and backward before the one optimizer step.
    lora: rank of LoRA's adapters, which alone are trained; None to train all weights.
    lora_targets: names of the linear layers that are adapted, or "all-linear" for all but that of the logits.

    >>> TrainingOptions(dtype="float32", autocast="bfloat16").products
    'bfloat16'
    """

    dtype: str = "bfloat16"
    autocast: str | None = None
    attention: str = "sdpa"
    optimizer: str = "adamw"
    micro_batches: int = 1
    lora: int | None = None
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TrainingOptions:
        """The options of which some are given by name; None for a default. With autocast, weights are in float32.

        >>> TrainingOptions.of({"autocast": "bfloat16", "optimizer": None}).dtype
        'float32'
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        return cls(**({"dtype": "float32"} if "autocast" in chosen else {}) | chosen)

    @property
    def products(self) -> str:
        """The number format of linear layers and attention."""
        return self.autocast or self.dtype

    def problems(self, decoder: Decoder, batch: int) -> list[Problem]:
        """What is wrong with the values, and what this decoder or this batch does not support."""
        problems = [
            Problem("", place, f"unknown value {value!r}", did_you_mean(value, known))
            for place, value, known in (
                ("dtype", self.dtype, list(DTYPES)),
                ("autocast", self.autocast, list(AUTOCASTS)),
                ("attention", self.attention, [str(each) for each in AttentionForm]),
                ("optimizer", self.optimizer, [str(each) for each in Optimizer]),
            )
            if value is not None and value not in known
        ]
        if self.attention == AttentionForm.EAGER and decoder.family == "gpt2":
            problems.append(Problem("", "attention", "eager attention of GPT-2 is not modelled", "give sdpa"))
        if self.lora is not None and self.lora < 1:
            problems.append(Problem("", "lora", f"{self.lora} is not a rank", "give at least 1"))
        if self.lora is not None and decoder.family == "gpt2":
            problems.append(Problem("", "lora", "LoRA of GPT-2's Conv1D layers is not modelled", "leave it out"))
        if self.micro_batches < 1 or batch % self.micro_batches:
            what = f"a batch of {batch} cannot be split into {self.micro_batches} equal micro-batches"
            problems.append(Problem("", "micro_batches", what, "give a divisor of the batch"))
        return problems

    def problems_of_plain(self, family: str) -> list[Problem]:
        """What a family that is trained neither under autocast, with LoRA nor in micro-batches does not support."""
        chosen = {"autocast": self.autocast, "lora": self.lora, "micro_batches": self.micro_batches > 1}
        return [
            Problem("", place, f"of {family} is not modelled", "leave it out")
            for place, value in chosen.items()
            if value
        ]

    def described(self) -> str:
        """A sentence for notes, without its full stop."""
        parts = [f"{self.attention} attention"]
        if self.autocast is not None:
            parts.append(f"autocast to {self.autocast}")
        if self.lora is not None:
            targets = ", ".join(self.lora_targets)
            parts.append(f"LoRA of rank {self.lora} on {targets}, in float32 and without dropout, all else frozen")
        if self.micro_batches > 1:
            parts.append(f"gradients accumulated over {self.micro_batches} micro-batches")
        return f"{', '.join(parts)}, updated by {UPDATES[Optimizer(self.optimizer)]}"
