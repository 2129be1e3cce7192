"""What one GPU has of a node on which several run the same program at the same time.

Copies of all GPUs share the switches and the host's memory at max-min fair rates. Where the GPUs are placed alike, all
their flows start and end together, so each gets an equal share: a copy that is alone on its GPU takes
bytes / min(link, switch / k, host / n), with k GPUs behind its switch and n in all. A simulation of one GPU with these
shares is then the same as one of all GPUs (`tests/machine/test_sharing.py`), unless they queue for a link that is not
theirs, such as that of an SSD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import DEVICE, Duplex, HostSpec, NodeSpec, SwitchSpec

_Rate = TypeVar("_Rate", int, int | None)


def check_gpus(node: NodeSpec, gpus: int) -> None:
    """Raises `InputError` for more GPUs than the node has."""
    if gpus > node.gpus:
        raise InputError([too_few_gpus(node, gpus)])


def too_few_gpus(node: NodeSpec, gpus: int) -> Problem:
    """The problem that a node has fewer GPUs; its remedy names the shipped nodes with as many of the same GPU."""
    from simgpu.hardware.nodes import nodes_with  # only a mistake needs it

    has = "one GPU" if node.gpus == 1 else f"{node.gpus} GPUs"
    names = nodes_with(node.gpu.name, gpus)
    remedy = f"choose {' or '.join(names)}" if names else "choose a node that has them"
    return Problem("", "argument gpus", f"node {node.name} has {has}, not {gpus}", remedy)


def placed_alike(node: NodeSpec, gpus: int) -> bool:
    """Whether the node's first GPUs all have equal shares of their switches.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> pairs = tuple(SwitchSpec(pair, 10**10, 10**10) for pair in ((0, 1), (2, 3)))
    >>> node = NodeSpec("four", GpuSpec("gpu", 1), LinkSpec("bus", 10**10, 10**10), gpus=4, switches=pairs)
    >>> [placed_alike(node, gpus) for gpus in (1, 2, 3, 4)]
    [True, True, False, True]
    """
    return len({_switches(node, gpu, gpus) for gpu in range(gpus)}) == 1


def one_of(node: NodeSpec, gpus: int) -> NodeSpec:
    """The node of one GPU, with its share of everything that several GPUs share.

    That is of switches, of the host's memory, bandwidths and cores, and of further memories and links that are not a
    GPU's own. The link's rates are limited by these shares, so that policies plan with what copies reach. GPUs that are
    not placed alike: that of the GPU with the smallest share. Raises `InputError` as `check_gpus`.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> link, switch = LinkSpec("bus", 25 * 10**9, 25 * 10**9), SwitchSpec((0, 1), 30 * 10**9, 30 * 10**9)
    >>> node = NodeSpec("two", GpuSpec("gpu", 1), link, HostSpec(memory_bandwidth=10**11), gpus=2, switches=(switch,))
    >>> one = one_of(node, 2)
    >>> one.name, one.link.d2h_bandwidth, one.host.memory_bandwidth
    ('two, one of 2 GPUs', 15000000000, 50000000000)
    """
    check_gpus(node, gpus)
    if gpus == 1:
        return node
    shared = min((_switches(node, gpu, gpus) for gpu in range(gpus)), key=_least)
    host = _of_host(node.host, gpus)
    switches = (*shared, *_as_switch(host.memory_bandwidth, (0,)))
    link = node.link
    if link.duplex is Duplex.FULL:
        d2h, h2d = zip((link.d2h_bandwidth, link.h2d_bandwidth), *map(_alone, switches), strict=True)
        link = replace(link, d2h_bandwidth=min(d2h), h2d_bandwidth=min(h2d))
    links = []
    for each in node.more_links:
        rates = each.bandwidths if DEVICE in each.ends else tuple(_part(rate, gpus) for rate in each.bandwidths)
        links.append(replace(each, bandwidths=(rates[0], rates[1])))
    return replace(
        node,
        name=f"{node.name}, one of {gpus} GPUs",
        gpus=1,
        link=link,
        switches=switches,
        host=host,
        more_memories=tuple(replace(each, capacity=_part(each.capacity, gpus)) for each in node.more_memories),
        more_links=tuple(links),
    )


def host_as_switch(node: NodeSpec) -> tuple[SwitchSpec, ...]:
    """The host's memory as a switch in front of all GPUs, whose two directions share its bandwidth.

    Empty for one GPU, whose own link is the limit, and where the bandwidth is not known.
    """
    return _as_switch(node.host.memory_bandwidth, tuple(range(node.gpus))) if node.gpus > 1 else ()


def _as_switch(bandwidth: int | None, gpus: tuple[int, ...]) -> tuple[SwitchSpec, ...]:
    return () if bandwidth is None else (SwitchSpec(gpus, bandwidth, bandwidth, Duplex.HALF),)


def _switches(node: NodeSpec, gpu: int, gpus: int) -> tuple[SwitchSpec, ...]:
    """The shares that a GPU has of its switches, when the first `gpus` run."""
    shares = []
    for switch in node.switches:
        if gpu in switch.gpus:
            count = sum(other < gpus for other in switch.gpus)
            rates = _part(switch.d2h_bandwidth, count), _part(switch.h2d_bandwidth, count)
            shares.append(SwitchSpec((0,), *rates, switch.duplex, switch.links))
    return tuple(shares)


def _alone(switch: SwitchSpec) -> tuple[int, int]:
    """The rates of copies while none passes in the other direction."""
    rates = switch.d2h_bandwidth, switch.h2d_bandwidth
    return (max(rates), max(rates)) if switch.duplex is Duplex.HALF else rates


def _least(switches: Sequence[SwitchSpec]) -> float:
    """The smallest rate of a copy while another one passes in the other direction."""
    rates = ((each.d2h_bandwidth, each.h2d_bandwidth, each.duplex is Duplex.HALF) for each in switches)
    return min((max(out, back) / 2 if half else min(out, back) for out, back, half in rates), default=inf)


def _of_host(host: HostSpec, gpus: int) -> HostSpec:
    return replace(
        host,
        pinned_memory=_part(host.pinned_memory, gpus),
        memory=_part(host.memory, gpus),
        cores=_part(host.cores, gpus),
        codec_bandwidth=_part(host.codec_bandwidth, gpus),
        accumulate_limit=_part(host.accumulate_limit, gpus),
        memory_bandwidth=_part(host.memory_bandwidth, gpus),
    )


def _part(whole: _Rate, gpus: int) -> _Rate:
    """An equal part in whole units, at least one."""
    return whole if whole is None else max(whole // gpus, 1)
