"""What a collective of NCCL takes: the cost model by which NCCL itself chooses a protocol and an algorithm.

Source: NCCL 2.30, src/graph/tuning.cc at 5067397c: latencies of the protocols LL, LL128 and Simple and of a step over
NVLink, PCIe and a network; the shares of the bandwidth that they reach, and their limits; the corrections of medium
sizes; and the choice of the fastest among rings, trees, the switch of a node, trees of switches and, with one GPU per
node, PAT. A ring sends each byte of a buffer (ranks - 1) / ranks times, in an all-reduce twice. A node states the rate
of a large buffer.

NCCL's model has long transfers at their full rate from the first byte, and so is up to 65% too fast below 256 MiB. So
Simple and the switch take a time to fill in addition, one number chosen from the curve of an H200 (`_FILL_NS`).

That model has no messages. They, and an all-to-all, which is one to every other GPU, follow src/enqueue.cc: LL up to
16 KiB, else Simple, to 8 GPUs at a time, each message over the links between its two GPUs. No curve of them was read,
so they take no time to fill.

What is left out: CollNet; limits by the number of channels, which no node file states; and the latency of a network
adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from simgpu.errors import InputError
from simgpu.hardware.sharing import check_gpus
from simgpu.hardware.spec import NodeSpec

_NANO = 10**9


class Collective(StrEnum):
    """An exchange in which all GPUs of a group take part; in `SEND` two."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


#: The operator by which a GPU waits for data of another stage of a pipeline, in modelled traces.
RECEIVE = "recv"
#: All operators of modelled traces by which GPUs exchange data.
EXCHANGES = frozenset((*Collective, RECEIVE))


@dataclass(frozen=True, slots=True)
class Group:
    """The GPUs that take part. ranks: their number; nodes: on how many nodes they are, as many on each.

    >>> Group(16, nodes=2).local
    8
    """

    ranks: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.nodes < 1 or self.ranks % self.nodes:
            what = f"{self.ranks} GPUs cannot be divided evenly among {self.nodes} nodes"
            raise InputError.single("", "argument nodes", what, "give a number of nodes that divides the GPUs")

    @property
    def local(self) -> int:
        """The group's GPUs of one node."""
        return self.ranks // self.nodes


#: Chosen: published all-reduces of 64 MiB to 1 GiB on eight H200 take 72 to 148 us more than rate and latency explain.
_FILL_NS = 100_000


class _Protocol(StrEnum):
    """How the GPUs of an algorithm signal that data has arrived."""

    LL = "LL"
    LL128 = "LL128"
    SIMPLE = "Simple"


@dataclass(frozen=True, slots=True)
class _Costs:
    """Of an algorithm with a protocol. base_ns: of a collective. step_ns: of a step, by the wire. share: of the
    bandwidth that remains for data."""

    share: Fraction
    base_ns: int
    step_ns: Mapping[str, int]


