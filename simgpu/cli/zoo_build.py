"""``simgpu zoo build``: one modelled training iteration of a network, written as a trace folder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.settings import parse_settings, parse_size
from simgpu.cli.suggestions import networks, nodes
from simgpu.cli.trace_folder import refuse_another, show_written
from simgpu.compression.codecs.entry_patterns import with_sparse_entries
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.io.shipped import shipped_names
from simgpu.trace.entries import mean_ratio
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time, short_count
from simgpu.workloads import catalogue
from simgpu.workloads.calibration.published import published_networks
from simgpu.workloads.catalogue import Value
from simgpu.workloads.compressibility.generator import with_compressibility
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.modelled import trace_name, trace_of
from simgpu.workloads.network import Network
from simgpu.workloads.sparsity.generator import mean_sparsity, with_sparsity
from simgpu.workloads.timemodel.model import WORKSPACE_LIMIT

_MOST_EPOCHS = 10_000  # a row of the trace for each block and epoch


@click.command("build")
@click.argument("network", shell_complete=networks)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write; where left out NETWORK-bBATCH-GPU in the current one, with an input that is not the usual.",
)
@click.option("--force", is_flag=True, help="Replace another trace in that folder.")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Samples in the iteration.")
@click.option(
    "--gpu",
    required=True,
    metavar="NODE",
    shell_complete=nodes,
    help="Whose GPU: a shipped node or a YAML file (simgpu list nodes).",
)
@click.option("--input", help="What it takes, such as imagenet or cifar10; its usual input where left out.")
@click.option(
    "--framework",
    type=click.Choice([each.value for each in Framework]),
    default="pytorch",
    show_default=True,
    help="Whose habits with memory: pytorch-1.5 is for ReLUs that are not in place, before PyTorch 1.10; "
    "cudnn for Caffe and Torch7, without pooling indices, ReLU in place both ways; "
    "fused for moDNN's framework, where a layer's normalization, ReLU and sum rewrite one result and one gradient.",
)
@click.option(
    "--optimizer",
    type=click.Choice([each.value for each in Optimizer]),
    default="sgd",
    show_default=True,
    help="Which updates the weights, and what it keeps of each.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, _MOST_EPOCHS),
    help="Model the sparsity of its feature maps over so many epochs.",
)
@click.option("--compressibility", is_flag=True, help="Model how compressible its memory is, entry by entry.")
@click.option(
    "--workspace-limit",
    default=format_bytes(WORKSPACE_LIMIT),
    show_default=True,
    metavar="SIZE",
    help="Convolution algorithms that need more workspace are left out.",
)
@click.option("--variant", multiple=True, metavar="KEY=VALUE", help="One of its variants (simgpu zoo list).")
@quiet_option
def build(
    network: str,
    output: Path | None,
    force: bool,
    batch: int,
    gpu: str,
    input: str | None,
    framework: str,
    optimizer: str,
    epochs: int | None,
    compressibility: bool,
    workspace_limit: str,
    variant: tuple[str],
    quiet: bool,
) -> None:
    """Model one training iteration of NETWORK and write its trace. Its origin is *modelled*, which every result tells.

    \b
    simgpu zoo build vgg16 --batch 64 --gpu v100 --input cifar10
    simgpu zoo build vgg16 --batch 64 --gpu v100 \\
        --variant batch_norm=true -o vgg16-bn
    simgpu zoo build vgg16 --batch 128 --gpu v100 \\
        --workspace-limit "256 MiB" -o vgg16-small
    simgpu zoo build alexnet --batch 256 --gpu titan-x-maxwell --epochs 50 \\
        -o alexnet-b256
    """
    limit = parse_size(workspace_limit, "--workspace-limit")
    with progress(quiet) as say:
        say(f"building {network}")
        settings = parse_settings(variant, of="--variant", example="--variant width=0.5")
        # values of other types are refused with the rest
        built = catalogue.build(network, input, **cast("dict[str, Value]", settings))
        gpu_spec = load_node(gpu).gpu
        folder = output or _folder(network, input, batch, gpu)
        trace = trace_of(
            built, batch=batch, gpu=gpu_spec, optimizer=optimizer, workspace_limit=limit, framework=framework
        )
        if epochs is not None:
            trace = with_sparsity(trace, epochs)
        if compressibility:
            trace = with_compressibility(trace)
            if trace.sparsity:
                trace = with_sparse_entries(trace)
        refuse_another(folder, force, trace)
        say(f"writing {folder}")
        write_trace(trace, folder)
    Screen().print(facts([*_facts(built, trace), ("trust", _trust(network))]))
    show_written(folder, gpu)


def _folder(network: str, input: str | None, batch: int, gpu: str) -> Path:
    """The folder that is written where none is named. Raises `InputError` for the name of a shipped trace."""
    name = trace_name(network, input, batch, Path(gpu).stem)
    if name in shipped_names("traces"):
        what = f"{name}, the folder's name where none is given, is that of a trace that ships with simgpu"
        raise InputError.single("", "-o", what, "name another folder with -o")
    return Path(name)


def _trust(network: str) -> str:
    none = "" if network in published_networks() else f", none of which is of {network}"
    return f"how far such times are from published ones{none}: simgpu zoo validate"


def _facts(network: Network, trace: Trace) -> list[tuple[str, str]]:
    stats = trace_stats(trace)
    return [
        *trace.facts(),
        ("source", network.provenance),
        ("network", f"{len(network.layers)} operators, {short_count(network.parameters)} parameters"),
        ("MACs", f"{short_count(network.macs)} a sample, forward"),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks, {len(trace.algorithms)} algorithm choices"),
        ("iteration", f"{format_time(stats.compute_ns)} of compute, by the time model"),
        ("peak", f"{stats.recorded_peak_text()}, if nothing is moved"),
        *_sparsity(trace),
        *_compressibility(trace),
    ]


def _sparsity(trace: Trace) -> list[tuple[str, str]]:
    if not trace.sparsity:
        return []
    epochs = 1 + max(sample.epoch for sample in trace.sparsity)
    blocks = len({sample.block for sample in trace.sparsity})
    return [("sparsity", f"modelled: {mean_sparsity(trace):.1%} of the bytes of {blocks} blocks over {epochs} epochs")]


def _compressibility(trace: Trace) -> list[tuple[str, str]]:
    if not trace.compressibility:
        return []
    epochs = len({row.epoch for row in trace.compressibility})
    ratio = mean_ratio(trace.compressibility)
    text = f"modelled: {ratio:.2f} over all blocks and {epochs} epochs, if every memory-entry takes its size alone"
    return [("compressibility", text)]
