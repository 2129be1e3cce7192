"""`TrainingOptions`: how a decoder is trained, apart from its batch, its samples' length and the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from simgpu.errors import Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.configured.adapters import Lora
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer
from simgpu.workloads.timemodel.attention import FlashVersion, without_flash
from simgpu.workloads.timemodel.formats import without_float8

#: Number formats of weights.
DTYPES = ("bfloat16", "float16", "float32")
#: Lower precisions of autocast.
AUTOCASTS = ("bfloat16", "float16")
_OF_IMAGES = ("to_k", "to_q", "to_v", "to_out.0")
#: Linear layers that are adapted by default: peft's for T5 and mT5 (``peft/utils/constants.py``), and those of
#: diffusers' training scripts (``train_text_to_image_lora.py``) for models of images.
DEFAULT_TARGETS = MappingProxyType({"t5": ("q", "v"), "mt5": ("q", "v"), "dit": _OF_IMAGES, "unet": _OF_IMAGES})
#: Larger batches and lengths are typing errors and may overflow the time model.
_MOST = 2**40


class AttentionForm(StrEnum):
    """Implementations of attention in transformers."""

    SDPA = "sdpa"  # PyTorch's fused operator, the default
    EAGER = "eager"  # products, softmax and mask, one after another
    FLASH2 = "flash_attention_2"  # of the package flash-attn
    FLASH3 = "flash_attention_3"  # of its folder hopper


#: Those of the package flash-attn: heads of keys and values are not repeated, and there is never a mask.
OF_PACKAGE = frozenset((AttentionForm.FLASH2, AttentionForm.FLASH3))


class LossForm(StrEnum):
    """Ways to compute the logits and their cross-entropy."""

    EAGER = "eager"  # all logits at once, as transformers does
    CHUNKED = "chunked"  # torchtune's LinearCrossEntropyLoss
    CHUNKED_COMPILED = "chunked-compiled"  # the same with each chunk compiled, as with torchtune's compile=True
    FUSED = "fused"  # Liger-Kernel's fused linear cross-entropy


class MasterForm(StrEnum):
    """Where the gradients of weights with float32 copies are converted."""

    COPIED = "copied"  # before the optimizer step
    MAIN_GRAD = "main-grad"  # in backward, which adds them to gradients in float32


class Float8Form(StrEnum):
    """Ways in which linear layers multiply float8."""

    TENSORWISE = "tensorwise"  # torchao's default recipe
    TENSORWISE_COMPILED = "tensorwise-compiled"  # the same, each layer compiled


class FourBitForm(StrEnum):
    """Ways to store frozen linear layers in four bits, as bitsandbytes does."""

    NF4 = "nf4"  # with scales in float32
    NF4_DOUBLE = "nf4-double"  # with scales in 8 bits (bnb_4bit_use_double_quant)


#: Architectures for which Triton has no code (``torch/_inductor/scheduler.py``).
_BEFORE_TRITON = frozenset(("kepler", "maxwell", "pascal"))
#: Parts into which the chunked loss divides the tokens (``num_output_chunks`` of torchtune).
CHUNKS = 8
#: Forms that compute the logits in chunks.
IN_CHUNKS = (LossForm.CHUNKED, LossForm.CHUNKED_COMPILED)
_LOSSES = {
    LossForm.CHUNKED_COMPILED: f"loss in {CHUNKS} chunks as torchtune's LinearCrossEntropyLoss, each compiled",
    LossForm.CHUNKED: f"loss in {CHUNKS} chunks as torchtune's LinearCrossEntropyLoss, not compiled",
    LossForm.FUSED: "loss fused with the output layer as in Liger-Kernel",
}
_FLOAT8 = {
    Float8Form.TENSORWISE: "linear layers but that of the logits in float8, by torchao's tensorwise recipe without the "
    "compiler",
    Float8Form.TENSORWISE_COMPILED: "linear layers but that of the logits in float8, by torchao's tensorwise recipe, "
    "each compiled",
}
_COMPILED = {
    CompileForm.LAYERS: "each layer compiled as PyTorch 2.13's torch.compile does by default",
    CompileForm.MODEL: "the model with its loss compiled as PyTorch 2.13's torch.compile does by default",
}
_ATTENTIONS = {
    AttentionForm.FLASH2: "attention of the package flash-attn, version 2",
    AttentionForm.FLASH3: "attention of the package flash-attn, version 3",
}
_MASTERS = {
    MasterForm.COPIED: "float32 copies of the weights, whose gradients are converted before the update",
    MasterForm.MAIN_GRAD: "float32 copies of the weights, and gradients added up in float32",
}
#: Families that Liger-Kernel 0.8.2 patches (``MODEL_TYPE_TO_APPLY_LIGER_FN``).
_OF_LIGER = frozenset(("gemma", "gemma2", "gemma3_text", "glm4", "llama", "mistral", "mixtral", "olmo2", "phi3"))
_OF_LIGER |= frozenset(("gpt_oss", "qwen2", "qwen3", "qwen3_moe", "smollm3"))


def has_fused_loss(decoder: Decoder) -> bool:
    """Whether Liger-Kernel has a fused loss for this decoder."""
    return decoder.family in _OF_LIGER


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a decoder is trained. Values are checked where they are used, all at once.

    dtype: number format of the weights, their gradients and the optimizer state, and without autocast of activations:
        one of `DTYPES`.
    autocast: format of products under ``torch.autocast``, one of `AUTOCASTS`; None: no autocast. Forward, and the loss
        that a language model computes, run inside the context, backward outside. Other operators have the formats of
        CUDA's lists.
    attention: a value of `AttentionForm`.
    loss: a value of `LossForm`.
    optimizer: a value of `simgpu.workloads.lowering.optimizer.Optimizer`.
    master_weights: a value of `MasterForm`, for float32 copies of bfloat16 weights; None for none.
    float8: a value of `Float8Form`, for linear layers that convert their factors to float8; None for none.
    optimizer_in_backward: whether each weight is updated as soon as backward has its gradient, which is then freed.
    grad_scaler: whether the loss is scaled and gradients are divided by the scale, as float16 needs.
    micro_batches: equal parts of the batch, each of which runs forward and backward before the one optimizer step.
    lora: rank of LoRA's adapters, which alone are trained; None to train all weights.
    lora_targets: names of the linear layers that are adapted, or "all-linear" for all but that of the logits; by
        default `DEFAULT_TARGETS` of the family, or q_proj and v_proj.
    lora_dtype: number format of the adapters, float32 or that of the weights. By default float32, as peft converts
        them (``autocast_adapter_dtype``); torchtune's have that of the weights.
    lora_dropout: rate at which values of an adapter's input are dropped, from 0 to below 1.
    four_bit: a value of `FourBitForm`, for the frozen linear layers but that of the logits next to LoRA's adapters
        (QLoRA); None for layers in the format of the weights. With float32 weights under autocast, all else is as
        peft's ``prepare_model_for_kbit_training`` converts it. Next to `compile`, a graph keeps for backward each
        matrix in half precision that forward makes, and so needs the memory that four bits save.
    tf32: whether float32 products run on matrix units in TF32 (``torch.set_float32_matmul_precision("high")``,
        Transformers' ``tf32``). Convolutions do so in any case, as PyTorch allows by default.
    compile: a value of `CompileForm`, for what ``torch.compile`` compiles with its defaults; None for eager execution.
    tensor_parallel: number of GPUs of a node that share each layer, of which one is modelled.
    hold_output: whether the loop holds what the model returns, such as logits, until it has the next result, as in
        ``outputs = model(**batch); outputs.loss.backward()``. By default it has the loss alone, as the Trainer of
        Transformers and torchtune's recipes do.
    cudnn_attention: whether PyTorch's fused operator may run cuDNN's attention, which versions before 2.11 do not
        prefer, and which ``torch.backends.cuda.enable_cudnn_sdp(False)`` switches off.

    >>> TrainingOptions(dtype="float32", autocast="bfloat16").products
    'bfloat16'
    """

    dtype: str = "bfloat16"
    autocast: str | None = None
    attention: str = "sdpa"
    loss: str = "eager"
    optimizer: str = "adamw"
    master_weights: str | None = None
    float8: str | None = None
    optimizer_in_backward: bool = False
    grad_scaler: bool = False
    micro_batches: int = 1
    lora: int | None = None
    lora_targets: tuple[str, ...] | None = None
    lora_dtype: str | None = None
    lora_dropout: float = 0.0
    four_bit: str | None = None
    tf32: bool = False
    compile: str | None = None
    tensor_parallel: int = 1
    hold_output: bool = False
    cudnn_attention: bool = True

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

    @property
    def folder_part(self) -> str:
        """What names of traces say of the GPUs that share the model; empty for one.

        >>> TrainingOptions(tensor_parallel=4).folder_part
        '-dtensor4'
        """
        return f"-dtensor{self.tensor_parallel}" if self.tensor_parallel > 1 else ""

    def adapters(self, family: str) -> Lora | None:
        """What is adapted in a model of this family; None if all weights are trained.

        >>> TrainingOptions(lora=8).adapters("t5").targets
        ('q', 'v')
        """
        if self.lora is None:
            return None
        targets = self.lora_targets or DEFAULT_TARGETS.get(family, ("q_proj", "v_proj"))
        return Lora(self.lora, targets, self.lora_dtype or "float32", self.lora_dropout)

    def problems(self, family: str, batch: int) -> list[Problem]:
        """What is wrong with the values, and what a model of this family or this batch does not support."""
        problems = [
            Problem("", place, f"unknown value {value!r}", did_you_mean(value, known))
            for place, value, known in (
                ("dtype", self.dtype, list(DTYPES)),
                ("autocast", self.autocast, list(AUTOCASTS)),
                ("attention", self.attention, [str(each) for each in AttentionForm]),
                ("loss", self.loss, [str(each) for each in LossForm]),
                ("master_weights", self.master_weights, [str(each) for each in MasterForm]),
                ("float8", self.float8, [str(each) for each in Float8Form]),
                ("four_bit", self.four_bit, [str(each) for each in FourBitForm]),
                ("optimizer", self.optimizer, [str(each) for each in Optimizer]),
                ("compile", self.compile, [str(each) for each in CompileForm]),
            )
            if value is not None and value not in known
        ]
        problems += self._problems_of_scaler()
        problems += self._problems_of_updates()
        if self.master_weights is not None and (self.dtype != "bfloat16" or self.lora is not None):
            trained = "LoRA's adapters" if self.lora is not None else f"weights of {self.dtype}"
            what = f"float32 copies of {trained} are not modelled"
            problems.append(Problem("", "master_weights", what, "give bfloat16 weights, all trained, or leave it out"))
        if self.lora is not None and self.lora < 1:
            problems.append(Problem("", "lora", f"{self.lora} is not a rank", "give at least 1"))
        if self.lora is not None and family == "gpt2":
            problems.append(Problem("", "lora", "LoRA of GPT-2's Conv1D layers is not modelled", "leave it out"))
        if self.lora_dtype not in (None, "float32", self.dtype):
            what = f"adapters of {self.lora_dtype} next to weights of {self.dtype} are not modelled"
            problems.append(Problem("", "lora_dtype", what, f"give float32 or {self.dtype}"))
        if self.lora_dtype is not None and self.lora is None:
            what = "is the number format of LoRA's adapters, and LoRA is off"
            problems.append(Problem("", "lora_dtype", what, "give the rank of LoRA, or leave it out"))
        if not 0 <= self.lora_dropout < 1:
            problems.append(Problem("", "lora_dropout", f"{self.lora_dropout} is no rate", "give at least 0, below 1"))
        if self.lora_dropout and self.lora is None:
            what = "drops values of the input of LoRA's adapters, and LoRA is off"
            problems.append(Problem("", "lora_dropout", what, "give the rank of LoRA, or leave it out"))
        if self.four_bit is not None and (self.lora is None or self.products == "float32"):
            what = "stores frozen layers next to LoRA's adapters, and makes them in half precision for each product"
            remedy = "give the rank of LoRA, and dtype bfloat16 or autocast, or leave it out"
            problems.append(Problem("", "four_bit", what, remedy))
        if self.micro_batches < 1 or batch % self.micro_batches:
            what = f"a batch of {batch} cannot be split into {self.micro_batches} equal micro-batches"
            problems.append(Problem("", "micro_batches", what, "give a divisor of the batch"))
        return problems

    def _problems_of_updates(self) -> Iterator[Problem]:
        """What updates within backward do not support."""
        others = (
            ("needs the whole gradient, which several micro-batches add up", self.micro_batches > 1),
            ("comes before GradScaler unscales gradients", self.grad_scaler),
            ("with float32 copies of the weights is not modelled", self.master_weights),
        )
        for why, given in others:
            if self.optimizer_in_backward and given:
                yield Problem("", "optimizer_in_backward", why, "leave out one of the two")

    def _problems_of_scaler(self) -> Iterator[Problem]:
        """What scaling gradients does not support."""
        if self.grad_scaler and self.autocast != "float16":
            what = "gradients are scaled for float32 weights under autocast to float16"
            yield Problem("", "grad_scaler", what, "give autocast float16, or leave it out")
        if self.grad_scaler and self.optimizer == Optimizer.ADAMW_FUSED:
            what = "fused AdamW, which unscales gradients itself, is not modelled"
            yield Problem("", "grad_scaler", what, "give the optimizer adamw")

    def problems_of_loss(self, decoder: Decoder) -> Iterator[Problem]:
        """What the form of the loss does not support."""
        if self.loss == LossForm.FUSED and not has_fused_loss(decoder):
            what = f"Liger-Kernel 0.8.2 has no fused loss for {decoder.family}"
            yield Problem("", "loss", what, "give eager" if decoder.logits_by is not None else "give eager or chunked")
        if self.loss == LossForm.CHUNKED_COMPILED and self.autocast is not None:
            what = "compiled chunks are those of torchtune, which has no autocast, and are not modelled under it"
            yield Problem("", "loss", what, "give eager, chunked or fused, or no autocast")
        if self.loss in IN_CHUNKS and (decoder.capped_logits or decoder.logits_by is not None):
            changed = "limited" if decoder.capped_logits else "scaled"
            what = f"the chunked loss with the {changed} logits of {decoder.family} is not modelled"
            yield Problem("", "loss", what, "give eager or fused" if has_fused_loss(decoder) else "give eager")

    def problems_of_compiled(self, decoder: Decoder, gpu: GpuSpec) -> Iterator[Problem]:
        """What compiled graphs do not support."""
        if self.compile is None:
            return
        if gpu.architecture in _BEFORE_TRITON:
            what = f"TorchInductor generates no code for {gpu.name}, whose architecture came before Volta"
            yield Problem("", "compile", what, "give a GPU such as v100-pcie4, a100 or h100, or leave it out")
        if decoder.has_sinks:
            what = "attention with sinks, and experts, whose numbers of tokens end a graph, are not modelled"
            yield Problem("", "compile", what, "leave it out")
            return
        if decoder.is_later:
            what = f"the mask of {decoder.family} in transformers 4.55, for which a graph ends, is not modelled"
            yield Problem("", "compile", what, "leave it out")
        others = (
            ("attention", "attention other than PyTorch's fused operator", "give sdpa", self.attention != "sdpa"),
            ("float8", "float8", "leave out one of them, or give tensorwise-compiled alone", self.float8),
        )
        for place, what, remedy, given in others:
            if given:
                yield Problem("", place, f"{what} in graphs of torch.compile is not modelled", remedy)
        if decoder.family == "stablelm" and decoder.head_norms is not None:
            what = "normalized queries and keys of StableLM in graphs of torch.compile are not modelled"
            yield Problem("", "compile", what, "leave it out")
        if decoder.experts is not None:
            why = "" if decoder.family == "llama4_text" else ", whose numbers of tokens end a graph,"
            what = f"experts{why} are not modelled"
            yield Problem("", "compile", what, "leave it out")
        if self.compile == CompileForm.MODEL and self.loss != LossForm.EAGER:
            what = f"the compiled model computes its loss itself, and the {self.loss} loss is outside of it"
            yield Problem("", "loss", what, "give eager, or compile layers")

    def problems_of_family(self, decoder: Decoder, fused: str | None) -> Iterator[Problem]:
        """What the attention and the experts of a family do not support. fused: its operator; None for none."""
        if decoder.is_later and self.attention in OF_PACKAGE:
            what = f"the package flash-attn as transformers 4.55 calls it for this {decoder.family} is not modelled"
            yield Problem("", "attention", what, "give eager" if decoder.has_sinks else "give sdpa or eager")
        if decoder.has_sinks and self.attention == AttentionForm.SDPA:
            what = f"transformers has no sdpa attention of {decoder.family}, whose scores include those of sinks"
            yield Problem("", "attention", what, "give eager")
        elif decoder.is_later and decoder.groups > 1 and fused == "efficient" and self.attention == AttentionForm.SDPA:
            what = "PyTorch has no fused attention of query heads that share keys"
            where = f"for {self.products} on this GPU, and transformers 4.55 does not repeat the keys"
            yield Problem("", "attention", f"{what} {where}", "give eager, or bfloat16 on an Ampere GPU or a later one")
        if decoder.value_width != decoder.head_width and self.attention == AttentionForm.FLASH3:
            what = f"FlashAttention-3 with values of another width than queries, as {decoder.family}'s, is not modelled"
            yield Problem("", "attention", what, "give sdpa or flash_attention_2")
        is_grouped = decoder.experts is not None and decoder.experts.groups is not None
        if is_grouped and self.four_bit is not None and self.autocast is not None:
            what = "under autocast gives experts float32 results, which PyTorch does not add to sums in half precision"
            yield Problem("", "four_bit", what, "give dtype bfloat16 instead of autocast")

    def problems_of_float8(self, decoder: Decoder, tokens: int, gpu: GpuSpec) -> Iterator[Problem]:
        """What linear layers in float8 do not support. tokens: of a micro-batch."""
        if self.float8 is None:
            return
        if problem := without_float8(gpu):
            yield Problem("", "float8", problem, "give a GPU such as rtx4090, l40s or h100, or leave it out")
        if decoder.family == "gpt2":
            what = "torchao converts torch.nn.Linear, which GPT-2's Conv1D layers are not"
            yield Problem("", "float8", what, "leave it out")
        if decoder.experts is not None:
            is_linear = decoder.family not in ("llama4_text", "gpt_oss")
            why = ", whose numbers of tokens are not multiples of 16," if is_linear else ""
            what = f"float8 of experts{why} is not modelled"
            yield Problem("", "float8", what, "leave it out")
        if self.lora is not None:
            what = "float8 of frozen layers next to LoRA's adapters is not modelled"
            yield Problem("", "float8", what, "leave it out")
        if tokens % 16:
            what = f"{tokens} tokens of a micro-batch are not a multiple of 16, which products in float8 need"
            yield Problem("", "length", what, "give another batch or length, or leave float8 out")

    def problems_of_plain(self, family: str) -> list[Problem]:
        """What a family that knows none of the options of decoders alone does not support."""
        chosen = (
            ("loss", f"the {self.loss} loss", self.loss != LossForm.EAGER),
            ("master_weights", "training with float32 copies of the weights", self.master_weights),
            ("float8", "float8", self.float8),
            ("four_bit", "weights in four bits", self.four_bit),
            ("grad_scaler", "scaling of gradients", self.grad_scaler),
            ("compile", "torch.compile", self.compile),
            ("tensor_parallel", "tensor parallelism", self.tensor_parallel != 1),
        )
        return [
            Problem("", place, f"{what} is modelled for decoders only, not for {family}", "leave it out")
            for place, what, value in chosen
            if value
        ]

    def flash(self, gpu: GpuSpec) -> FlashVersion:
        """The version of flash attention: that of the package flash-attn, or that of PyTorch's operator."""
        return FlashVersion.THREE if self.attention == AttentionForm.FLASH3 else FlashVersion.TWO

    def problems_of_fused(self, fused: str | None, gpu: GpuSpec, width: int) -> Iterator[Problem]:
        """What fused attention of heads of this width does not support. fused: its operator; None for none."""
        if gpu.architecture is None:  # which the time model asks for
            return
        if self.attention in OF_PACKAGE and fused != "flash":
            what = f"{gpu.name} has no {self.attention} for {self.products} and heads of {width} values"
            yield Problem("", "attention", what, "give sdpa, or another number format or GPU")
        elif fused is None:
            what = f"{gpu.name} has no fused attention for {self.products} and heads of {width} values"
            yield Problem("", "attention", what, "give eager where the model has it, or another number format or GPU")
        elif problem := without_flash(gpu, self.flash(gpu)):
            yield Problem("", "attention", problem, "give flash_attention_2, or a GPU such as h100")

    @property
    def _four_bit_package(self) -> str:
        """The version of bitsandbytes, and what it keeps where it is compiled."""
        if self.compile is None:
            return "bitsandbytes 0.43"
        return "bitsandbytes 0.46, of which a compiled graph keeps the matrices in half precision for backward"

    def described(self, family: str) -> str:
        """A sentence for notes, without its full stop."""
        parts = [_ATTENTIONS.get(AttentionForm(self.attention), f"{self.attention} attention")]
        if not self.cudnn_attention:
            parts.append("without cuDNN's attention")
        if self.loss != LossForm.EAGER:
            parts.append(_LOSSES[LossForm(self.loss)])
        if self.compile is not None:
            parts.append(_COMPILED[CompileForm(self.compile)])
        if self.autocast is not None:
            parts.append(f"autocast to {self.autocast}")
        if self.tf32:
            parts.append("float32 products in TF32")
        if self.float8 is not None:
            parts.append(_FLOAT8[Float8Form(self.float8)])
        if self.grad_scaler:
            parts.append("gradients scaled by torch.amp.GradScaler, all finite")
        if self.master_weights is not None:
            parts.append(_MASTERS[MasterForm(self.master_weights)])
        if (lora := self.adapters(family)) is not None:
            targets = ", ".join(lora.targets)
            drops = f"dropout of {lora.dropout:g}" if lora.dropout else "without dropout"
            parts.append(f"LoRA of rank {lora.rank} on {targets}, in {lora.dtype} and {drops}, all else frozen")
        if self.four_bit is not None:
            parts.append(
                f"linear layers but that of the logits in four bits ({self.four_bit}) as {self._four_bit_package}"
            )
        if self.tensor_parallel > 1:
            parts.append(f"the part of one of {self.tensor_parallel} GPUs, tensor and sequence parallel")
        if self.micro_batches > 1:
            parts.append(f"gradients accumulated over {self.micro_batches} micro-batches")
        when = ", each weight in backward" if self.optimizer_in_backward else ""
        return f"{', '.join(parts)}, updated by {UPDATES[Optimizer(self.optimizer)]}{when}"


def size_problems(least: int = 1, **sizes: int) -> list[Problem]:
    """What is wrong with numbers of samples, tokens and pixels, by name. least: the smallest one that is supported.

    >>> [problem.place for problem in size_problems(batch=0, length=8)]
    ['batch']
    """
    return [
        Problem("", place, f"{value} is not a number from {least} to {_MOST}", f"give at least {least}")
        for place, value in sizes.items()
        if not least <= value <= _MOST
    ]
