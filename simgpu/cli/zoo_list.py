"""``simgpu zoo list``: lists the networks with their sizes, inputs and variants."""

from __future__ import annotations

from collections import defaultdict

import click

from simgpu.cli.screen import Screen, table
from simgpu.units import short_count
from simgpu.workloads.catalogue import NETWORKS, Entry, build
from simgpu.workloads.network import Network
from simgpu.workloads.networks.layer_groups import CIFAR10


@click.command("list")
def list_() -> None:
    """List the networks with their parameters, multiply-accumulates (MACs) per sample, inputs and variants.

    The last table shows how each network is adapted to the 32 x 32 images of CIFAR10.

    \b
    simgpu zoo list
    """
    screen = Screen()
    rows = [_row(entry, build(entry.name)) for entry in NETWORKS.values()]
    screen.print(table(("network", "parameters", "MACs", "description"), rows, left=(0, 3)))
    screen.print()
    screen.print(table(("default", "alternatives or meaning", "networks"), _choices(), left=(0, 1, 2)))
    screen.print()
    screen.print(table(("networks", "with input cifar10"), _forms(CIFAR10), left=(0, 1)))


def _row(entry: Entry, network: Network) -> tuple[str, ...]:
    return entry.name, short_count(network.parameters), short_count(network.macs), entry.description


def _choices() -> list[tuple[str, str, str]]:
    """Inputs and variants: the default, the alternatives or the meaning, and the networks that have it."""
    inputs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    variants: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in NETWORKS.values():
        usual, *others = entry.inputs
        inputs[f"input {usual}", f"or {', '.join(others)}" if others else "no other"].append(entry.name)
        for name, variant in entry.variants.items():
            what = f"{variant.meaning} (only with input {variant.input})" if variant.input else variant.meaning
            variants[f"{name}={_yaml(variant.default)}", what].append(entry.name)
    return [(name, what, ", ".join(names)) for (name, what), names in (inputs | variants).items()]


def _forms(input: str) -> list[tuple[str, str]]:
    """Networks that accept the input, and how they are adapted to it."""
    forms: defaultdict[str, list[str]] = defaultdict(list)
    for entry in NETWORKS.values():
        if input in entry.inputs:
            forms[build(entry.name, input).form].append(entry.name)
    return [(", ".join(names), form) for form, names in forms.items()]


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
