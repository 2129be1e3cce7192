"""Link sharing of the reference machine: max-min fair rates, found by bisection, in whole bytes per second.

It shares no code with the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simgpu.hardware.spec import Duplex, NodeSpec

#: A flow's own limit, and the links it shares with others.
Wanted = tuple[int, tuple[str, ...]]


def shared_links(node: NodeSpec, gpu: int, src: str, dst: str, alone: bool) -> tuple[str, ...]:
    """The links that a copy shares with others: its own link if that is half duplex, and its switch, if any."""
    number, link = next((n, each) for n, each in enumerate(node.links) if set(each.ends) == {src, dst})
    whose = gpu if "device" in link.ends else "all"
    links = [f"link {whose} {number}"] if link.duplex is Duplex.HALF else []
    alone = alone and not any(switch.links for switch in node.switches)
    if any(each.over_gpu_link for each in node.more_links) and (number == 0 or link.over_gpu_link):
        both = node.link.duplex is Duplex.HALF
        links = [each for each in links if each != f"link {whose} 0"]
        links.append(f"gpu {gpu} {'both' if both else 'out' if src == 'device' else 'in'}")
    for n, switch in enumerate(node.switches):
        if (gpu in switch.gpus and number == 0 and not alone) or link.name in switch.links:
            both = switch.duplex is Duplex.HALF
            links.append(f"switch {n} {'both' if both else 'out' if dst == 'host' else 'in'}")
    if number == 0 and not alone and node.gpus > 1 and node.host.memory_bandwidth is not None:
        links.append("memory of the host")
    return tuple(links)


def carries(node: NodeSpec, link: str) -> int:
    """Bytes per second that a link of that name carries."""
    if link == "memory of the host":
        assert node.host.memory_bandwidth is not None
        return node.host.memory_bandwidth
    what, number, *way = link.split()
    if what == "link":
        return max(node.links[int(way[0])].bandwidths)
    of = node.link if what == "gpu" else node.switches[int(number)]
    if way == ["out"]:
        return of.d2h_bandwidth
    return of.h2d_bandwidth if way == ["in"] else max(of.d2h_bandwidth, of.h2d_bandwidth)


def fair_rates(flows: Sequence[Wanted], capacity: Mapping[str, int]) -> list[int]:
    """Raise all rates together until a link is full or a flow reaches its limit; then continue with the others."""
    rates: dict[int, int] = {}
    rising = set(range(len(flows)))

    def on(link: str) -> list[int]:
        return [i for i, (_, links) in enumerate(flows) if link in links]

    def fits(level: int) -> bool:
        rate = [rates[i] if i in rates else min(cap, level) for i, (cap, _) in enumerate(flows)]
        return all(sum(rate[i] for i in on(link)) <= most for link, most in capacity.items())

    def stops(link: str, level: int) -> bool:
        taken = sum(rates.get(i, level) for i in on(link))
        return taken + sum(i in rising for i in on(link)) > capacity[link]

    while rising:
        low, high = 0, max(flows[i][0] for i in rising)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        for i in [i for i in rising if flows[i][0] <= low]:
            rates[i] = flows[i][0]
            rising.discard(i)
        full = {link for link in capacity if stops(link, low)}
        for i in [i for i in rising if full.intersection(flows[i][1])]:
            rates[i] = low
            rising.discard(i)
    return [rates[i] for i in range(len(flows))]
