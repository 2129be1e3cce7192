"""Traces of decoders in scenario files: a Hugging Face configuration, modelled at a batch and a length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from simgpu.hardware.spec import GpuSpec
from simgpu.io.schema import FileModel
from simgpu.trace.model import Trace
from simgpu.workloads.decoders.config import decoder_of, read_decoder
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.decoders.modelled import decoder_iteration
from simgpu.workloads.decoders.options import TrainingOptions

#: The key that distinguishes such a trace from a network of the zoo.
DECODER = "decoder"


def _path_or_keys(value: object) -> object:
    if (isinstance(value, str) and value) or isinstance(value, dict):
        return value
    raise ValueError(f"{value!r} is neither a file nor the keys of a configuration: write a config.json")


class ModelledDecoder(FileModel):
    """One training iteration of a decoder-only transformer; the keys are those of ``simgpu zoo build``."""

    decoder: Annotated[str | dict[str, Any], BeforeValidator(_path_or_keys)] = Field(
        description="its config.json, or the folder of it, relative to this file; or the keys of that file"
    )
    name: str | None = Field(default=None, min_length=1, description="of the model; by default that of the folder")
    batch: int = Field(default=1, ge=1, description="samples in the iteration")
    length: int = Field(ge=1, description="tokens of each sample")
    gpu: str | None = Field(
        default=None, min_length=1, description="the node whose GPU it is modelled for; by default the file's node"
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        default=None, description="number format of weights; by default bfloat16, and float32 with autocast"
    )
    autocast: Literal["bfloat16", "float16"] | None = Field(
        default=None, description="lower precision of torch.autocast for forward and loss; none by default"
    )
    attention: Literal["sdpa", "eager"] = Field(default="sdpa", description="PyTorch's fused operator, or products")
    loss: Literal["eager", "chunked", "fused"] = Field(
        default="eager", description="all logits at once, in 8 chunks (torchtune), or fused with the output layer"
    )
    grad_scaler: bool = Field(default=False, description="torch.amp.GradScaler, with autocast to float16")
    master_weights: Literal["copied", "main-grad"] | None = Field(
        default=None, description="float32 copies of weights; gradients copied too, or added up in float32"
    )
    optimizer: Literal["sgd", "plain-sgd", "adam", "adamw", "adamw-fused", "adamw-8bit"] = Field(
        default="adamw", description="optimizer of the weights"
    )

    def model(self, base: Path | None) -> Decoder:
        """The decoder. base: folder of relative paths. Raises the errors of `read_decoder`."""
        if isinstance(self.decoder, Mapping):
            decoder = decoder_of(self.decoder)
        else:
            decoder = read_decoder((base or Path()) / self.decoder)
        return decoder if self.name is None else replace(decoder, name=self.name)

    def trace(self, base: Path | None, gpu: GpuSpec, gpu_name: str) -> Trace:
        """The trace, named like the folder that ``simgpu zoo build`` would write. An `InputError` names keys."""
        decoder = self.model(base)
        built = decoder_iteration(
            decoder,
            batch=self.batch,
            length=self.length,
            gpu=gpu,
            options=TrainingOptions.of(self.model_dump(include=set(TrainingOptions.__dataclass_fields__))),
        )
        return replace(built.trace, name=f"{decoder.name}-b{self.batch}-t{self.length}-{gpu_name}")
