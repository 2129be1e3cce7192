"""``simgpu zoo build`` of a model from the ``config.json`` of Hugging Face's transformers or diffusers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simgpu.cli.screen import Screen, facts, progress
from simgpu.cli.settings import arguments_as_options
from simgpu.cli.trace_folder import launch_facts, refuse_another, show_written
from simgpu.errors import InputError, Problem
from simgpu.hardware.collectives import Collective
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time, short_count
from simgpu.workloads.configured.config import read_model
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of, unsuitable
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.megatron.entry import megatron_of
from simgpu.workloads.megatron.layout import folder_part


def is_configuration(network: str) -> bool:
    """Whether NETWORK is a file or folder and not the name of a network.

    >>> is_configuration("vgg16"), is_configuration("Llama-3.1-8B/config.json")
    (False, True)
    """
    return network.endswith(".json") or os.sep in network or Path(network).is_dir()


def refuse_options(given: Mapping[str, object], what: str) -> None:
    """Raises `InputError` for options that do not apply. given: values by name, without leading dashes."""
    problems = [
        Problem("", f"--{name.replace('_', '-')}", what, "leave it out") for name, value in given.items() if value
    ]
    if problems:
        raise InputError(problems)


def build_configured(
    path: str, output: Path | None, force: bool, batch: int, gpu: str, given: Mapping[str, Any], quiet: bool
) -> None:
    """Builds the trace of a configuration and writes its folder. given: values of `training_options` and optimizer."""
    training = dict(given)
    sizes = SampleSizes(**{name: training.pop(name) for name in SampleSizes.__dataclass_fields__})
    if training["lora_targets"] and training["lora"] is None:
        raise InputError.single("", "--lora-targets", "names layers for LoRA, which is off", "add --lora RANK")
    layout, stage = training.pop("megatron"), training.pop("stage")
    if stage is not None and layout is None:
        raise InputError.single("", "--stage", "is that of a pipeline of --megatron", "leave it out")
    with progress(quiet) as say, arguments_as_options(given):
        model = read_model(path)
        if problems := unsuitable(model, sizes):
            raise InputError(problems)
        say(f"building {model.name}")
        node, options = load_node(gpu), options_of(model, training)
        if layout is None:
            result = model_iteration(model, sizes, batch=batch, gpu=node.gpu, options=options, node=node)
            part = options.folder_part
        else:
            result = megatron_of(model, sizes, layout, stage, batch=batch, node=node, options=options)
            part = folder_part(layout, stage)
        folder = output or Path(f"{model.name}-b{batch}{sizes.described()}{part}-{Path(gpu).stem}")
        refuse_another(folder, force, result.trace)
        say(f"writing {folder}")
        write_trace(result.trace, folder)
    Screen().print(facts(_facts(result)))
    show_written(folder, gpu)


def _facts(result: ModelledIteration) -> list[tuple[str, str]]:
    stats = trace_stats(result.trace)
    of_all = "" if result.of_all is None else f" of this GPU, {result.of_all:,} of all"
    saved = f"{format_bytes(result.saved_bytes)} in {len(result.saved)} tensors, without weights"
    return [
        *result.trace.facts(),
        ("parameters", f"{result.parameters:,} ({short_count(result.parameters)}){of_all}"),
        ("saved for backward", saved),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks"),
        ("iteration", f"{format_time(stats.compute_ns)} of compute (time model)"),
        *_exchanges(result.trace),
        *launch_facts(result.trace),
        ("peak memory", f"{stats.recorded_peak_text()}, without offloading"),
    ]


def _exchanges(trace: Trace) -> Iterator[tuple[str, str]]:
    """What of the time of kernels GPUs exchange data in; nothing for a GPU alone."""
    durations = [kernel.duration_ns for kernel in trace.kernels if kernel.op in frozenset(Collective)]
    if durations:
        yield "exchanges", f"{format_time(sum(durations))} of it, in {len(durations)} collectives (NCCL's cost model)"
