"""``simgpu nodes``: the machines that ship with simgpu, or one of them with the sources of its numbers."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, facts, table
from simgpu.hardware.nodes import load_node, load_node_file, node_names
from simgpu.hardware.spec import NodeSpec
from simgpu.units import format_bandwidth, format_bytes, format_time


@click.command()
@click.argument("node", required=False)
def nodes(node: str | None) -> None:
    """List the machines that ship with simgpu, or show NODE with the source of every number.

    NODE is a shipped name or a YAML file.

    \b
    simgpu nodes
    simgpu nodes v100
    simgpu nodes my-node.yaml
    """
    screen = Screen()
    if node is None:
        rows = [_row(load_node(name)) for name in node_names()]
        screen.print(table(("node", "memory", "copy-out", "copy-in", "GPU"), rows, left=(0, 4)))
        return
    file = load_node_file(node)
    spec = file.spec()
    screen.print(f"{spec.name}: {spec.description}" if spec.description else spec.name)
    screen.print(facts(_facts(spec)))
    if file.sources:
        screen.print("\nsources")
        screen.print(facts(file.sources.items()))


def _row(node: NodeSpec) -> tuple[str, ...]:
    link = node.link
    speeds = format_bandwidth(link.d2h_bandwidth), format_bandwidth(link.h2d_bandwidth)
    return node.name, format_bytes(node.gpu.memory), *speeds, node.gpu.name


def _facts(node: NodeSpec) -> list[tuple[str, str]]:
    gpu, link, pinned = node.gpu, node.link, node.host.pinned_memory
    rows = [
        ("GPU", gpu.name),
        ("memory", format_bytes(gpu.memory)),
        ("reserved", format_bytes(gpu.reserved) if gpu.reserved else ""),
        ("alignment", format_bytes(gpu.alignment)),
        ("copy engines", str(gpu.copy_engines)),
        ("DRAM bandwidth", format_bandwidth(gpu.dram_bandwidth) if gpu.dram_bandwidth else ""),
        ("link", f"{link.kind}, {link.duplex} duplex"),
        ("copy-out", format_bandwidth(link.d2h_bandwidth)),
        ("copy-in", format_bandwidth(link.h2d_bandwidth)),
        ("latency", format_time(link.latency_ns)),
        ("pinned host memory", "without limit" if pinned is None else format_bytes(pinned)),
    ]
    return [(name, text) for name, text in rows if text]
