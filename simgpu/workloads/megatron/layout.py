"""`Layout`: how Megatron-LM divides a model and its batch among GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from simgpu.errors import InputError, Problem
from simgpu.workloads.configured.decoder import Decoder

_SHORT = {"tp": "tensor", "cp": "context", "pp": "pipeline", "ep": "expert", "etp": "expert_tensor", "dp": "data"}
_PART = re.compile(r"(tp|cp|pp|ep|etp|dp)=?([0-9]{1,20})")
_MOST = 999_999
#: Families whose layers Megatron-LM's GPT model has with its options: root mean square normalization, rotary positions
#: and gated feed-forward parts with SiLU, or layer normalization, plain parts with GELU and biases everywhere.
_GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")
_PLAIN = ("gpt2", "gpt_neox", "starcoder2")
FAMILIES = (*_GATED, *_PLAIN)
#: Activations that the fused GELU stands for; it computes a tanh.
_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True)
class Layout:
    """How many GPUs share each layer (tensor), the tokens (context), the layers (pipeline), the experts of a layer
    (expert), each expert (expert_tensor) and the batch (data).

    Those of a stage of the pipeline are divided anew where there are experts: neighbours share each expert, by default
    as many as share each layer (``--expert-tensor-parallel-size``), and groups of these share the experts of a layer.
    Tensor parallelism comes with sequence parallelism, data and context parallelism with the distributed optimizer:
    each GPU updates its part of the weights.
    Context parallelism exchanges tokens for heads around attention (``--cp-comm-type a2a``).

    >>> Layout.parsed("tp4,dp2").gpus
    8
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    context: int = 1
    expert_tensor: int | None = None

    @property
    def of_expert(self) -> int:
        """GPUs that share each expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def text(self) -> str:
        """As in tables of papers, without what is 1.

        >>> Layout(tensor=4, data=2).text, Layout(expert=4, data=8).text, Layout().text
        ('tp4,dp2', 'ep4,dp8', 'tp1')
        >>> Layout.parsed("tp2,ep4,etp1,dp2").text
        'tp2,ep4,etp1,dp2'
        """
        usual = {"etp": self.tensor}
        sizes = ((short, getattr(self, name)) for short, name in _SHORT.items())
        return ",".join(f"{short}{size}" for short, size in sizes if size not in (None, usual.get(short, 1))) or "tp1"

    @classmethod
    def parsed(cls, text: str) -> Layout:
        """The layout of a text such as ``tp4,pp2,dp2``. Raises `InputError` for another text."""
        parts = [part.strip() for part in text.split(",")]
        found = [_PART.fullmatch(part) for part in parts]
        names = [match[1] for match in found if match]
        sizes = [int(match[2]) for match in found if match]
        if wrong := [m[0] for m in found if m and not 1 <= int(m[2]) <= _MOST]:
            what = f"{wrong[0]!r} is not a number of GPUs from 1 to {_MOST:,}"
            raise InputError.single("", "megatron", what, "give how many GPUs share it")
        if len(names) < len(parts) or len(set(names)) < len(names):
            what = (
                f"{text!r} does not say how many GPUs share tensors (tp), tokens (cp), layers (pp), experts (ep), each "
                "expert (etp) and the batch (dp)"
            )
            raise InputError.single("", "megatron", what, "give each at most once, as tp4,pp2,dp2 or ep4,dp8")
        return cls(**{_SHORT[name]: size for name, size in zip(names, sizes, strict=True)})

    def problems(self, decoder: Decoder, length: int) -> Iterator[Problem]:
        """What this layout or Megatron-LM's model does not support of a decoder."""
        if decoder.parallel:
            what = (
                f"{decoder.name} adds attention and feed-forward part to the same value, "
                "and Megatron-LM's layers run one after the other"
            )
            yield Problem("", "megatron", what, "give a model without a parallel residual, or leave it out")
            return
        activations = _GELU if decoder.family in _PLAIN else ("silu",)
        if decoder.family not in FAMILIES or decoder.activation not in activations:
            what = f"{decoder.name} of the family {decoder.family} as Megatron-LM's GPT model is not modelled"
            yield Problem("", "megatron", what, f"give a model of the family {' or '.join(FAMILIES)}, or leave it out")
            return
        others = (
            (f"biases {_biases(decoder)}", _biases(decoder)),
            ("several rates of dropout", len({decoder.embedding_dropout, decoder.dropout}) > 1),
            (f"a window of {decoder.window} tokens", decoder.needs_mask(length)),
            ("one table for embedding and logits in a pipeline", decoder.tied and self.pipeline > 1),
        )
        for name, has in others:
            if has:
                what = f"{decoder.name} has {name}, which is not modelled in this form"
                yield Problem("", "megatron", what, "give another configuration, or leave it out")
        both, tp = self.tensor * self.context, f"tp{self.tensor}"
        text = tp if self.context == 1 else f"{tp} x cp{self.context}"
        for what, count, by, parts in (
            ("heads", decoder.heads, text, both),
            ("heads of keys and values", decoder.key_heads, text, both),
            ("columns of the feed-forward part", 0 if _has_experts_alone(decoder) else decoder.inner, tp, self.tensor),
            ("tokens of a sample", length, text, both),
        ):
            if count % parts:
                yield Problem("", "megatron", f"{count} {what} cannot be divided by {by}", "give a divisor")
        if not decoder.rotary_width and self.context > 1:
            what = f"trained positions of {decoder.name} with context parallelism (cp) are not modelled"
            yield Problem("", "megatron", what, "leave cp out")
        if not decoder.rotary_width and length > decoder.positions:
            what = f"{length} tokens are more than the {decoder.positions} positions of {decoder.name}"
            yield Problem("", "length", what, f"give at most {decoder.positions}")
        yield from self._problems_of_experts(decoder)
        if decoder.layers % self.pipeline:
            what = f"{decoder.layers} layers cannot be divided by pp{self.pipeline}"
            yield Problem("", "megatron", what, "give a divisor")

    def _problems_of_experts(self, decoder: Decoder) -> Iterator[Problem]:
        experts, each, of_stage = decoder.experts, self.of_expert * self.expert, self.gpus // self.pipeline
        if self.tensor * self.context > 1 and decoder.latent is not None:
            what = "latent attention with tensor or context parallelism (tp, cp) is not modelled"
            yield Problem("", "megatron", what, "leave tp and cp out, and divide the experts (ep)")
        if experts is None:
            if self.expert > 1 or self.expert_tensor is not None:
                part = f"ep{self.expert}" if self.expert > 1 else f"etp{self.expert_tensor}"
                yield Problem(
                    "", "megatron", f"{decoder.name} has no experts to divide by {part}", "leave ep and etp out"
                )
            return
        if of_stage == self.data and each == self.expert and self.data % self.expert:
            what = f"ep{self.expert} GPUs that share experts cannot be part of dp{self.data} that share the batch"
            yield Problem("", "megatron", what, f"give a multiple of {self.expert} as dp")
        elif of_stage % each:
            what = f"{of_stage} GPUs of a stage (tp x cp x dp) cannot be divided into groups of etp{self.of_expert} x "
            remedy = "give another dp, or etp1 so that one GPU has each expert whole"
            yield Problem("", "megatron", f"{what}ep{self.expert} that share experts", remedy)
        for what, count, short, parts in (
            ("experts", experts.count, "ep", self.expert),
            ("columns of an expert", experts.inner, "etp", self.of_expert),
        ):
            if count % parts:
                yield Problem("", "megatron", f"{count} {what} cannot be divided by {short}{parts}", "give a divisor")


def _has_experts_alone(decoder: Decoder) -> bool:
    return all(decoder.has_experts(layer) for layer in range(decoder.layers))


def _biases(decoder: Decoder) -> str:
    """Where a decoder has biases and Megatron-LM with the family's options has none, or the reverse.

    Gated parts come with biases of queries, keys and values alone (``--add-qkv-bias``), plain ones with all.
    """
    has = decoder.query_bias, decoder.output_bias, decoder.inner_bias
    if decoder.family in _PLAIN:
        return "" if all(has) else "in some of its linear layers only"
    if decoder.latent is not None:
        return "next to latent attention" if any(has) else ""
    return "outside of queries, keys and values" if any(has[1:]) else ""


def folder_part(layout: str, stage: int | None) -> str:
    """What names of traces say of a layout.

    >>> folder_part("tp4,pp2", 1), folder_part("dp1", None)
    ('-tp4-pp2-stage1', '-tp1')
    """
    of_stage = f"-stage{stage}" if stage else ""
    return f"-{Layout.parsed(layout).text.replace(',', '-')}{of_stage}"
