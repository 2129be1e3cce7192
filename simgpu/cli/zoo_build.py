"""``simgpu zoo build``: model one training iteration of a network and write its trace folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.settings import parse_settings, parse_size
from simgpu.cli.suggestions import networks, nodes
from simgpu.cli.trace_folder import launch_facts, refuse_another, show_written
from simgpu.cli.training_options import training_options
from simgpu.cli.zoo_configured import build_configured, is_configuration, refuse_options
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
from simgpu.workloads.timemodel.prices import WORKSPACE_LIMIT

_WORKSPACE = format_bytes(WORKSPACE_LIMIT)
_MOST_EPOCHS = 10_000  # a row of the trace for each block and epoch


@click.command("build")
@click.argument("network", shell_complete=networks)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write. Default: NETWORK-bBATCH-GPU, or NETWORK-INPUT-bBATCH-GPU for an input other than the "
    "default; of a configuration NAME-bBATCH-tLENGTH-GPU, without -tLENGTH if not given.",
)
@click.option("--force", is_flag=True, help="Replace a different trace in the folder.")
@click.option("--batch", metavar="N", type=click.IntRange(min=1), required=True, help="Batch size in samples.")
@click.option(
    "--gpu",
    required=True,
    metavar="NODE",
    shell_complete=nodes,
    help="Node whose GPU is modelled: a shipped node (simgpu list nodes) or a YAML file.",
)
@click.option("--input", help="Input of the network, e.g. imagenet or cifar10. Default: see simgpu zoo list.")
@click.option(
    "--framework",
    type=click.Choice([each.value for each in Framework]),
    default="pytorch",
    show_default=True,
    help="Framework whose memory use is modelled. pytorch-1.5: PyTorch before 1.10, with ReLUs that are not in-place. "
    "cudnn: Caffe and Torch7, without pooling indices, and with ReLU in-place in forward and backward. "
    "cudnn-joined: like cudnn, but the inputs of a concatenation are written into its output. "
    "fused: moDNN's framework, where normalization, ReLU and sum of a layer share one output and one gradient.",
)
@click.option(
    "--optimizer",
    type=click.Choice([each.value for each in Optimizer]),
    help="Optimizer; sets the update kernels and the optimizer state. Default: sgd; adamw for a configuration. "
    "bitsandbytes' paged_adamw_8bit is adamw-8bit where all fits; its paging is not modelled.",
)
@training_options
@click.option(
    "--epochs",
    metavar="N",
    type=click.IntRange(1, _MOST_EPOCHS),
    help="Also model the sparsity of the feature maps over this number of epochs.",
)
@click.option("--compressibility", is_flag=True, help="Also model the compressed size of each 128-byte memory-entry.")
@click.option(
    "--workspace-limit",
    default=_WORKSPACE,
    show_default=True,
    metavar="SIZE",
    help="Largest workspace of a convolution algorithm.",
)
@click.option(
    "--variant",
    multiple=True,
    metavar="KEY=VALUE",
    help="Variant of the network, e.g. batch_norm=true (see simgpu zoo list). Repeatable.",
)
@quiet_option
def build(
    network: str,
    output: Path | None,
    force: bool,
    batch: int,
    gpu: str,
    input: str | None,
    framework: str,
    optimizer: str | None,
    epochs: int | None,
    compressibility: bool,
    workspace_limit: str,
    variant: tuple[str],
    quiet: bool,
    **of_configuration: Any,
) -> None:
    """Model one training iteration of NETWORK and write its trace. Results state that the trace is modelled.

    NETWORK is a name (simgpu zoo list), or the Hugging Face config.json of a transformer or U-Net (Llama, Mixtral,
    GPT-2, T5, DiT, Stable Diffusion and others; an unsupported one lists them), or its folder.

    \b
    simgpu zoo build vgg16 --batch 64 --gpu v100 --input cifar10
    simgpu zoo build vgg16 --batch 64 --gpu v100 \\
        --variant batch_norm=true -o vgg16-bn
    simgpu zoo build vgg16 --batch 128 --gpu v100 \\
        --workspace-limit "256 MiB" -o vgg16-small
    simgpu zoo build alexnet --batch 256 --gpu titan-x-maxwell --epochs 50 \\
        -o alexnet-b256
    simgpu zoo build ./Llama-3.1-8B/config.json --batch 1 --length 8192 \\
        --gpu h100
    simgpu zoo build ./Llama-3.1-8B --batch 8 --length 4096 --gpu h100 \\
        --autocast bfloat16 --micro-batches 4
    simgpu zoo build ./Llama-3.1-8B --batch 1 --length 4096 --gpu l40s \\
        --lora 16 --lora-targets all-linear
    simgpu zoo build ./stable-diffusion/unet --batch 4 --gpu l40s
    """
    if is_configuration(network):
        others = {"input": input, "framework": framework != "pytorch", "epochs": epochs, "variant": variant}
        others |= {"compressibility": compressibility, "workspace-limit": workspace_limit != _WORKSPACE}
        refuse_options(others, "applies to networks of the zoo, not to a configuration")
        build_configured(network, output, force, batch, gpu, {**of_configuration, "optimizer": optimizer}, quiet)
        return
    refuse_options(
        of_configuration, "applies to the configuration of a transformer or U-Net, not to a network of the zoo"
    )
    limit = parse_size(workspace_limit, "--workspace-limit")
    with progress(quiet) as say:
        say(f"building {network}")
        settings = parse_settings(variant, of="--variant", example="--variant width=0.5")
        # build reports values of other types
        built = catalogue.build(network, input, **cast("dict[str, Value]", settings))
        gpu_spec = load_node(gpu).gpu
        folder = output or _folder(network, input, batch, gpu)
        trace = trace_of(
            built,
            batch=batch,
            gpu=gpu_spec,
            optimizer=optimizer or "sgd",
            workspace_limit=limit,
            framework=framework,
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
    Screen().print(facts([*_facts(built, trace), ("accuracy", _accuracy(network))]))
    show_written(folder, gpu)


def _folder(network: str, input: str | None, batch: int, gpu: str) -> Path:
    """The default folder. Raises `InputError` if its name is that of a shipped trace."""
    name = trace_name(network, input, batch, Path(gpu).stem)
    if name in shipped_names("traces"):
        what = f"the default folder {name} has the name of a trace that ships with simgpu"
        raise InputError.single("", "-o", what, "give another folder with -o")
    return Path(name)


def _accuracy(network: str) -> str:
    none = "" if network in published_networks() else f" (none for {network})"
    return f"for errors relative to published times{none}, run simgpu zoo validate"


def _facts(network: Network, trace: Trace) -> list[tuple[str, str]]:
    stats = trace_stats(trace)
    return [
        *trace.facts(),
        ("source", network.provenance),
        ("network", f"{len(network.layers)} operators, {short_count(network.parameters)} parameters"),
        ("MACs", f"{short_count(network.macs)} per sample, forward"),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks, {len(trace.algorithms)} algorithm choices"),
        ("iteration", f"{format_time(stats.compute_ns)} of compute (time model)"),
        *launch_facts(trace),
        ("peak memory", f"{stats.recorded_peak_text()}, without offloading"),
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
    text = f"modelled: {ratio:.2f} over all blocks and {epochs} epochs, if each memory-entry has its own size"
    return [("compressibility", text)]
