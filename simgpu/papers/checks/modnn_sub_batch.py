"""moDNN's equation 8 a second time, and the sub-batches that follow from it (section 5.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import ceil
from typing import Any

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.graph.transforms import algorithm_choices
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.found import rule
from simgpu.papers.checks.modnn_memory import GB, stays
from simgpu.papers.checks.modnn_networks import BATCHES, NODE, network
from simgpu.policies.common.sub_batches import ALPHA, Counted, rounded_down, select_sub_batch, window_bytes
from simgpu.trace.model import BlockKind, Phase

_SEARCHED = {"VGG-16": (1.5, 2, 4, 12), "ResNet-34": (0.2, 1, 3, 4, 5, 12), "FCN-32s": (1.5, 2, 6, 12)}


def tasks_of(graph: TaskGraph) -> list[list[int]]:
    """FP, BP1 and BP2 of each layer, as kernels: neighbours of a layer, those that only make a gradient apart."""
    kernels = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is not Phase.OPTIMIZER]
    steps = graph.layers.step_of
    return [list(own) for _, own in groupby(kernels, key=lambda k: (steps[k], _only_gradient(graph, k)))]


def _only_gradient(graph: TaskGraph, k: int) -> bool:
    kinds = {graph.blocks[b].kind for b in graph.writes[k]} - {BlockKind.WORKSPACE}
    return graph.kernels[k].phase is Phase.BACKWARD and kinds == {BlockKind.WEIGHT_GRADIENT}


def windows_of(graph: TaskGraph) -> tuple[int, list[tuple[int, range]]]:
    """What resides, and of each 15% consecutive tasks the bytes at their fullest moment, and which tasks these are."""
    resident, tasks = stays(graph), tasks_of(graph)
    data = [_data(graph, task) - resident for task in tasks]
    touching: dict[int, list[int]] = {}
    for t, blocks in enumerate(data):
        for b in blocks:
            touching.setdefault(b, []).append(t)
    width = ceil(len(tasks) * 15 / 100)
    found = []
    for begin in range(len(tasks) - width + 1):
        window = range(begin, begin + width)
        there = set().union(*(data[t] for t in window))
        moments = (sum(graph.sizes[b] for b in there if touching[b][0] <= t <= touching[b][-1]) for t in window)
        found.append((max(moments), window))
    return sum(graph.sizes[b] for b in resident), found


def _data(graph: TaskGraph, task: Sequence[int]) -> set[int]:
    touched = {b for k in task for b in (*graph.reads[k], *graph.writes[k])}
    return {b for b in touched if graph.blocks[b].kind is not BlockKind.WORKSPACE}


def workspaces_of(graph: TaskGraph) -> list[int]:
    """Of each task the largest workspace of its kernels' fastest algorithms."""
    listed = algorithm_choices(graph)
    return [max((listed[k][0].workspace_bytes for k in task if k in listed), default=0) for task in tasks_of(graph)]


def equation_8(windows: tuple[int, list[tuple[int, range]]], workspaces: Sequence[int]) -> int:
    """Bytes that any 15% consecutive tasks need at most, with the largest workspace among them."""
    resident, found = windows
    return resident + max(data + max(workspaces[t] for t in tasks) for data, tasks in found)


class Search:
    """The sub-batches of a network: all regular sizes one by one, profile and selection in turn."""

    def __init__(self, graph: TaskGraph) -> None:
        self.whole = graph.trace.info.batch
        self.sizes = sorted({1 << power for power in range(7)} | {*range(64, self.whole, 64), self.whole})
        self.windows = {size: windows_of(graph.at_batch(size)) for size in self.sizes}
        self.workspaces = {size: workspaces_of(graph.at_batch(size)) for size in self.sizes}

    def need(self, size: int, profiled: int) -> int:
        """Equation 8 with the data of one size and the workspaces of another."""
        return equation_8(self.windows[size], self.workspaces[profiled])

    def settled(self, budget: int) -> int | None:
        """What profile and selection in turn end with; None where they go round in a circle."""
        seen = [self.whole]
        while True:
            found = max((size for size in self.sizes if self.need(size, seen[-1]) <= budget), default=1)
            if found == seen[-1] or found in seen:
                return found if found == seen[-1] else None
            seen.append(found)

    def allowed(self, size: int, budget: int) -> bool:
        """Whether a size fits by its own profile and the next regular one does not; one sample may be too much."""
        larger = [each for each in self.sizes if each > size]
        fits = self.need(size, size) <= budget or size == 1
        return fits and (not larger or self.need(larger[0], larger[0]) > budget)


def sub_batch() -> dict[str, Any]:
    """Equation 8 and what is selected by it, against sums over each window."""
    gpu = load_node(NODE).gpu
    same, needs = True, []
    for name in BATCHES:
        graph = network(name)
        need = equation_8(windows_of(graph), workspaces_of(graph))
        same = same and need == window_bytes(Tdfg.of(graph), ALPHA)
        needs.append(f"{name} {need / GB:.4g}")
    chosen, right, circles = [], True, 0
    for name, budgets in _SEARCHED.items():
        graph = network(name)
        search = Search(graph)
        sizes = []
        for budget in (int(gb * GB) for gb in budgets):
            sizes.append(size := select_sub_batch(graph, gpu, budget).size)
            settled = search.settled(budget)
            circles += settled is None
            right = right and (size == settled if settled is not None else search.allowed(size, budget))
        chosen.append(f"{name} by {_listed(sizes)} in {_listed(budgets)} GB")
    told = f"{'; '.join(chosen)}; profiles go round in a circle {circles} times"
    return {
        "equation_8": rule(same, "whole batches, to the byte: " + ", ".join(needs) + " GB"),
        "selected": rule(right, told),
        "regular": rule(_regular(), "of all sizes up to 1000"),
    }


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _regular() -> bool:
    """Above 64 multiples of 64, below powers of two, and never a larger one that would do."""
    regular = [*(1 << power for power in range(6)), *range(64, 1025, 64)]
    return all(rounded_down(size) == max(each for each in regular if each <= size) for size in range(1, 1001))


@lru_cache
def _resnet34() -> TaskGraph:
    return network("ResNet-34")


def resnet34(counted: Counted = "live") -> dict[str, Any]:
    """Section 7.4: GB of the smallest budget in which ResNet-34 runs in its whole batch. counted: of equation 8."""
    graph, gpu = _resnet34(), load_node(NODE).gpu
    need = window_bytes(Tdfg.of(graph, gpu.alignment), ALPHA, counted)
    sizes = [select_sub_batch(graph, gpu, budget, counted=counted).size for budget in (need, need - 1)]
    if sizes[0] != BATCHES["ResNet-34"] or sizes[1] >= sizes[0]:
        raise AssertionError(f"sub-batches of {sizes} in {need} B and a byte less")
    return {"budget": need / GB}
