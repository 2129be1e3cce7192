"""``simgpu zoo build`` of a model from the ``config.json`` of Hugging Face's transformers or diffusers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from simgpu.cli.screen import Screen, facts, progress
from simgpu.cli.trace_folder import refuse_another, show_written
from simgpu.errors import InputError, Problem
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import write_trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time, short_count
from simgpu.workloads.configured.config import read_model
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of, unsuitable
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.configured.options import AUTOCASTS, DTYPES, AttentionForm, LossForm, MasterForm

F = TypeVar("F", bound=Callable[..., Any])


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


def configuration_options(command: F) -> F:
    """Adds the options that apply to a configuration only; without a value they are None."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--length",
        metavar="N",
        type=click.IntRange(min=1),
        help="Tokens per sample of a configuration; not for DiT. Of a U-Net's text, default: 77.",
    ),
    click.option(
        "--target-length",
        metavar="N",
        type=click.IntRange(min=1),
        help="Tokens of the labels of each sample of T5. Default: as many as --length.",
    ),
    click.option(
        "--sample-size",
        metavar="N",
        type=click.IntRange(min=1),
        help="Side of a U-Net's latent images, an eighth of the images'. Default: its configuration's.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        help="Number format of a configuration's weights and, without autocast, activations. Default: bfloat16; "
        "float32 with --autocast.",
    ),
    click.option(
        "--autocast",
        type=click.Choice(AUTOCASTS),
        help="Run forward and loss of a configuration under torch.autocast with this lower precision.",
    ),
    click.option(
        "--attention",
        type=click.Choice([each.value for each in AttentionForm]),
        help="Attention of a configuration: PyTorch's fused operator, or products and softmax. Default: sdpa; eager "
        "for T5, which has no other.",
    ),
    click.option(
        "--loss",
        type=click.Choice([each.value for each in LossForm]),
        help="Loss of a configuration: all logits at once, in 8 chunks as torchtune, or fused with the output layer as "
        "in Liger-Kernel. Default: eager.",
    ),
    click.option(
        "--grad-scaler",
        is_flag=True,
        default=None,
        help="Scale the loss and unscale gradients as torch.amp.GradScaler; with --autocast float16.",
    ),
    click.option(
        "--master-weights",
        type=click.Choice([each.value for each in MasterForm]),
        help="Keep float32 copies of bfloat16 weights; convert their gradients before the update, or add them up in "
        "float32 (main-grad), as Megatron-LM. Default: none.",
    ),
    click.option(
        "--micro-batches",
        metavar="K",
        type=click.IntRange(min=1),
        help="Gradient accumulation of a configuration: K equal parts of the batch before one optimizer step.",
    ),
    click.option(
        "--lora",
        metavar="RANK",
        type=click.IntRange(min=1),
        help="Train only LoRA's adapters of this rank, as peft does.",
    ),
    click.option(
        "--lora-targets",
        metavar="NAMES",
        callback=lambda _context, _option, value: value and tuple(value.split(",")),
        help="With --lora: linear layers, joined by commas, or all-linear. Default: q_proj,v_proj; "
        "q,v for T5; those of attention for DiT and U-Nets.",
    ),
)


def build_configured(
    path: str, output: Path | None, force: bool, batch: int, gpu: str, given: Mapping[str, Any], quiet: bool
) -> None:
    """Builds the trace of a configuration and writes its folder. given: values of the options and optimizer."""
    training = dict(given)
    sizes = SampleSizes(**{name: training.pop(name) for name in SampleSizes.__dataclass_fields__})
    if training["lora_targets"] and training["lora"] is None:
        raise InputError.single("", "--lora-targets", "names layers for LoRA, which is off", "add --lora RANK")
    with progress(quiet) as say:
        model = read_model(path)
        problems = unsuitable(model, sizes)
        if problems:
            raise InputError([replace(each, place=f"--{each.place.replace('_', '-')}") for each in problems])
        say(f"building {model.name}")
        device, options = load_node(gpu).gpu, options_of(model, training)
        result = model_iteration(model, sizes, batch=batch, gpu=device, options=options)
        folder = output or Path(f"{model.name}-b{batch}{sizes.described()}-{Path(gpu).stem}")
        refuse_another(folder, force, result.trace)
        say(f"writing {folder}")
        write_trace(result.trace, folder)
    Screen().print(facts(_facts(result)))
    show_written(folder, gpu)


def _facts(result: ModelledIteration) -> list[tuple[str, str]]:
    stats = trace_stats(result.trace)
    saved = f"{format_bytes(result.saved_bytes)} in {len(result.saved)} tensors, without weights"
    return [
        *result.trace.facts(),
        ("parameters", f"{result.parameters:,} ({short_count(result.parameters)})"),
        ("saved for backward", saved),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks"),
        ("iteration", f"{format_time(stats.compute_ns)} of compute (time model)"),
        ("peak memory", f"{stats.recorded_peak_text()}, without offloading"),
    ]
