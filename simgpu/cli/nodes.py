"""``simgpu list nodes``: lists the shipped nodes, or shows one node with the source of each value."""

from __future__ import annotations

from collections.abc import Iterator

import click

from simgpu.cli import suggestions
from simgpu.cli.screen import Screen, table
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.nodes import NodeFile, load_node, load_node_file, node_names
from simgpu.hardware.spec import (
    BuddySpec,
    HostSpec,
    LinkSpec,
    MemoryLink,
    MemorySpec,
    NodeSpec,
    PeerSpec,
    PowerSpec,
    SwitchSpec,
)
from simgpu.units import (
    format_bandwidth,
    format_bytes,
    format_energy_per_byte,
    format_power,
    format_rate,
    format_time,
)

_FIRST_ALONE = "runs on one GPU use GPU 0 and its link; the other GPUs and the switches are idle"
_NOT_GIVEN = "not given"
_NO_HOST = "host memory and cores are not given in this node's sources; no run uses them"

#: Name of a value, the value, and its key in the node file.
Row = tuple[str, str, str]


@click.command()
@click.argument("node", required=False, shell_complete=suggestions.nodes)
def nodes(node: str | None) -> None:
    """List the nodes (machines) that ship with simgpu, or show NODE with the source of each value.

    NODE is a shipped node or a YAML file.

    \b
    simgpu list nodes
    simgpu list nodes v100
    simgpu list nodes my-node.yaml
    """
    screen = Screen()
    if node is None:
        specs = [load_node(name) for name in node_names()]
        headings = ("node", "memory", "D2H/H2D, GB/s", "GPUs", "GPU")
        screen.print(table(headings, _list(specs), left=(0, 4)))
        if any(spec.gpus > 1 for spec in specs):
            screen.print(f"\nnodes with several GPUs: {_FIRST_ALONE}")
        return
    show_node(screen, load_node_file(node))


def show_node(screen: Screen, file: NodeFile) -> None:
    """Prints a node, each value next to its source."""
    screen.print(f"{file.name}: {file.description}" if file.description else file.name)
    if file.base:
        screen.print(f"based on {file.base}")
    screen.print()
    rows = [(what, text, file.sources.get(key, "")) for what, text, key in _rows(file.spec())]
    screen.print(table(("", "", "source"), rows, left=(0, 1, 2)))
    if file.gpus > 1:
        screen.print(f"\n{_FIRST_ALONE}")
    host = file.spec().host
    if host.memory is None and host.cores is None:
        screen.print(f"\n{_NO_HOST}")


def _list(specs: list[NodeSpec]) -> Iterator[tuple[str, ...]]:
    """Rows grouped by GPU model, then ordered by number of GPUs and link bandwidth."""
    first = {spec.gpu.name: number for number, spec in reversed(list(enumerate(specs)))}
    ordered = sorted(specs, key=lambda spec: (first[spec.gpu.name], spec.gpus, spec.link.d2h_bandwidth))
    for spec in ordered:
        speeds = " / ".join(f"{speed / 10**9:.4g}" for speed in (spec.link.d2h_bandwidth, spec.link.h2d_bandwidth))
        yield spec.name, format_bytes(spec.gpu.memory), speeds, str(spec.gpus), spec.gpu.name