_RING = {
    _Protocol.LL: _Costs(Fraction(1, 2), 6_600, {"nvlink": 600, "pcie": 1_000, "network": 2_700}),
    _Protocol.LL128: _Costs(Fraction(92, 100), 14_000, {"nvlink": 1_900, "pcie": 2_500, "network": 4_000}),
    _Protocol.SIMPLE: _Costs(Fraction(1), 8_400, {"nvlink": 3_400, "pcie": 5_700, "network": 14_000}),
}
#: Of an all-reduce: a tree of nodes, in each of which the GPUs are a chain. In one node, LL128 has 7/9, not 15/16.
_TREE = {
    _Protocol.LL: _Costs(Fraction(92, 380), 6_800, {"nvlink": 600, "pcie": 1_000, "network": 5_000}),
    _Protocol.LL128: _Costs(Fraction(92 * 15, 1600), 14_000, {"nvlink": 1_250, "pcie": 1_900, "network": 8_500}),
    _Protocol.SIMPLE: _Costs(Fraction(92, 100), 8_400, {"nvlink": 4_000, "pcie": 4_000, "network": 14_000}),
}
#: Of the bandwidth of a tree, in tenths, for buffers from 64 bytes on, by powers of two.
_TREE_TENTHS = {
    _Protocol.LL: (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9),
    _Protocol.LL128: (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9),
    _Protocol.SIMPLE: (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}
#: Of a tree of switches, one power of two longer.
_SWITCH_TENTHS = (*_TREE_TENTHS[_Protocol.SIMPLE], 9)
_BEFORE_VOLTA = ("kepler", "maxwell", "pascal")
_OLD = (*_BEFORE_VOLTA, "volta", "turing")
#: Bytes per second of LL at most: within a node by the GPU, across two nodes and more by the makers of the processors.
_LL_IN_NODE = {
    **dict.fromkeys(_OLD, 39 * 10**9),
    **dict.fromkeys(("ampere", "ada"), 87_700_000_000),
    "hopper": 141 * 10**9,
    **dict.fromkeys(("blackwell", "blackwell-rtx"), 282 * 10**9),
}
_LL_ACROSS = (39 * 10**9, 20_400_000_000)
_LL_ACROSS_AMD = (22_500_000_000, 19 * 10**9)
#: A step of a ring across nodes, even one inside of a node, takes the processor at least this long, with Simple thrice.
_POST_NS, _POST_AMD_NS = 1_000, 2_000
#: With fewer GPUs NCCL does not let the switch add up (measured on an H200; a B200 begins with six).
_SWITCH_FROM = 5
_SWITCH_NS = 25_000
_SWITCH_LEVEL_NS = 20_900
#: The time of PAT (parallel aggregated trees): in all, of a level of its tree, and of each GPU.
_PAT_NS = (8_000, 4_000, 2_800)
#: Bytes of the longest message that LL sends, and the number of messages that a GPU sends at a time.
_SHORT, _AT_A_TIME = 16 * 1024, 8


def collective_ns(kind: Collective, size: int, group: Group, node: NodeSpec) -> int:
    """The time of a collective (ns), 0 for a group of one.

    size: bytes of the whole buffer: the result of an all-gather, the input of a reduce-scatter, all that one GPU has
    for the others and itself in an all-to-all, the message of a send. A send goes to another node if the group has
    several. Raises `InputError` where the node lacks the links that the group needs, or GPUs.

    >>> from simgpu.hardware.nodes import load_node
    >>> node = load_node("h100-x8")
    >>> collective_ns(Collective.ALL_GATHER, 2**30, Group(8), node)  # 7/8 of 1 GiB at 362 GB/s
    2727571
    >>> collective_ns(Collective.ALL_REDUCE, 1024, Group(8), node)  # 6.6 us, and 14 steps of 0.6 us
    15013
    """
    if group.ranks == 1:
        return 0
    _check(group, node)
    return ceil(min(_ways(kind, size, group, node)))


def bus_bandwidth(group: Group, node: NodeSpec) -> int:
    """Bytes per second that each GPU sends around a ring: its own link's, or its part of the nodes' networks.

    Raises `InputError` as `collective_ns`.
    """
    _check(group, node)
    rates = []
    if node.peers is not None and group.local > 1:
        rates.append(node.peers.bandwidth)
    if node.network is not None and group.nodes > 1:
        rates.append(group.local * node.network.bandwidth)
    return min(rates)


def _check(group: Group, node: NodeSpec) -> None:
    if node.gpus > 1:  # `one_of` keeps the links of a node's GPUs
        check_gpus(node, group.local)
    for links, key, needed in ((node.peers, "peers", group.local > 1), (node.network, "network", group.nodes > 1)):
        if needed and links is None:
            between = "the GPUs of a node" if key == "peers" else "nodes"
            what = f"is not set for node {node.name}, so the time of exchanges between {between} is unknown"
            remedy = f"choose {_stating(node, group, key)}, or set node.{key}.bandwidth, .kind and .wire"
            raise InputError.single("", f"node.{key}", what, remedy)


def _stating(node: NodeSpec, group: Group, key: str) -> str:
    """The shipped nodes of the same GPU that state such links, or else one of another GPU."""
    from simgpu.hardware.nodes import load_node, nodes_with  # only a mistake needs it

    names = nodes_with(node.gpu.name, group.local)
    return " or ".join(name for name in names if getattr(load_node(name), key)) or "a node that states it, as h100-x8"


def _ways(kind: Collective, size: int, group: Group, node: NodeSpec) -> Iterator[Fraction]:
    """The time of each protocol and algorithm that NCCL would consider."""
    if kind in (Collective.SEND, Collective.ALL_TO_ALL):
        yield _messages_ns(kind, size, group, node)
        return
    bandwidth = bus_bandwidth(group, node)
    yield from _rings(kind, size, group, node, bandwidth)
    if kind is Collective.ALL_REDUCE:
        yield from _trees(size, group, node, _tree_bandwidth(group, node, bandwidth))
        yield from _switches(size, group, node)
    elif group.nodes == group.ranks and node.gpu.architecture not in _BEFORE_VOLTA[:2]:
        base, level, each = _PAT_NS
        latency = base + _FILL_NS + _levels(group) * level + group.ranks * each
        yield latency + Fraction(size * _NANO * 4, bandwidth * 3)


def _messages_ns(kind: Collective, size: int, group: Group, node: NodeSpec) -> Fraction:
    """One message, or one to every other GPU."""
    if kind is Collective.SEND:
        message, steps, outside = Fraction(size), 1, int(group.nodes > 1)
        inside = 1 - outside
    else:
        message, steps = Fraction(size, group.ranks), ceil((group.ranks - 1) / _AT_A_TIME)
        inside, outside = group.local - 1, group.ranks - group.local
    protocol = _Protocol.LL if message <= _SHORT else _Protocol.SIMPLE
    costs = _RING[protocol]
    each = [
        number * message * _NANO / (links.bandwidth * costs.share)
        for number, links in ((inside, node.peers), (outside, node.network))
        if number and links is not None
    ]
    return costs.base_ns + steps * costs.step_ns["network" if outside else _wire(node)] + max(each)


def _rings(kind: Collective, size: int, group: Group, node: NodeSpec, bandwidth: int) -> Iterator[Fraction]:
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    sent = Fraction(passes * (group.ranks - 1), group.ranks) * size
    between = passes * (group.nodes - 1)
    inside = passes * (group.ranks - 1) - between
    for protocol, each in _usable(_RING, group, node):
        posts = (3 if protocol is _Protocol.SIMPLE else 1) if between else 0
        posted = posts * (_POST_AMD_NS if node.host.processors == "amd" else _POST_NS)
        # With one GPU per node, no step inside of a node hides the network's.
        outside = (_TREE[protocol] if group.local == 1 else each).step_ns["network"]
        latency = Fraction(each.base_ns + inside * max(each.step_ns[_wire(node)], posted) + between * outside)
        if protocol is _Protocol.SIMPLE and between and kind is Collective.ALL_REDUCE:
            latency *= Fraction(19 if node.gpu.architecture in _OLD else 14, 10)  # NCCL: the plateau of a ring
        rate = _rate(protocol, each, group, node, bandwidth)
        yield latency + _fill_ns(protocol) + sent * _NANO / rate


def _trees(size: int, group: Group, node: NodeSpec, bandwidth: int) -> Iterator[Fraction]:
    for protocol, each in _usable(_TREE, group, node):
        steps = (group.local - 1) * each.step_ns[_wire(node)] + _levels(group) * each.step_ns["network"]
        rate = _rate(protocol, each, group, node, bandwidth)
        if protocol is _Protocol.LL128 and group.nodes == 1:
            rate *= Fraction(7 * 16, 9 * 15)
        if group.local == 1:  # the tree cannot be balanced
            rate *= Fraction(85, 100)
        rate *= _corrected(_TREE_TENTHS[protocol], size)
        yield each.base_ns + _fill_ns(protocol) + 2 * steps + 2 * size * _NANO / rate


def _switches(size: int, group: Group, node: NodeSpec) -> Iterator[Fraction]:
    """All GPUs of a node through its switch; the nodes are a tree."""
    if node.peers is None or not node.peers.switch_bandwidth or group.local < _SWITCH_FROM:
        return
    latency = _SWITCH_NS + _FILL_NS + 2 * _levels(group) * _SWITCH_LEVEL_NS
    rate = Fraction(node.peers.switch_bandwidth)
    if group.nodes > 1 and node.network is not None:
        both_ways = 2 if group.nodes == 2 else 1
        per_byte = Fraction(2 * (group.ranks - 1), group.ranks)
        inside = rate * Fraction(2 * (group.local - 1), group.local)
        rate = min(inside, group.local * both_ways * Fraction(node.network.bandwidth)) / per_byte
        if node.gpu.architecture == "blackwell" and node.host.processors != "arm":
            rate *= _corrected(_SWITCH_TENTHS, size)
    yield latency + size * _NANO / rate


def _usable(costs: Mapping[_Protocol, _Costs], group: Group, node: NodeSpec) -> Iterator[tuple[_Protocol, _Costs]]:
    """LL128 needs NVLink between the GPUs of a node, and Volta."""
    has_nvlink = group.local == 1 or _wire(node) == "nvlink"
    has_ll128 = has_nvlink and node.gpu.architecture not in _BEFORE_VOLTA
    return ((key, each) for key, each in costs.items() if key is not _Protocol.LL128 or has_ll128)


def _tree_bandwidth(group: Group, node: NodeSpec, bandwidth: int) -> int:
    """That of a ring, but data crosses the wire between two nodes once, in a ring twice (src/graph/search.cc)."""
    if group.nodes == 2 and node.peers is not None and node.network is not None and group.local > 1:
        return min(node.peers.bandwidth, 2 * group.local * node.network.bandwidth)
    return bandwidth


def _rate(protocol: _Protocol, costs: _Costs, group: Group, node: NodeSpec, bandwidth: int) -> Fraction:
    """Bytes per second that a GPU sends, limited for LL."""
    rate = bandwidth * costs.share
    if protocol is not _Protocol.LL:
        return rate
    if group.nodes == 1:
        return min(rate, Fraction(_LL_IN_NODE.get(node.gpu.architecture or "", rate)))
    return min(rate, Fraction((_LL_ACROSS_AMD if node.host.processors == "amd" else _LL_ACROSS)[group.nodes > 2]))


def _corrected(tenths: Sequence[int], size: int) -> Fraction:
    position = size.bit_length() - 7
    return Fraction(tenths[position], 10) if 0 <= position < len(tenths) else Fraction(1)


def _levels(group: Group) -> int:
    return group.nodes.bit_length() - 1


def _fill_ns(protocol: _Protocol) -> int:
    return _FILL_NS if protocol is _Protocol.SIMPLE else 0


def _wire(node: NodeSpec) -> str:
    return "pcie" if node.peers is None else node.peers.wire
