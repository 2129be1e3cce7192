"""``simgpu zoo list``: the networks, their sizes, and in what they can differ."""

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


def _row(entry: Entry, network: Network) -> tuple[str, ...]:
    return entry.name, short_count(network.parameters), short_count(network.macs), entry.description


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