def _rows(node: NodeSpec) -> list[Row]:
    gpu, link, host = node.gpu, node.link, node.host
    rows = [
        ("GPU", gpu.name, "gpu.name"),
        ("GPUs", str(node.gpus), "gpus"),
        ("memory", format_bytes(gpu.memory), "gpu.memory"),
        ("reserved", format_bytes(gpu.reserved) if gpu.reserved else "", "gpu.reserved"),
        ("context memory", format_bytes(gpu.context_memory) if gpu.context_memory else "", "gpu.context_memory"),
        ("alignment", format_bytes(gpu.alignment), "gpu.alignment"),
        ("copy engines", str(gpu.copy_engines), "gpu.copy_engines"),
        ("architecture", gpu.architecture or "", "gpu.architecture"),
        ("multiprocessors", str(gpu.multiprocessors or ""), "gpu.multiprocessors"),
        ("fp32 rate", format_rate(gpu.fp32_rate) if gpu.fp32_rate else "", "gpu.fp32_rate"),
        ("tensor rate", format_rate(gpu.tensor_rate) if gpu.tensor_rate else "", "gpu.tensor_rate"),
        (
            "  sustained",
            format_rate(gpu.sustained_tensor_rate) if gpu.sustained_tensor_rate else "",
            "gpu.sustained_tensor_rate",
        ),
        ("DRAM bandwidth", format_bandwidth(gpu.dram_bandwidth) if gpu.dram_bandwidth else "", "gpu.dram_bandwidth"),
        *(_engine(gpu.cdma) if gpu.cdma else ()),
        *(_compressed(gpu.buddy) if gpu.buddy else ()),
        *(_power(gpu.power) if gpu.power else ()),
        ("link", link.kind, "link.kind"),
        *_ways(link, "link"),
        ("  latency", format_time(link.latency_ns), "link.latency"),
    ]
    for number, switch in enumerate(node.switches):
        key = f"switches[{number}]"
        behind = f"GPUs {', '.join(map(str, switch.gpus))}"
        rows += [(f"switch {number}", behind, f"{key}.gpus"), *_ways(switch, key)]
        rows.append(("  links", ", ".join(switch.links), f"{key}.links"))
    for key, peers in (("peers", node.peers), ("network", node.network)):
        rows += _exchanges(peers, key) if peers else ()
    pinned = "unlimited" if host.pinned_memory is None else format_bytes(host.pinned_memory)
    rows += [
        ("host memory", format_bytes(host.memory) if host.memory else _NOT_GIVEN, "host.memory"),
        ("host cores", str(host.cores or _NOT_GIVEN), "host.cores"),
        (
            "  encode at",
            format_bandwidth(host.codec_bandwidth) if host.codec_bandwidth else "",
            "host.codec_bandwidth",
        ),
        *_updates(host),
        ("pinned memory", pinned, "host.pinned_memory"),
    ]
    for number, memory in enumerate(node.more_memories):
        rows += _memory(memory, f"memories[{number}]")
    for number, wire in enumerate(node.more_links):
        rows += _memory_link(wire, f"links[{number}]")
    return [row for row in rows if row[1]]


def _exchanges(peers: PeerSpec, key: str) -> list[Row]:
    """What the GPU exchanges data with others over."""
    added = peers.switch_bandwidth
    return [
        ("to other GPUs" if key == "peers" else "to other nodes", peers.kind, f"{key}.kind"),
        ("  steps over", peers.wire, f"{key}.wire"),
        ("  in a ring", format_bandwidth(peers.bandwidth), f"{key}.bandwidth"),
        ("  added up", format_bandwidth(added) if added else "", f"{key}.switch_bandwidth"),
    ]


def _memory(memory: MemorySpec, key: str) -> list[Row]:
    capacity = "unlimited" if memory.capacity is None else format_bytes(memory.capacity)
    return [
        (f"memory {memory.name}", memory.kind, f"{key}.kind"),
        ("  capacity", capacity, f"{key}.capacity"),
        ("  alignment", format_bytes(memory.alignment), f"{key}.alignment"),
        ("  allocator", memory.allocator, f"{key}.allocator"),
        ("  endurance", format_bytes(memory.endurance) if memory.endurance else "", f"{key}.endurance"),
    ]


def _memory_link(link: MemoryLink, key: str) -> list[Row]:
    first, second = link.ends
    there, back = link.bandwidths
    return [
        (f"link {link.name}", link.kind, f"{key}.kind"),
        (f"  to {second}", format_bandwidth(there), f"{key}.bandwidth"),
        (f"  to {first}", format_bandwidth(back), f"{key}.return_bandwidth"),
        ("  duplex", link.duplex.value, f"{key}.duplex"),
        ("  latency", format_time(link.latency_ns), f"{key}.latency"),
        ("  copy engines", str(link.copy_engines), f"{key}.copy_engines"),
        ("  passes", "the GPU's link too" if link.over_gpu_link else "", f"{key}.over_gpu_link"),
    ]


