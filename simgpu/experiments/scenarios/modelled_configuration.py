"""Traces of models in scenario files: a Hugging Face configuration, modelled at a batch and sizes of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from simgpu.errors import InputError
from simgpu.former_names import TRACE_KEYS
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.io.schema import FileModel
from simgpu.trace.model import Trace
from simgpu.workloads.configured.config import Model, model_of, read_model
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of
from simgpu.workloads.configured.options import TrainingOptions
from simgpu.workloads.megatron.entry import megatron_of
from simgpu.workloads.megatron.layout import folder_part

#: The key that distinguishes such a trace from a network of the zoo.
MODEL = "model"


def is_modelled_configuration(written: Mapping[str, object]) -> bool:
    """Whether a trace in a file is such a model; also under the key's former name, whose error names today's.

    >>> is_modelled_configuration({"model": "config.json"}), is_modelled_configuration({"zoo": "vgg16"})
    (True, False)
    """
    return not written.keys().isdisjoint({MODEL, *TRACE_KEYS})


def _path_or_keys(value: object) -> object:
    if (isinstance(value, str) and value) or isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is neither a file nor the keys of a configuration: write a config.json")


class ModelledConfiguration(FileModel):
    """One training iteration of a transformer or a U-Net; the keys are those of ``simgpu zoo build``."""

    model: Annotated[str | dict[str, Any], BeforeValidator(_path_or_keys)] = Field(
        description="its config.json, or the folder of it, relative to this file; or the keys of that file"
    )
    name: str | None = Field(
        default=None, min_length=1, description="of the model; by default that of the file, or of its folder"
    )
    batch: int = Field(default=1, ge=1, description="samples in the iteration")
    length: int | None = Field(default=None, ge=1, description="tokens of each sample; not for DiT; of a U-Net's text")
    target_length: int | None = Field(
        default=None, ge=1, description="tokens of the labels of each sample of T5; by default as many as its own"
    )
    sample_size: int | None = Field(
        default=None, ge=1, description="side of a U-Net's latent images; by default that of its configuration"
    )
    gpu: str | None = Field(
        default=None, min_length=1, description="the node whose GPU it is modelled for; by default the file's node"
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        default=None, description="number format of weights; by default bfloat16, and float32 with autocast"
    )
    autocast: Literal["bfloat16", "float16"] | None = Field(
        default=None, description="lower precision of torch.autocast for forward and loss; none by default"
    )
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] | None = Field(
        default=None,
        description="PyTorch's fused operator, products, or the package flash-attn; by default sdpa, and eager for T5 "
        "and GPT-OSS",
    )
    tf32: bool = Field(default=False, description="float32 products in TF32")
    compile: Literal["layers", "model"] | None = Field(
        default=None, description="what of a decoder torch.compile compiles: each layer, or the model with its loss"
    )
    float8: Literal["tensorwise", "tensorwise-compiled"] | None = Field(
        default=None, description="linear layers of a decoder in float8, as torchao's recipe; none by default"
    )
    loss: Literal["eager", "chunked", "chunked-compiled", "fused"] = Field(
        default="eager", description="all logits at once, in 8 chunks (torchtune), or fused with the output layer"
    )
    optimizer_in_backward: bool = Field(
        default=False, description="each weight is updated in backward, and its gradient freed, as torchtune does"
    )
    grad_scaler: bool = Field(default=False, description="torch.amp.GradScaler, with autocast to float16")
    master_weights: Literal["copied", "main-grad"] | None = Field(
        default=None, description="float32 copies of weights; gradients copied too, or added up in float32"
    )
    micro_batches: int = Field(default=1, ge=1, description="equal parts of the batch before one optimizer step")
    tensor_parallel: int = Field(
        default=1, ge=1, description="GPUs of the node that share each layer of a decoder, of which one is modelled"
    )
    hold_output: bool = Field(
        default=False, description="the loop holds what the model returns, such as logits; by default the loss alone"
    )
    cudnn_attention: bool = Field(
        default=True,
        description="PyTorch's fused attention may be cuDNN's on Hopper and Blackwell, as from 2.11 on",
    )
    lora: int | None = Field(default=None, ge=1, description="rank of LoRA's adapters, which alone are trained")
    lora_targets: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        description="with lora: linear layers that are adapted, or [all-linear]; default the family's",
    )
    lora_dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        default=None,
        description="with lora: number format of the adapters, float32 or that of weights; default float32",
    )
    lora_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with lora: rate at which values of an adapter's input are dropped, as peft's",
    )
    four_bit: Literal["nf4", "nf4-double"] | None = Field(
        default=None, description="with lora: frozen linear layers of a decoder in four bits, as bitsandbytes; QLoRA"
    )
    optimizer: Literal["sgd", "plain-sgd", "adam", "adamw", "adamw-fused", "adamw-8bit"] = Field(
        default="adamw", description="optimizer of the weights"
    )

    megatron: str | None = Field(
        default=None,
        min_length=1,
        description="one GPU of a job of Megatron-LM, as tp4,cp2,pp2,dp2 or ep8,etp1,dp8: GPUs for layers, tokens, "
        "stages, experts, each expert, the batch",
    )
    stage: int | None = Field(
        default=None, ge=0, description="with megatron: stage of the pipeline; by default the first"
    )

    def described_model(self, base: Path | None) -> Model:
        """What the configuration describes. base: folder of relative paths. Raises the errors of `read_model`."""
        if isinstance(self.model, Mapping):
            try:
                return model_of(self.model, "")
            except InputError as error:
                raise InputError(replace(each, place=f"model.{each.place}") for each in error.problems) from None
        return read_model((base or Path()) / self.model)

    def needs(self, node: NodeSpec) -> NodeSpec | GpuSpec:
        """What of the node decides the trace: its GPU, or also its links."""
        return node.gpu if self.megatron is None and self.tensor_parallel == 1 else node

    def trace(self, base: Path | None, node: NodeSpec, node_name: str) -> Trace:
        """The trace, named like the folder that ``simgpu zoo build`` would write. An `InputError` names keys."""
        model = self.described_model(base)
        sizes = SampleSizes(**self.model_dump(include=set(SampleSizes.__dataclass_fields__)))
        options = options_of(model, self.model_dump(include=set(TrainingOptions.__dataclass_fields__)))
        if self.megatron is not None:
            layout, batch = self.megatron, self.batch
            built = megatron_of(model, sizes, layout, self.stage, batch=batch, node=node, options=options)
        elif self.stage is not None:
            raise InputError.single("", "stage", "is that of a pipeline of megatron", "leave it out")
        else:
            built = model_iteration(model, sizes, batch=self.batch, gpu=node.gpu, options=options, node=node)
        of_layout = None if self.megatron is None else folder_part(self.megatron, self.stage)
        name, part = self.name or model.name, of_layout or options.folder_part
        return replace(
            built.trace,
            info=replace(built.trace.info, model=name),
            name=f"{name}-b{self.batch}{sizes.described()}{part}-{node_name}",
        )
