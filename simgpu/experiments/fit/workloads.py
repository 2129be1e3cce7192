"""The models of `fit`: a model from its configuration, a network of the zoo, or a trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.io.shipped import shipped_names
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.workloads.catalogue import NETWORKS, build
from simgpu.workloads.decoders.config import Model, read_model
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.decoders.encoder_decoder import EncoderDecoder
from simgpu.workloads.decoders.modelled import DecoderIteration, decoder_iteration
from simgpu.workloads.decoders.modelled_dit import diffusion_iteration
from simgpu.workloads.decoders.modelled_t5 import encoder_decoder_iteration
from simgpu.workloads.decoders.options import AttentionForm, LossForm, TrainingOptions, has_fused_loss
from simgpu.workloads.modelled import trace_of
from simgpu.workloads.rescale.entry import at_batch

_ZOO = "zoo:"
#: What a configured model is trained with by default: what Transformers and PyTorch do.
_OF_A_CONFIGURATION = {"optimizer": "adamw", "dtype": "bfloat16"}
#: What else can be chosen for a decoder.
_OF_A_DECODER = {"attention": "sdpa", "lora": None, "lora_targets": None}
#: T5 has no other attention in transformers 4.51.
_OF_T5 = {"attention": AttentionForm.EAGER}
#: Longest samples that are searched where a model has no position table.
MOST_TOKENS = 2**30


class Workload(Protocol):
    """Training iterations of one model at any size."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """How it is modelled by default, by name."""
        ...

    @property
    def longest(self) -> int | None:
        """The most tokens per sample that the model was made for; None if its samples have no length."""
        ...

    @property
    def own_batch(self) -> int | None:
        """The batch of a recording; None if any batch is modelled."""
        ...

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration. Raises `InputError` for sizes and options that it does not support."""
        ...


@dataclass(frozen=True)
class ConfiguredWorkload:
    """A transformer from its configuration: a decoder, T5, or a diffusion transformer."""

    model: Model
    name: str
    options: Mapping[str, Any]
    own_batch: None = None

    @classmethod
    def of(cls, path: Path, given: Mapping[str, Any]) -> ConfiguredWorkload:
        """The model of a file, or of that in a folder, trained with these options, by default `_OF_A_CONFIGURATION`."""
        model = read_model(path)
        one_of_several = path.is_file() and path.name != "config.json" and model.name == path.absolute().parent.name
        if given.get("lora_targets") and not given.get("lora"):
            raise InputError.single("", "lora_targets", "names layers for LoRA, which is off", "give the rank of LoRA")
        default = dict(_OF_A_CONFIGURATION)
        if given.get("autocast") is not None:
            default["dtype"] = "float32"  # of weights under autocast
        if isinstance(model, Decoder):
            default |= _OF_A_DECODER
            if has_fused_loss(model) and given.get("autocast") is None:  # which Liger-Kernel's does not support
                default["loss"] = LossForm.EAGER.value
        chosen = {**default, **given}
        if isinstance(model, EncoderDecoder) and chosen.get("attention") == AttentionForm.EAGER:
            del chosen["attention"]  # nothing can be tried instead
        return cls(model, path.stem if one_of_several else model.name, chosen)

    @property
    def longest(self) -> int | None:
        """The positions of its configuration; of T5, whose positions are relative, any. None for latent images."""
        if isinstance(self.model, Decoder):
            return min(self.model.positions, MOST_TOKENS)
        return MOST_TOKENS if isinstance(self.model, EncoderDecoder) else None

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration, as `simgpu zoo build` models it."""
        return self._iteration(batch, length or 0, gpu, options).trace

    def _iteration(self, batch: int, length: int, gpu: GpuSpec, options: Mapping[str, Any]) -> DecoderIteration:
        model, training = self.model, TrainingOptions.of(options)
        if isinstance(model, Decoder):
            return decoder_iteration(model, batch=batch, length=length, gpu=gpu, options=training)
        if isinstance(model, EncoderDecoder):
            training = TrainingOptions.of({**_OF_T5, **options})
            return encoder_decoder_iteration(model, batch=batch, length=length, gpu=gpu, options=training)
        return diffusion_iteration(model, batch=batch, gpu=gpu, options=training)


@dataclass(frozen=True)
class ZooWorkload:
    """A network of the zoo."""

    name: str
    options: Mapping[str, Any]
    longest: None = None
    own_batch: None = None

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration, as `simgpu zoo build` models it."""
        return trace_of(build(self.name), batch=batch, gpu=gpu, optimizer=str(options["optimizer"]))


@dataclass(frozen=True)
class TraceWorkload:
    """A recorded or imported iteration; other batches are derived from it. Its times are those of its own device."""

    recorded: Trace
    longest: None = None

    @property
    def name(self) -> str:
        """The trace's name."""
        return self.recorded.name or self.recorded.info.model

    @property
    def options(self) -> Mapping[str, Any]:
        """None: what was recorded is fixed."""
        return {}

    @property
    def own_batch(self) -> int:
        """The batch that was recorded."""
        return self.recorded.info.batch

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """The iteration at a batch."""
        return at_batch(self.recorded, batch)


def workload_of(model: str | Path | Trace, options: Mapping[str, Any]) -> Workload:
    """The workload that a user names: a `config.json` or its folder, a network of the zoo, or a trace.

    options: how it is modelled, fields of `TrainingOptions`; None for the default.
    Raises `InputError` for an unknown model, for one that cannot be read, and for options that do not apply to it.

    >>> workload_of("resnet50", {}).options
    {'optimizer': 'sgd'}
    >>> workload_of("resnet50", {"dtype": "float16"})
    Traceback (most recent call last):
    simgpu.errors.InputError: dtype: applies to configurations, not to a network of the zoo; leave it out
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(model, Trace):
        _refuse(given, given, "a trace")
        return TraceWorkload(model)
    name, path = str(model).removeprefix(_ZOO), Path(model)
    if name in NETWORKS and not path.exists():
        _refuse(given, given.keys() - {"optimizer"}, "a network of the zoo")
        return ZooWorkload(name, {"optimizer": "sgd", **given})
    if name in shipped_names("traces") or (path / "trace.yaml").is_file():
        _refuse(given, given, "a trace")
        return TraceWorkload(load_trace(name))
    if name.endswith(".json") or os.sep in name or path.is_dir():
        return ConfiguredWorkload.of(path, given)
    known = [*NETWORKS, *shipped_names("traces")]
    remedy = f"{did_you_mean(name, known)}; or give a config.json, its folder, or a trace folder"
    raise InputError.single("", "MODEL", f"there is no model {name!r}", remedy)


def _refuse(given: Mapping[str, Any], names: Iterable[str], what: str) -> None:
    """Raises `InputError` for options that apply to configurations alone, or to no trace."""
    problems = [
        Problem(
            "",
            name,
            f"applies to {'configurations' if name != 'optimizer' else 'modelled iterations'}, not to {what}",
            "leave it out",
        )
        for name in given
        if name in set(names)
    ]
    if problems:
        raise InputError(problems)
