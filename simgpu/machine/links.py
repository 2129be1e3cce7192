"""The links between GPUs and host that a copy passes, by name, and what each can carry."""

from __future__ import annotations

from simgpu.hardware.spec import Duplex, LinkSpec, NodeSpec, SwitchSpec

#: Names of the links that a copy passes, in the order from GPU to host.
Path = tuple[str, ...]

#: Capacities by link (bytes per second), and per GPU the paths of its copies out and in.
Network = tuple[dict[str, int], list[tuple[Path, Path]]]


def paths_of(node: NodeSpec, gpus: int) -> Network:
    """The network of a node's first GPUs: each has its own link, and those behind a switch share that.

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
        hops = [(f"gpu{gpu}", _carries(node.link))]
        hops += [(f"switch{i}", _carries(s)) for i, s in enumerate(node.switches) if gpu in s.gpus]
        out, back = [], []
        for name, (one_for_both, d2h, h2d) in hops:
            out.append(name if one_for_both else f"{name}.out")
            back.append(name if one_for_both else f"{name}.in")
            capacities[out[-1]], capacities[back[-1]] = d2h, h2d
        paths.append((tuple(out), tuple(back)))
    return capacities, paths


def single_paths(node: NodeSpec, *, beside: bool = False) -> Network:
    """The network of a GPU that runs alone: its link, and no switch.

    One engine serves one direction after the other, so it never makes them share. beside: whether others than copies
    use the link.
    """
    link = node.link
    if shares_capacity(node) or (beside and link.duplex is Duplex.HALF):
        return {"link": max(link.d2h_bandwidth, link.h2d_bandwidth)}, [(("link",), ("link",))]
    return {"out": link.d2h_bandwidth, "in": link.h2d_bandwidth}, [(("out",), ("in",))]


def shares_capacity(node: NodeSpec) -> bool:
    """Whether the two directions of a GPU's own link can be in each other's way."""
    return node.link.duplex is Duplex.HALF and node.gpu.copy_engines > 1


def buddy_paths(node: NodeSpec, network: Network) -> list[tuple[Path, Path]]:
    """Per GPU the paths to and from its buddy memory, whose links are added to the network if they are its own.

    >>> from simgpu.hardware.nodes import load_node
    >>> node = load_node("buddy-gpu")
    >>> buddy_paths(node, single_paths(node))
    [(('out',), ('in',))]
    """
    capacities, paths = network
    own = None if node.gpu.buddy is None else node.gpu.buddy.link
    if own is None:
        return paths
    one_for_both, out, back = _carries(own)
    found: list[tuple[Path, Path]] = []
    for gpu in range(len(paths)):
        names = [f"buddy{gpu}", f"buddy{gpu}"] if one_for_both else [f"buddy{gpu}.out", f"buddy{gpu}.in"]
        capacities.update(zip(names, (out, back), strict=True))
        found.append(((names[0],), (names[1],)))
    return found


def _carries(link: LinkSpec | SwitchSpec) -> tuple[bool, int, int]:
    """Whether both directions share one capacity, and what can pass out and in, bytes per second."""
    if link.duplex is Duplex.HALF:
        both = max(link.d2h_bandwidth, link.h2d_bandwidth)
        return True, both, both
    return False, link.d2h_bandwidth, link.h2d_bandwidth
