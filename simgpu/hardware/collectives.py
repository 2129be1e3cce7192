"""What a collective of NCCL takes: the cost model by which NCCL itself chooses a protocol and an algorithm.

Source: NCCL 2.30, src/graph/tuning.cc at 5067397c: latencies of the protocols LL, LL128 and Simple and of a step over
NVLink, PCIe and a network; the shares of the bandwidth that they reach; and the choice of the fastest. A ring sends
each byte of a buffer (ranks - 1) / ranks times, in an all-reduce twice. A node states the rate of a large buffer.

NCCL's model has long transfers at their full rate from the first byte, and so is up to 65% too fast below 256 MiB. So
Simple and the switch take a time to fill in addition, one number chosen from the curve of an H200 (`_FILL_NS`).

What is left out: `PAT`, `CollNet`, `NVLSTree`, the tree inside one node, which has as many steps as the ring there, the
corrections of medium sizes for rings of several nodes and trees, and the latency of a network adapter. Also left out
are its limits of the protocol LL (141 GB/s within a node of Hopper, less across nodes, by the processor), the
processor's overhead of a step across nodes, and latencies where each node has one GPU; a tree of nodes has one level
more here if their number is no power of two. So times across nodes up to 16 MiB are about half of those of its model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from simgpu.errors import InputError
from simgpu.hardware.sharing import check_gpus
from simgpu.hardware.spec import NodeSpec, PeerSpec

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


@dataclass(frozen=True, slots=True)
class _Protocol:
    """share: of the bandwidth that remains for data. base_ns: of a collective. step_ns: of a step, by the wire.
    fill_ns: until data flows at the full rate."""

    share: Fraction
    base_ns: int
    step_ns: Mapping[str, int]
    fill_ns: int = 0


_RING = (
    _Protocol(Fraction(1, 2), 6_600, {"nvlink": 600, "pcie": 1_000, "network": 2_700}),
    _Protocol(Fraction(92, 100), 14_000, {"nvlink": 1_900, "pcie": 2_500, "network": 4_000}),
    _Protocol(Fraction(1), 8_400, {"nvlink": 3_400, "pcie": 5_700, "network": 14_000}, _FILL_NS),
)
#: Of an all-reduce across nodes: a tree of nodes, in each of which the GPUs are a chain.
_TREE = (
    _Protocol(Fraction(92, 100) / Fraction(38, 10), 6_800, {"nvlink": 600, "pcie": 1_000, "network": 5_000}),
    _Protocol(Fraction(92, 100) * Fraction(120, 128), 14_000, {"nvlink": 1_250, "pcie": 1_900, "network": 8_500}),
    _Protocol(Fraction(92, 100), 8_400, {"nvlink": 4_000, "pcie": 4_000, "network": 14_000}, _FILL_NS),
)
#: With fewer GPUs NCCL does not let the switch add up (measured on an H200; a B200 begins with six).
_SWITCH_FROM = 5
_SWITCH_NS = 25_000


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
    15010
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
    bandwidth, ranks = bus_bandwidth(group, node), group.ranks
    if kind is Collective.SEND:
        for each in _RING:
            step = each.step_ns["network" if group.nodes > 1 else _wire(node.peers)]
            rate = node.network.bandwidth if node.network is not None and group.nodes > 1 else bandwidth
            yield each.base_ns + each.fill_ns + step + Fraction(size * _NANO) / (rate * each.share)
        return
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    sent = Fraction(passes * (ranks - 1), ranks) * size
    between = passes * (group.nodes - 1)
    for each in _RING:
        latency = each.base_ns + each.fill_ns + _steps_ns(each, passes * (ranks - 1) - between, between, node)
        yield latency + sent * _NANO / (bandwidth * each.share)
    if kind is Collective.ALL_REDUCE and group.nodes > 1:
        for each in _TREE:
            levels = (group.nodes - 1).bit_length()
            latency = each.base_ns + each.fill_ns + _steps_ns(each, 2 * (group.local - 1), 2 * levels, node)
            yield latency + Fraction(2 * size * _NANO) / (bandwidth * each.share)
    is_added_up = kind is Collective.ALL_REDUCE and group.nodes == 1 and ranks >= _SWITCH_FROM
    if is_added_up and node.peers is not None and node.peers.switch_bandwidth:
        yield _SWITCH_NS + _FILL_NS + Fraction(size * _NANO, node.peers.switch_bandwidth)


def _steps_ns(protocol: _Protocol, inside: int, between: int, node: NodeSpec) -> int:
    """The latency of steps inside of nodes and between them."""
    local = protocol.step_ns[_wire(node.peers)] if inside else 0
    return inside * local + between * protocol.step_ns["network"]


def _wire(peers: PeerSpec | None) -> str:
    return "pcie" if peers is None else peers.wire