def _updates(host: HostSpec) -> list[Row]:
    """Bandwidth of the host's memory and of copies that it is not pinned for, and of summing gradients of GPUs; the
    time of launches."""
    one, limit, memory = host.accumulate_bandwidth, host.accumulate_limit, host.memory_bandwidth
    pageable = host.pageable_bandwidth
    return [
        ("  memory bandwidth", format_bandwidth(memory) if memory else "", "host.memory_bandwidth"),
        ("  pageable copies", format_bandwidth(pageable) if pageable else "", "host.pageable_bandwidth"),
        ("  launches in", format_time(host.launch_ns) if host.launch_ns else "", "host.launch"),
        ("  accumulate at", f"{format_bandwidth(one)} per core" if one else "", "host.accumulate_bandwidth"),
        ("  limit", format_bandwidth(limit) if limit else "", "host.accumulate_limit"),
    ]


def _engine(cdma: CdmaSpec) -> list[Row]:
    policy = "performance-optimal" if cdma.throttle is None else f"throttled at {format_bandwidth(cdma.throttle)}"
    return [
        ("compressing DMA", cdma.codec, "gpu.cdma.codec"),
        ("  reads at", format_bandwidth(cdma.read_bandwidth), "gpu.cdma.read_bandwidth"),
        ("  buffer", format_bytes(cdma.buffer), "gpu.cdma.buffer"),
        ("  latency", format_time(cdma.latency_ns), "gpu.cdma.latency"),
        ("  kernels use", format_bandwidth(cdma.kernel_bandwidth), "gpu.cdma.kernel_bandwidth"),
        ("  policy", policy, "gpu.cdma.throttle"),
        ("  for a link of", format_bandwidth(cdma.nominal_link) if cdma.nominal_link else "", "gpu.cdma.nominal_link"),
    ]


def _compressed(buddy: BuddySpec) -> list[Row]:
    cache = buddy.cache
    zero = ", 16x for mostly-zero data" if buddy.mostly_zero else ""
    chosen = f"per {buddy.granularity}, threshold {buddy.threshold:.4g}{zero}"
    own = buddy.link
    return [
        ("compressed memory", f"for {buddy.mode}", "gpu.buddy.mode"),
        ("  buddy memory", f"{buddy.carve_out} times the device memory", "gpu.buddy.carve_out"),
        ("  link", own.kind if own else "the link to the host", "gpu.buddy.link.kind"),
        *((f"  {name}", text, key) for name, text, key in (_ways(own, "gpu.buddy.link") if own else ())),
        ("  targets", chosen, "gpu.buddy.threshold"),
        (
            "  metadata cache",
            f"{cache.slices} x {format_bytes(cache.size)}, {cache.ways} ways, lines of {cache.line} B "
            f"for {cache.entries} entries",
            "gpu.buddy.metadata_cache",
        ),
        ("  decompression", format_time(buddy.decompression_ns), "gpu.buddy.decompression"),
        ("  memory latency", format_time(buddy.memory_latency_ns), "gpu.buddy.memory_latency"),
        ("  in flight", format_bytes(buddy.in_flight), "gpu.buddy.in_flight"),
        ("  overlap", f"{buddy.overlap:.4g}", "gpu.buddy.overlap"),
        ("  packet header", format_bytes(buddy.packet_header), "gpu.buddy.packet_header"),
    ]


def _power(power: PowerSpec) -> list[Row]:
    return [
        ("power limit", format_power(power.limit_mw), "gpu.power.limit"),
        ("  idle", format_power(power.idle_mw), "gpu.power.idle"),
        ("  arithmetic", format_power(power.arithmetic_mw), "gpu.power.arithmetic"),
        ("  to DRAM", format_energy_per_byte(power.dram_fj), "gpu.power.dram_energy"),
        ("  over the link", format_energy_per_byte(power.link_fj), "gpu.power.link_energy"),
    ]


def _ways(link: LinkSpec | SwitchSpec, key: str) -> list[Row]:
    return [
        ("  device-to-host", format_bandwidth(link.d2h_bandwidth), f"{key}.d2h_bandwidth"),
        ("  host-to-device", format_bandwidth(link.h2d_bandwidth), f"{key}.h2d_bandwidth"),
        ("  duplex", link.duplex.value, f"{key}.duplex"),
    ]
