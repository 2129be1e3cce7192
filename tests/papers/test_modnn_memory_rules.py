"""The rules of moDNN's lower bound, sub-batches and batches (Chen et al., TPDS 2019, sections 5.1 and 7).

Equations 6 to 8 are computed from the rows of a trace, and compared with the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.graph.bounds import memory_bounds
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.graph.transforms import algorithm_choices
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.modnn import BATCHES, GB, NODE, network
from simgpu.papers.tasks import loaded
from simgpu.policies.common.sub_batches import ALPHA, rounded_down, select_sub_batch, window_bytes
from simgpu.program.instructions import Copy
from simgpu.program.verify import verify
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice, BlockKind, Phase
from tests.graph.test_tdfg import LAYER
from tests.papers.modnn_cases import planned
from tests.papers.modnn_plans import Round
from tests.papers.rules import fails

_GIVEN = (BlockKind.INPUT, BlockKind.LABEL)
#: Budgets in GB.
_SEARCHED = {"VGG-16": (1.5, 2, 4, 12), "ResNet-34": (0.2, 1, 3, 4, 5, 12), "FCN-32s": (1.5, 2, 6, 12)}


@pytest.mark.slow
@pytest.mark.rule
@pytest.mark.parametrize("name", BATCHES)
def test_the_bound_is_the_most_demanding_task_at_one_sample_and_the_weights(name: str) -> None:
    """Equations 6 and 7, to the byte."""
    graph, alignment = network(name), load_node(NODE).gpu.alignment
    assert memory_bounds(graph, alignment).bound.bytes == equation_7(graph.at_batch(1), alignment)


@pytest.mark.rule
@pytest.mark.parametrize("name", ["VGG-16", "ResNet-34", "FCN-32s"])
def test_a_network_is_planned_in_its_bound_and_refused_in_a_byte_less(name: str) -> None:
    graph, node = network(name), load_node(NODE)
    alignment = node.gpu.alignment
    bound = equation_7(graph.at_batch(1), alignment)
    plan = planned(graph, node, bound).plan
    verify(plan.program, graph, capacity=bound, alignment=alignment)
    assert plan.sub_batch == 1
    with pytest.raises(OutOfMemoryError):
        planned(graph, node, bound - 1)


@pytest.mark.slow
@pytest.mark.rule
@pytest.mark.parametrize("name", BATCHES)
def test_equation_8_is_what_any_15_percent_of_tasks_need(name: str) -> None:
    """As printed, all that a window's tasks touch is added up; to the byte."""
    graph = network(name)
    assert equation_8(windows_of(graph), workspaces_of(graph)) == window_bytes(Tdfg.of(graph), ALPHA)


def test_read_as_live_data_equation_8_is_what_a_window_needs_at_its_fullest_moment() -> None:
    graph = network("ResNet-34")
    live = equation_8(windows_of(graph, live=True), workspaces_of(graph))
    assert live == window_bytes(Tdfg.of(graph), ALPHA, "live") < window_bytes(Tdfg.of(graph), ALPHA)


@pytest.mark.slow
@pytest.mark.rule
@pytest.mark.parametrize("name", _SEARCHED)
def test_the_sub_batch_is_the_largest_that_fits_profiled_and_selected_in_turn(name: str) -> None:
    """The paper does not say what to do where profiles never settle; then the largest that fits by its own profile."""
    graph, gpu = network(name), load_node(NODE).gpu
    search = Search(graph)
    for budget in (int(gigabytes * GB) for gigabytes in _SEARCHED[name]):
        size, settled = select_sub_batch(graph, gpu, budget).size, search.settled(budget)
        assert size == settled if settled is not None else search.allowed(size, budget), budget


@pytest.mark.rule
def test_sub_batches_are_multiples_of_64_and_below_powers_of_two() -> None:
    """And never smaller than another regular size that would do."""
    regular = [*(1 << power for power in range(6)), *range(64, 1025, 64)]
    for size in range(1, 1001):
        assert rounded_down(size) == max(each for each in regular if each <= size)


@pytest.mark.rule
@pytest.mark.parametrize("study", ["modnn-10", "modnn-12", "modnn-14", "modnn-17", "modnn-18"])
def test_networks_are_trained_in_the_batches_of_section_7(study: str) -> None:
    assert {name: trace.info.batch for name, trace in loaded(study, "{}").traces.items()} == BATCHES


@pytest.mark.rule
@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_sub_batches_load_each_sample_once(name: str) -> None:
    """In the 12 GiB of a K40."""
    graph, node = network(name), load_node(NODE)
    rounds = planned(graph, node, node.gpu.memory).rounds()
    assert sum(part.segment.repeat * _images(part) for part in rounds) == _bytes_of_images(graph)


