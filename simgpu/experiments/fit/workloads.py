"""The models of `fit`: a model from its configuration, a network of the zoo, or a trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.io.shipped import shipped_names
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.workloads.catalogue import NETWORKS, build
from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.configured.config import Model, read_model
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.entry import (
    SampleSizes,
    is_only_eager,
    longest,
    model_iteration,
    options_of,
    unsuitable,
)
from simgpu.workloads.configured.options import LossForm, has_fused_loss
from simgpu.workloads.modelled import trace_of
from simgpu.workloads.rescale.entry import at_batch

_ZOO = "zoo:"
#: Fields of `SampleSizes` that are not searched.
_SIZES = ("target_length", "sample_size")
_OWN_SIZES = SampleSizes()
#: What a configured model is trained with by default, but for attention and loss: what Transformers and PyTorch do.
_USUAL = {
    "optimizer": "adamw",
    "optimizer_in_backward": False,
    "dtype": "bfloat16",
    "lora": None,
    "lora_targets": None,
}


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

    @property
    def sizes(self) -> SampleSizes:
        """Sizes of each sample that were given and are not searched."""
        ...

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration. Raises `InputError` for sizes and options that it does not support."""
        ...


@dataclass(frozen=True)
class ConfiguredWorkload:
    """A model from its configuration: a transformer or a U-Net."""

    model: Model
    name: str
    options: Mapping[str, Any]
    own_batch: None = None
    sizes: SampleSizes = _OWN_SIZES

    @classmethod
    def of(cls, path: Path, options: Mapping[str, Any]) -> ConfiguredWorkload:
        """The model of a file, or of that in a folder, trained with these options, by default `_USUAL`."""
        model, given = read_model(path), dict(options)
        sizes = SampleSizes(**{name: given.pop(name) for name in _SIZES if name in given})
        if problems := [each for each in unsuitable(model, sizes) if each.place in _SIZES]:
            raise InputError(problems)
        if given.get("lora_targets") and not given.get("lora"):
            raise InputError.single("", "lora_targets", "names layers for LoRA, which is off", "give the rank of LoRA")
        usual: dict[str, object] = dict(_USUAL)
        if given.get("autocast") is not None:
            usual["dtype"] = "float32"  # of weights under autocast
        if not is_only_eager(model):
            usual["attention"] = options_of(model, {}).attention
        has_own_loss = given.get("compile") == CompileForm.MODEL  # in the graph
        if isinstance(model, Decoder) and has_fused_loss(model) and not has_own_loss:
            usual["loss"] = LossForm.EAGER.value
        if isinstance(model, Decoder) and given.get("dtype", usual["dtype"]) != "float32":
            usual["four_bit"] = None  # what is packed is made in half precision
        return cls(model, model.name, {**usual, **given}, sizes=sizes)

    @property
    def longest(self) -> int | None:
        """The most tokens per sample; None for models of images."""
        return longest(self.model)

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration, as `simgpu zoo build` models it."""
        chosen = options_of(self.model, options)
        sizes = replace(self.sizes, length=length)
        return model_iteration(self.model, sizes, batch=batch, gpu=gpu, options=chosen).trace


@dataclass(frozen=True)
class ZooWorkload:
    """A network of the zoo."""

    name: str
    options: Mapping[str, Any]
    longest: None = None
    own_batch: None = None
    sizes: SampleSizes = _OWN_SIZES

    def trace(self, batch: int, length: int | None, gpu: GpuSpec, options: Mapping[str, Any]) -> Trace:
        """One iteration, as `simgpu zoo build` models it."""
        return trace_of(build(self.name), batch=batch, gpu=gpu, optimizer=str(options["optimizer"]))


@dataclass(frozen=True)
class TraceWorkload:
    """A recorded or imported iteration; other batches are derived from it. Its times are those of its own device."""

    recorded: Trace
    longest: None = None
    sizes: SampleSizes = _OWN_SIZES

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

    options: how it is modelled, fields of `TrainingOptions`, and sizes that are not searched; None for the default.
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
