"""`model_iteration` models one training iteration of any model that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.workloads.configured.config import Model
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.encoder_decoder import EncoderDecoder
from simgpu.workloads.configured.modelled import ModelledIteration, decoder_iteration
from simgpu.workloads.configured.modelled_diffusion import TEXT_LENGTH, diffusion_iteration
from simgpu.workloads.configured.modelled_t5 import encoder_decoder_iteration
from simgpu.workloads.configured.options import AttentionForm, TrainingOptions
from simgpu.workloads.configured.unet_config import UNet

#: Longest samples where a model has no table of positions, or a longer one.
MOST_TOKENS = 2**30


@dataclass(frozen=True, slots=True)
class SampleSizes:
    """Sizes of each sample; None for a model's own.

    length: tokens; of a U-Net's text, by default `TEXT_LENGTH`. target_length: tokens of T5's labels, by default as
    many. sample_size: side of a U-Net's latent image.
    """

    length: int | None = None
    target_length: int | None = None
    sample_size: int | None = None

    def described(self) -> str:
        """For the names of traces, as ``-t2048``; empty for a model's own sizes."""
        parts = (("t", self.length), ("l", self.target_length), ("s", self.sample_size))
        return "".join(f"-{letter}{value}" for letter, value in parts if value is not None)

    def texts(self) -> tuple[str, ...]:
        """What is given besides the length, for people.

        >>> SampleSizes(length=512, target_length=64, sample_size=96).texts()
        ('64 tokens of labels', 'latent images of 96 x 96')
        """
        labels = () if self.target_length is None else (f"{self.target_length:,} tokens of labels",)
        images = () if self.sample_size is None else (f"latent images of {self.sample_size} x {self.sample_size}",)
        return (*labels, *images)


def has_length(model: Model) -> bool:
    """Whether the samples of a model need a length: those of a DiT or a U-Net are images."""
    return isinstance(model, Decoder | EncoderDecoder)


def longest(model: Model) -> int | None:
    """The most tokens per sample: a decoder's positions; `MOST_TOKENS` for T5, whose positions are relative.

    None if samples are images.
    """
    if isinstance(model, Decoder):
        return min(model.positions, MOST_TOKENS)
    return MOST_TOKENS if isinstance(model, EncoderDecoder) else None


def is_only_eager(model: Model) -> bool:
    """Whether transformers has no attention of a model but eager attention: T5's, and that with sinks.

    >>> from simgpu.workloads.configured.config import model_of
    >>> [is_only_eager(model_of({"model_type": family})) for family in ("t5", "gpt_oss", "llama")]
    [True, True, False]
    """
    return isinstance(model, EncoderDecoder) or (isinstance(model, Decoder) and model.has_sinks)


def options_of(model: Model, given: Mapping[str, Any]) -> TrainingOptions:
    """The options of training, by name; None for the model's default. See `TrainingOptions.of`."""
    if is_only_eager(model) and given.get("attention") is None:
        return TrainingOptions.of({**given, "attention": AttentionForm.EAGER.value})
    return TrainingOptions.of(given)


def model_iteration(
    model: Model,
    sizes: SampleSizes,
    *,
    batch: int,
    gpu: GpuSpec,
    options: TrainingOptions,
    node: NodeSpec | None = None,
) -> ModelledIteration:
    """One training iteration, with the kernels that PyTorch runs for the model's module.

    node: where the GPUs of tensor parallelism are; None for a GPU alone.
    Raises `InputError` for sizes that the model needs, or does not have, and as the functions for each kind do.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.configured.config import model_of
    >>> model_iteration(model_of({"model_type": "t5"}), SampleSizes(), batch=1, gpu=load_node("h100").gpu,
    ...     options=TrainingOptions(attention="eager"))
    Traceback (most recent call last):
    simgpu.errors.InputError: length: is missing; give the number of tokens per sample, as 2048
    """
    problems = unsuitable(model, sizes)
    if problems:
        raise InputError(problems)
    if isinstance(model, Decoder | EncoderDecoder):
        assert sizes.length is not None
        if isinstance(model, Decoder):
            return decoder_iteration(model, batch=batch, length=sizes.length, gpu=gpu, options=options, node=node)
        target = sizes.target_length
        return encoder_decoder_iteration(
            model, batch=batch, length=sizes.length, target_length=target, gpu=gpu, options=options
        )
    if isinstance(model, UNet) and sizes.sample_size is not None:
        model = replace(model, side=sizes.sample_size)
    length = TEXT_LENGTH if sizes.length is None else sizes.length
    return diffusion_iteration(model, batch=batch, length=length, gpu=gpu, options=options)


def unsuitable(model: Model, sizes: SampleSizes) -> list[Problem]:
    """What the model needs and is missing, or does not have; places are the fields of `SampleSizes`."""
    problems = []
    if has_length(model) and sizes.length is None:
        problems.append(Problem("", "length", "is missing", "give the number of tokens per sample, as 2048"))
    if not has_length(model) and not isinstance(model, UNet) and sizes.length is not None:
        what = "does not apply to a diffusion transformer, whose sample_size decides it"
        problems.append(Problem("", "length", what, "leave it out"))
    if not isinstance(model, UNet) and sizes.sample_size is not None:
        problems.append(Problem("", "sample_size", "applies to U-Nets only", "leave it out"))
    if not isinstance(model, EncoderDecoder) and sizes.target_length is not None:
        what = "applies to T5 only, whose labels have a length of their own"
        problems.append(Problem("", "target_length", what, "leave it out"))
    return problems
