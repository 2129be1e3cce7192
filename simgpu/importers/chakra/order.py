"""The order of the nodes of a Chakra trace: after what they depend on, by recorded start, then by id."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from simgpu.errors import InputError, Problem
from simgpu.importers.chakra.nodes import Document, Node


def ordered(document: Document, kernels: Iterable[int], by_start: bool) -> list[Node]:
    """All nodes in an order in which each follows its dependencies.

    kernels: ids of nodes that wait their turn, by start where `by_start` is set, and by id; the others come as soon as
    they may. A parent that the file does not hold is none: converters drop nodes without work. Raises `InputError` for
    data dependencies on nodes that are not there, and for cycles.
    """
    nodes = {node.id: node for node in document.nodes}
    needs = _dependencies(document, nodes)
    followers: dict[int, list[int]] = {number: [] for number in nodes}
    waiting = {number: len(found) for number, found in needs.items()}
    for number, found in needs.items():
        for other in found:
            followers[other].append(number)
    timed = set(kernels)

    def key(number: int) -> tuple[bool, int, int]:
        is_kernel = number in timed
        return is_kernel, nodes[number].start_ns if is_kernel and by_start else 0, number

    ready: list[tuple[bool, int, int]] = []
    for number in nodes:
        if not waiting[number]:
            heappush(ready, key(number))
    done = []
    while ready:
        number = heappop(ready)[-1]
        done.append(nodes[number])
        for follower in followers[number]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, key(follower))
    if len(done) < len(nodes):
        raise _cycle(document, nodes, needs, {node.id for node in done})
    return done


def _dependencies(document: Document, nodes: dict[int, Node]) -> dict[int, set[int]]:
    problems = []
    needs: dict[int, set[int]] = {}
    for node in document.nodes:
        if missing := [number for number in node.data_deps if number not in nodes]:
            what = f"node {node.told} depends on node {missing[0]}, which the file does not hold: it seems cut off"
            problems.append(Problem(str(document.path), node.place, what, "copy or convert it again"))
        needs[node.id] = {number for number in (*node.ctrl_deps, *node.data_deps) if number in nodes}
    if problems:
        raise InputError(problems)
    return needs


def _cycle(document: Document, nodes: dict[int, Node], needs: dict[int, set[int]], done: set[int]) -> InputError:
    """The first cycle among nodes that never became free: each has a dependency among them."""
    number = min(nodes.keys() - done)
    path: list[int] = []
    while number not in path:
        path.append(number)
        number = min(needs[number] - done)
    cycle = path[path.index(number) :]
    told = " -> ".join(nodes[step].told for step in (*cycle, cycle[0]))
    what = f"a cycle, each node depends on the next: {told}"
    return InputError.single(document.path, nodes[cycle[0]].place, what, "convert it again")
