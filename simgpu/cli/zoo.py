"""``simgpu zoo``: networks from their published descriptions, and modelled traces of them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import cast

import click

from simgpu.cli.screen import Screen, facts, progress, table
from simgpu.cli.trace_folder import refuse_another
from simgpu.cli.zoo_validate import validate_
from simgpu.errors import InputError, Problem
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Trace
from simgpu.trace.sparsity.generator import mean_sparsity, with_sparsity
from simgpu.trace.stats import trace_stats
from simgpu.trace.timemodel.model import WORKSPACE_LIMIT
from simgpu.trace.zoo.build import trace_of
from simgpu.trace.zoo.catalogue import NETWORKS, Entry, Value, build
from simgpu.trace.zoo.lowering.optimizer import Optimizer
from simgpu.trace.zoo.network import Network
from simgpu.trace.zoo.networks.images import CIFAR10
from simgpu.units import format_bytes, format_time, parse_bytes


@click.group()
def zoo() -> None:
    """Networks from their published descriptions, as modelled traces for a named GPU.

    \b
    simgpu zoo list
    simgpu zoo build vgg16 --batch 128 --gpu v100 --input imagenet -o vgg16-b128
    simgpu zoo validate
    """


zoo.add_command(validate_)


@zoo.command("list")
def list_() -> None:
    """List the networks with their parameters and the multiply-accumulates of a sample; below, what can be chosen.

    Last, in which form each takes the 32 x 32 images of CIFAR10.

    \b
    simgpu zoo list
    """
    screen = Screen()
    rows = [_row(entry, build(entry.name)) for entry in NETWORKS.values()]
    screen.print(table(("network", "parameters", "MACs", "what"), rows, left=(0, 3)))
    screen.print()
    screen.print(table(("choice", "what", "of"), _choices(), left=(0, 1, 2)))
    screen.print()
    screen.print(table(("of", "input cifar10"), _forms(CIFAR10), left=(0, 1)))


@zoo.command("build")
@click.argument("network")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write; NETWORK-bBATCH-GPU in the current one where left out.",
)
@click.option("--force", is_flag=True, help="Replace another trace in that folder.")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Samples in the iteration.")
@click.option("--gpu", required=True, metavar="NODE", help="Whose GPU: a shipped node or a YAML file (simgpu nodes).")
@click.option("--input", help="What it takes, such as imagenet or cifar10; its usual input where left out.")
@click.option("--optimizer", type=click.Choice([each.value for each in Optimizer]), default="sgd", show_default=True)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="Model the sparsity of its feature maps over so many epochs."
)
@click.option(
    "--workspace-limit",
    default=format_bytes(WORKSPACE_LIMIT),
    show_default=True,
    metavar="SIZE",
    help="Convolution algorithms that need more workspace are left out.",
)
@click.option("--variant", multiple=True, metavar="KEY=VALUE", help="One of its variants (simgpu zoo list).")
def build_(
    network: str,
    output: Path | None,
    force: bool,
    batch: int,
    gpu: str,
    input: str | None,
    optimizer: str,
    epochs: int | None,
    workspace_limit: str,
    variant: tuple[str],
) -> None:
    """Model one training iteration of NETWORK and write its trace. Its origin is *modelled*, which every result tells.

    \b
    simgpu zoo build vgg16 --batch 128 --gpu v100 --input imagenet
    simgpu zoo build vgg16 --batch 64 --gpu v100 --variant batch_norm=true -o vgg16-bn
    simgpu zoo build vgg16 --batch 128 --gpu v100 --workspace-limit "256 MiB" -o vgg16-small
    simgpu zoo build alexnet --batch 256 --gpu titan-x-maxwell --epochs 50 -o alexnet-b256
    """
    from simgpu.cli.run import parse_settings

    folder = output or Path(f"{network}-b{batch}-{Path(gpu).stem}")
    try:
        limit = parse_bytes(workspace_limit)
    except ValueError as error:
        raise InputError([Problem("", "--workspace-limit", str(error))]) from None
    with progress(quiet=False) as say:
        say(f"building {network}")
        settings = cast("dict[str, Value]", parse_settings(variant))  # build refuses values of other types
        built = build(network, input, **settings)
        gpu_spec = load_node(gpu).gpu
        trace = trace_of(built, batch=batch, gpu=gpu_spec, optimizer=optimizer, workspace_limit=limit)
        if epochs is not None:
            trace = with_sparsity(trace, epochs)
        refuse_another(folder, force, trace)
        say(f"writing {folder}")
        write_trace(trace, folder)
    Screen().print(facts([*_facts(built, trace), ("written", str(folder))]))


def _facts(network: Network, trace: Trace) -> list[tuple[str, str]]:
    stats = trace_stats(trace)
    peak = stats.peak_recorded
    assert peak is not None, "every lifetime of a modelled trace is known"
    return [
        *trace.facts(),
        ("source", network.provenance),
        ("layers", f"{len(network.layers)}, {_short(network.parameters)} parameters"),
        ("MACs", f"{_short(network.macs)} a sample, forward"),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks, {len(trace.algorithms)} algorithm choices"),
        ("iteration", f"{format_time(stats.compute_ns)} of compute, by the time model"),
        ("peak", f"{format_bytes(peak.bytes)} at {peak.kernel}, if nothing is moved"),
        *_sparsity(trace),
    ]


def _sparsity(trace: Trace) -> list[tuple[str, str]]:
    if not trace.sparsity:
        return []
    epochs = 1 + max(sample.epoch for sample in trace.sparsity)
    blocks = len({sample.block for sample in trace.sparsity})
    return [("sparsity", f"modelled: {mean_sparsity(trace):.1%} of the bytes of {blocks} blocks over {epochs} epochs")]


def _row(entry: Entry, network: Network) -> tuple[str, ...]:
    return entry.name, _short(network.parameters), _short(network.macs), entry.description


def _choices() -> list[tuple[str, str, str]]:
    """Inputs and variants: the usual one, what else there is or what it means, and the networks that have it."""
    inputs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    variants: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in NETWORKS.values():
        usual, *others = entry.inputs
        inputs[f"input {usual}", f"or {', '.join(others)}" if others else "no other"].append(entry.name)
        for name, variant in entry.variants.items():
            what = f"{variant.meaning} (for {variant.input} alone)" if variant.input else variant.meaning
            variants[f"{name}={_yaml(variant.default)}", what].append(entry.name)
    return [(name, what, ", ".join(names)) for (name, what), names in (inputs | variants).items()]


def _forms(input: str) -> list[tuple[str, str]]:
    """Networks that take the input, and in which form."""
    forms: defaultdict[str, list[str]] = defaultdict(list)
    for entry in NETWORKS.values():
        if input in entry.inputs:
            forms[build(entry.name, input).form].append(entry.name)
    return [(", ".join(names), form) for form, names in forms.items()]


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(count: int) -> str:
    """A large count for people.

    >>> _short(138_357_544), _short(61_706)
    ('138.4 M', '61.71 k')
    """
    for factor, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.4g} {letter}"
    return str(count)
