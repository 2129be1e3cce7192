"""Links between GPUs and host, and the flows of bytes that share them at max-min fair rates.

A flow has a path over links, a number of bytes, and a cap on its rate. Rates are integers and change only when a flow
starts or ends or its cap changes; end times round up to whole nanoseconds. A flow that is alone on its path takes
exactly the time of `simgpu.memory.transfer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import simpy

from simgpu.hardware.sharing import host_as_switch
from simgpu.hardware.spec import Duplex, LinkSpec, MemoryLink, NodeSpec, SwitchSpec
from simgpu.memory.transfer import NANO
from simgpu.program.instructions import DEVICE, HOST


def max_min_rates(paths: Sequence[tuple[str, ...]], caps: Sequence[int], capacities: Mapping[str, int]) -> list[int]:
    """Max-min fair rates in whole bytes per second.

    paths[i]: links flow i uses; caps[i]: its own limit. Flows are raised together until a link is full or a cap is
    reached; what a full link cannot divide evenly is left unused. The tightest limit is settled first, by name
    where equal, so the result does not depend on the order of the flows.

    >>> max_min_rates([("bus",), ("bus",)], [100, 30], {"bus": 100})
    [70, 30]
    >>> max_min_rates([("bus",), ("bus",)], [100, 100], {"bus": 101})
    [50, 50]
    """
    rates = [0] * len(paths)
    free = dict(capacities)
    open_flows = set(range(len(paths)))
    while open_flows:
        share = {
            link: free[link] // sum(link in paths[i] for i in open_flows)
            for link in sorted({link for i in open_flows for link in paths[i]})
        }
        limit = {i: min([caps[i], *(share[link] for link in paths[i])]) for i in open_flows}
        lowest = min(limit.values())
        for i in sorted(open_flows):
            if limit[i] == lowest:
                rates[i] = lowest
                open_flows.discard(i)
                for link in paths[i]:
                    free[link] -= lowest
    return rates


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes in transfer; `remaining` counts billionths of a byte, so that progress at any integer rate is exact.

    cap: returns the flow's own limit, bytes per second; called whenever rates are computed. passed: succeeds when the
    last byte has arrived. timer: the timeout that ends it at its present rate; earlier ones are outdated.
    """

    path: tuple[str, ...]
    cap: Callable[[], int]
    remaining: int
    passed: simpy.Event
    rate: int = 0
    timer: simpy.Event | None = None