def _images(part: Round) -> int:
    """Bytes of images that a round loads, those that come in again counted once."""
    loads = {each.block for each in part.codes[1] if isinstance(each, Copy) and each.dst == "device"}
    return sum(part.graph.copy_sizes[b] for b in loads if part.graph.blocks[b].kind is BlockKind.INPUT)


def _bytes_of_images(graph: TaskGraph) -> int:
    return sum(graph.sizes[b] for b, block in enumerate(graph.blocks) if block.kind is BlockKind.INPUT)


# --- equations 6 and 7 ---------------------------------------------------------------------------------------


def stays(graph: TaskGraph) -> set[int]:
    """Section 3.2: weights, their gradients and all else that a network keeps reside; images and labels do not."""
    return {
        b
        for b, block in enumerate(graph.blocks)
        if block.kind is BlockKind.WEIGHT_GRADIENT or (block.persistent and block.kind not in _GIVEN)
    }


def workspace(graph: TaskGraph, k: int) -> int:
    """Of the algorithm of kernel k with the least."""
    own = sum(graph.sizes[b] for b in graph.writes[k] if graph.blocks[b].kind is BlockKind.WORKSPACE)
    return min([own, *(choice.workspace_bytes for choice in algorithm_choices(graph).get(k, ()))])


def equation_6(graph: TaskGraph, k: int, resident: set[int], alignment: int) -> int:
    """Bytes of what kernel k takes in and puts out next to what resides, and of its least workspace."""
    touched = {*graph.reads[k], *graph.writes[k]} - resident
    data = [graph.sizes[b] for b in touched if graph.blocks[b].kind is not BlockKind.WORKSPACE]
    return sum(-(-size // alignment) * alignment for size in (*data, workspace(graph, k)))


def equation_7(graph: TaskGraph, alignment: int) -> int:
    """The lower bound of an iteration at its own batch, from the rows of its trace alone."""
    resident = stays(graph)
    weights = sum(-(-graph.sizes[b] // alignment) * alignment for b in resident)
    return weights + max(equation_6(graph, k, resident, alignment) for k in range(len(graph.kernels)))


# --- equation 8 and what is selected by it -----------------------------------------------------------------


def tasks_of(graph: TaskGraph) -> list[list[int]]:
    """FP, BP1 and BP2 of each layer, as kernels: neighbours of a layer, those that only make a gradient apart."""
    kernels = [k for k, kernel in enumerate(graph.kernels) if kernel.phase is not Phase.OPTIMIZER]
    steps = graph.layers.step_of
    return [list(own) for _, own in groupby(kernels, key=lambda k: (steps[k], _only_gradient(graph, k)))]


def _only_gradient(graph: TaskGraph, k: int) -> bool:
    kinds = {graph.blocks[b].kind for b in graph.writes[k]} - {BlockKind.WORKSPACE}
    return graph.kernels[k].phase is Phase.BACKWARD and kinds == {BlockKind.WEIGHT_GRADIENT}


def windows_of(graph: TaskGraph, *, live: bool = False) -> tuple[int, list[tuple[int, range]]]:
    """What resides, and of each 15% consecutive tasks the bytes that they touch, and which tasks these are.

    live: only the bytes at their fullest moment.
    """
    resident, tasks = stays(graph), tasks_of(graph)
    data = [_data(graph, task) - resident for task in tasks]
    touching: dict[int, list[int]] = {}
    for t, blocks in enumerate(data):
        for b in blocks:
            touching.setdefault(b, []).append(t)
    width = ceil(len(tasks) * 15 / 100)
    windows = []
    for begin in range(len(tasks) - width + 1):
        window = range(begin, begin + width)
        there = set().union(*(data[t] for t in window))
        moments = (sum(graph.sizes[b] for b in there if touching[b][0] <= t <= touching[b][-1]) for t in window)
        windows.append((max(moments) if live else sum(graph.sizes[b] for b in there), window))
    return sum(graph.sizes[b] for b in resident), windows


def _data(graph: TaskGraph, task: Sequence[int]) -> set[int]:
    touched = {b for k in task for b in (*graph.reads[k], *graph.writes[k])}
    return {b for b in touched if graph.blocks[b].kind is not BlockKind.WORKSPACE}


def workspaces_of(graph: TaskGraph) -> list[int]:
    """Of each task the largest workspace of its kernels' fastest algorithms."""
    listed = algorithm_choices(graph)
    return [max((listed[k][0].workspace_bytes for k in task if k in listed), default=0) for task in tasks_of(graph)]


def equation_8(windows: tuple[int, list[tuple[int, range]]], workspaces: Sequence[int]) -> int:
    """Bytes that any 15% consecutive tasks need at most, with the largest workspace among them."""
    resident, needed = windows
    return resident + max(data + max(workspaces[t] for t in tasks) for data, tasks in needed)


class Search:
    """The sub-batches of a network: all regular sizes one by one, profile and selection in turn."""

    def __init__(self, graph: TaskGraph) -> None:
        self.full_batch = graph.trace.info.batch
        self.sizes = sorted({1 << power for power in range(7)} | {*range(64, self.full_batch, 64), self.full_batch})
        self.windows = {size: windows_of(graph.at_batch(size)) for size in self.sizes}
        self.workspaces = {size: workspaces_of(graph.at_batch(size)) for size in self.sizes}

    def need(self, size: int, profiled: int) -> int:
        """Equation 8 with the data of one size and the workspaces of another."""
        return equation_8(self.windows[size], self.workspaces[profiled])

    def settled(self, budget: int) -> int | None:
        """What profile and selection in turn end with; None where they go round in a circle."""
        seen = [self.full_batch]
        while True:
            size = max((size for size in self.sizes if self.need(size, seen[-1]) <= budget), default=1)
            if size == seen[-1] or size in seen:
                return size if size == seen[-1] else None
            seen.append(size)

    def allowed(self, size: int, budget: int) -> bool:
        """Whether a size fits by its own profile and the next regular one does not; one sample may be too much."""
        larger = [each for each in self.sizes if each > size]
        fits = self.need(size, size) <= budget or size == 1
        return fits and (not larger or self.need(larger[0], larger[0]) > budget)


# --- the equations above by hand, and tests that fail where they are others ------------------------------------


def test_equations_6_and_7_on_a_layer_with_weights() -> None:
    """As in the tests of bounds: weights and gradients reside, each task by the algorithm without workspace."""
    assert sum(LAYER.sizes[b] for b in stays(LAYER)) == 100 + 4 + 101 + 102 + 5
    needs = [equation_6(LAYER, k, stays(LAYER), 1) for k in range(len(LAYER.kernels))]
    assert needs == [30, 20 + 1 + 21, 32, 31, 33, 0, 0]
    assert equation_7(LAYER, 1) == 100 + 4 + 101 + 102 + 5 + 42


def test_another_bound_breaks_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.equation_7", lambda graph, alignment: 1 << 40)
    assert fails(test_the_bound_is_the_most_demanding_task_at_one_sample_and_the_weights, "ResNet-34")
    assert fails(test_a_network_is_planned_in_its_bound_and_refused_in_a_byte_less, "ResNet-34")


def test_windows_on_a_chain_slide_over_its_activations() -> None:
    """Twelve tasks, two in a window: F4 and F5 touch x4, x5 and x6; and the workspace of F5 counts with them."""
    deep_chain = chain([1] * 6, [1] * 6, [1, 2, 3, 100, 200, 4])
    graph = TaskGraph.of(deep_chain)
    assert equation_8(windows_of(graph), workspaces_of(graph)) == 304 == window_bytes(Tdfg.of(graph))
    with_workspace = TaskGraph.of(replace(deep_chain, algorithms=(AlgorithmChoice("F5", "fast", 1, 1000),)))
    assert equation_8(windows_of(with_workspace), workspaces_of(with_workspace)) == 1304


@pytest.mark.slow
def test_a_search_tries_every_regular_size() -> None:
    search = Search(network("ResNet-34"))
    assert search.sizes == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert search.settled(7 * 10**9) == 256 and search.allowed(256, 7 * 10**9)
    assert not search.allowed(128, 7 * 10**9) and not search.allowed(256, 5 * 10**9)


@pytest.mark.slow
def test_smaller_or_irregular_sub_batches_break_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, gpu = network("ResNet-34"), load_node(NODE).gpu
    monkeypatch.setitem(_SEARCHED, "ResNet-34", (4,))
    assert not fails(test_the_sub_batch_is_the_largest_that_fits_profiled_and_selected_in_turn, "ResNet-34")
    smaller = select_sub_batch(graph, gpu, 2 * 10**9)
    monkeypatch.setattr(f"{__name__}.select_sub_batch", lambda *_: smaller)
    assert fails(test_the_sub_batch_is_the_largest_that_fits_profiled_and_selected_in_turn, "ResNet-34")
    monkeypatch.setattr(f"{__name__}.window_bytes", lambda *_: 1)
    assert fails(test_equation_8_is_what_any_15_percent_of_tasks_need, "ResNet-34")
    right = rounded_down
    monkeypatch.setattr(f"{__name__}.rounded_down", lambda size: min(64, right(size)))
    assert fails(test_sub_batches_are_multiples_of_64_and_below_powers_of_two)