class FlowNetwork:
    """The active flows over links of given capacity (bytes per second).

    >>> env = simpy.Environment(initial_time=0)
    >>> network = FlowNetwork(env, {"link": 2 * 10**9})
    >>> both = network.send(("link",), 10) & network.send(("link",), 30)
    >>> env.run(both) and env.now
    20
    """

    def __init__(self, env: simpy.Environment, capacities: Mapping[str, int]) -> None:
        self.env = env
        self.capacities = capacities
        self.flows: list[Flow] = []
        self.last = 0

    def send(self, path: tuple[str, ...], size: int, cap: Callable[[], int] | None = None) -> simpy.Event:
        """Send `size` bytes; the event succeeds when the last one has arrived. cap: as in `Flow`, None for the rate of
        the path."""
        limit = min(self.capacities[link] for link in path)
        self._progress()
        flow = Flow(path, cap or (lambda: limit), size * NANO, self.env.event())
        self.flows.append(flow)
        self._set_rates()
        return flow.passed

    def update_rates(self) -> None:
        """Some flow's own limit has changed."""
        if self.flows:
            self._progress()
            self._set_rates()

    def _progress(self) -> None:
        now = int(self.env.now)
        for flow in self.flows:
            flow.remaining -= flow.rate * (now - self.last)
        self.last = now

    def _set_rates(self) -> None:
        rates = max_min_rates([f.path for f in self.flows], [f.cap() for f in self.flows], self.capacities)
        if not any(rates):
            # A link too slow to give every flow a whole byte per second serves the first and lets the others wait.
            rates[0] = 1
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate != flow.rate:
                flow.rate, flow.timer = rate, None
                if rate:
                    flow.timer = self.env.timeout(-(-max(flow.remaining, 0) // rate))
                    flow.timer.callbacks.append(partial(self._end, flow))

    def _end(self, flow: Flow, timer: simpy.Event) -> None:
        if flow.timer is not timer:
            return
        self._progress()
        self.flows.remove(flow)
        if self.flows:
            self._set_rates()
        flow.passed.succeed()


#: Names of the links that a copy passes, in the order from GPU to host.
Path = tuple[str, ...]

#: Capacities by link (bytes per second), and per GPU the paths of its copies out and in.
Network = tuple[dict[str, int], list[tuple[Path, Path]]]


def paths_of(node: NodeSpec, gpus: int) -> Network:
    """The network of a node's first GPUs: each has its own link, those behind a switch share that, and all share the
    bandwidth of the host's memory.

    >>> from simgpu.hardware.spec import GpuSpec
    >>> wire = LinkSpec("wire", 10, 12)
    >>> node = NodeSpec("two", GpuSpec("gpu", 1), wire, gpus=2, switches=(SwitchSpec((0, 1), 10, 11),))
    >>> capacities, paths = paths_of(node, 2)
    >>> paths[1], capacities["switch0.out"]
    ((('gpu1.out', 'switch0.out'), ('gpu1.in', 'switch0.in')), 10)
    """
    capacities: dict[str, int] = {}
    paths = []
    for gpu in range(gpus):
        hops: list[tuple[str, LinkSpec | SwitchSpec]] = [(f"gpu{gpu}", node.link)]
        shared = (*node.switches, *host_as_switch(node))
        hops += [(f"switch{i}", switch) for i, switch in enumerate(shared) if gpu in switch.gpus]
        out: list[str] = []
        back: list[str] = []
        for name, link in hops:
            there, again = _added(name, link, capacities)
            out += there
            back += again
        paths.append((tuple(out), tuple(back)))
    return capacities, paths


def single_paths(node: NodeSpec, *, others: bool = False) -> Network:
    """The network of a GPU that runs alone: its link, and no switch.

    A single copy engine serves one direction at a time, so its two directions never share capacity. others: whether
    kernels, or copies of another link, use the link too.
    """
    link = node.link
    if shares_capacity(node) or (others and link.duplex is Duplex.HALF):
        return {"link": max(link.d2h_bandwidth, link.h2d_bandwidth)}, [(("link",), ("link",))]
    return {"out": link.d2h_bandwidth, "in": link.h2d_bandwidth}, [(("out",), ("in",))]


def shares_capacity(node: NodeSpec) -> bool:
    """Whether copies in the two directions of a GPU's own link share its capacity."""
    return shares_directions(node.links[0])


def shares_directions(link: MemoryLink) -> bool:
    """Whether copies in the two directions of a link can pass at the same time and share its capacity."""
    return link.duplex is Duplex.HALF and link.copy_engines > 1


def paths_of_links(node: NodeSpec, network: Network) -> list[list[tuple[Path, Path]]]:
    """Per GPU the paths out and back of each of the node's links; further links are added to the network.

    A link between memories that GPUs share is one for all of them. A link that a switch names passes it too; copies of
    one with `over_gpu_link` pass the GPU's own link.
    """
    capacities, paths = network
    all_paths = [[pair] for pair in paths]
    for link in node.more_links:
        name = "-".join(link.ends)
        for gpu, pairs in enumerate(all_paths):
            hops = [f"gpu{gpu}.{name}" if DEVICE in link.ends else name]
            pair = _added(hops[0], link, capacities)
            if link.over_gpu_link:
                out, back = (each[:1] for each in paths[gpu])
                out, back = (out, back) if link.ends[0] == DEVICE else (back, out)
                pair = pair[0] + out, pair[1] + back
            for number, switch in enumerate(node.switches):
                if name in switch.links:
                    there, back = _added(f"switch{number}", switch, capacities)
                    # A switch's own directions are towards the host and away from it.
                    there, back = (back, there) if link.ends[0] == HOST else (there, back)
                    pair = pair[0] + there, pair[1] + back
            pairs.append(pair)
    return all_paths


def _added(name: str, link: LinkSpec | SwitchSpec | MemoryLink, capacities: dict[str, int]) -> tuple[Path, Path]:
    """The names of a link's two directions; their capacities are added."""
    one_for_both, out, back = _carries(link)
    names = (name, name) if one_for_both else (f"{name}.out", f"{name}.in")
    capacities.update(zip(names, (out, back), strict=True))
    return (names[0],), (names[1],)


def buddy_paths(node: NodeSpec, network: Network) -> list[tuple[Path, Path]]:
    """Per GPU the paths to and from its buddy memory; a separate buddy link is added to the network.

    >>> from simgpu.hardware.nodes import load_node
    >>> node = load_node("buddy-gpu")
    >>> buddy_paths(node, single_paths(node))
    [(('out',), ('in',))]
    """
    capacities, paths = network
    own = None if node.gpu.buddy is None else node.gpu.buddy.link
    if own is None:
        return paths
    return [_added(f"buddy{gpu}", own, capacities) for gpu in range(len(paths))]


def _carries(link: LinkSpec | SwitchSpec | MemoryLink) -> tuple[bool, int, int]:
    """Whether both directions share one capacity, and the capacities out and in, bytes per second."""
    out, back = link.bandwidths if isinstance(link, MemoryLink) else (link.d2h_bandwidth, link.h2d_bandwidth)
    both = max(out, back)
    return (True, both, both) if link.duplex is Duplex.HALF else (False, out, back)
