"""moDNN's checks: they hold on what is right, and are broken by what is not."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.nodes import load_node
from simgpu.memory.addressed import AddressedPool
from simgpu.memory.pool import Request
from simgpu.papers.checks import modnn_memory, modnn_sub_batch
from simgpu.papers.checks.modnn import CHECKS
from simgpu.papers.checks.modnn_allocator import SegmentList, places
from simgpu.papers.checks.modnn_by_hand import BrokenPlanError
from simgpu.papers.checks.modnn_cores import accumulation_ns
from simgpu.papers.checks.modnn_memory import equation_6, equation_7, stays
from simgpu.papers.checks.modnn_networks import BATCHES, at_random, network
from simgpu.papers.checks.modnn_schedules import (
    algorithms_of,
    cleared_of,
    prefetches_of,
    read_back,
)
from simgpu.papers.checks.modnn_sub_batch import Search, equation_8, windows_of, workspaces_of
from simgpu.papers.claims import load_papers
from simgpu.policies.common.sub_batches import rounded_down, select_sub_batch, window_bytes
from simgpu.policies.modnn import schedule
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice
from tests.graph.test_tdfg import LAYER

(PAPER,) = (paper for paper in load_papers() if paper.key == "modnn")
LOOKS = {"prefetches": prefetches_of, "algorithms": algorithms_of, "clearing": cleared_of}


# --- plans that are read back -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_plans_of_random_networks_hold(look) -> None:
    found = read_back(at_random(40, 1), look)
    assert found["holds"] and "in 40 plans" in found["told"]


@pytest.mark.parametrize("begins", [True, False])
def test_prefetches_that_begin_always_or_never_break_equation_9(monkeypatch, begins: bool) -> None:
    monkeypatch.setattr(schedule, "should_start", lambda *_: begins)
    found = read_back(at_random(40, 1), prefetches_of)
    assert not found["holds"]
    assert ("earlier than equation 9" in found["told"]) == begins


def test_prefetches_of_no_use_break_the_rule(monkeypatch) -> None:
    monkeypatch.setattr(schedule, "will_fit", lambda *_: True)
    found = read_back(at_random(150, 9), prefetches_of)
    assert not found["holds"] and "memory will be cleared before its use" in found["told"]


def test_the_fastest_algorithm_always_breaks_equation_10(monkeypatch) -> None:
    monkeypatch.setattr(schedule, "best", _fastest)
    found = read_back(at_random(40, 1), algorithms_of)
    assert not found["holds"] and "of most gain is" in found["told"]


def _fastest(candidates, base_ns: int):
    return min((each.choice for each in candidates), key=lambda choice: choice.duration_ns, default=None)


def test_a_rule_that_met_nothing_does_not_hold() -> None:
    assert not read_back([], prefetches_of)["holds"]


def test_a_block_upon_another_is_told() -> None:
    (part, *_) = next(at_random(1, 1)).rounds()
    part.at[max(part.at, default=0)] = (0, part.budget)
    with pytest.raises(BrokenPlanError, match="lies upon block"):
        while part.next() is not None:
            part.step(0)


# --- the allocator ------------------------------------------------------------------------------------------


class FirstFit(AddressedPool):
    """The lowest hole that is large enough, whatever its size."""

    def acquire(self, request: Request) -> bool:
        (piece,) = request[2]
        for start, size, block in list(self.segments()):
            if block is None and size >= piece[1]:
                return super().acquire((request[0], request[1], request[2], (start,)))
        return False


def test_the_list_takes_the_first_hole_of_that_size_else_the_first_large_enough() -> None:
    memory = SegmentList(100)
    assert all(memory.take(block, size) for block, size in enumerate((30, 10, 20, 10, 30)))
    memory.free(0)
    memory.free(2)
    assert memory.take(5, 20) and memory.take(6, 25) and not memory.take(7, 6)
    assert [tuple(piece) for piece in memory.pieces][:4] == [(0, 25, 6), (25, 5, None), (30, 10, 1), (40, 20, 5)]


def test_neighbours_that_are_free_become_one() -> None:
    memory = SegmentList(60)
    assert all(memory.take(block, 20) for block in range(3))
    for block in (0, 2, 1):
        memory.free(block)
    assert [tuple(piece) for piece in memory.pieces] == [(0, 60, None)]


def test_first_fit_alone_is_not_the_papers_allocator() -> None:
    assert places(Random(3))["holds"]
    assert not places(Random(3), FirstFit)["holds"]


# --- equations 6 to 8 ---------------------------------------------------------------------------------------


def test_equations_6_and_7_on_a_layer_with_weights() -> None:
    """As in the tests of bounds: weights and gradients reside, each task by the algorithm without workspace."""
    assert sum(LAYER.sizes[b] for b in stays(LAYER)) == 100 + 4 + 101 + 102 + 5
    needs = [equation_6(LAYER, k, stays(LAYER), 1) for k in range(len(LAYER.kernels))]
    assert needs == [30, 20 + 1 + 21, 32, 31, 33, 0, 0]
    assert equation_7(LAYER, 1) == 100 + 4 + 101 + 102 + 5 + 42


def test_a_bound_that_leaves_out_weights_is_broken(monkeypatch) -> None:
    monkeypatch.setattr(modnn_memory, "BATCHES", {"ResNet-34": 256})
    monkeypatch.setattr(modnn_memory, "equation_7", lambda graph, alignment: 1 << 40)
    found = modnn_memory.bound()
    assert not found["equation_7"]["holds"] and not found["any_budget"]["holds"]


def test_windows_on_a_chain_slide_over_its_activations() -> None:
    """Twelve tasks, two in a window: F4 and F5 touch x4, x5 and x6; and the workspace of F5 counts with them."""
    made = chain([1] * 6, [1] * 6, [1, 2, 3, 100, 200, 4])
    graph = TaskGraph.of(made)
    assert equation_8(windows_of(graph), workspaces_of(graph)) == 304 == window_bytes(Tdfg.of(graph))
    with_workspace = TaskGraph.of(replace(made, algorithms=(AlgorithmChoice("F5", "fast", 1, 1000),)))
    assert equation_8(windows_of(with_workspace), workspaces_of(with_workspace)) == 1304


@pytest.mark.slow
def test_a_search_tries_every_regular_size() -> None:
    search = Search(network("ResNet-34"))
    assert search.sizes == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert search.settled(5 * 10**9) == 256 and search.allowed(256, 5 * 10**9)
    assert not search.allowed(128, 5 * 10**9) and not search.allowed(256, 4 * 10**9)


@pytest.mark.slow
def test_a_sub_batch_too_small_or_irregular_breaks_the_rule(monkeypatch) -> None:
    monkeypatch.setattr(modnn_sub_batch, "BATCHES", {"ResNet-34": 256})
    monkeypatch.setattr(modnn_sub_batch, "_SEARCHED", {"ResNet-34": (4,)})
    assert all(each["holds"] for each in modnn_sub_batch.sub_batch().values())
    monkeypatch.setattr(modnn_sub_batch, "rounded_down", lambda size: min(64, rounded_down(size)))
    graph, gpu = network("ResNet-34"), load_node("k40").gpu
    smaller = select_sub_batch(graph, gpu, 2 * 10**9)
    monkeypatch.setattr(modnn_sub_batch, "select_sub_batch", lambda *_: smaller)
    monkeypatch.setattr(modnn_sub_batch, "window_bytes", lambda *_: 1)
    assert not any(each["holds"] for each in modnn_sub_batch.sub_batch().values())


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_where_updates_count_weights_that_leave_save_less() -> None:
    found = [CHECKS["weights_offloaded"](updates=updates)["ratio"] for updates in ("none", "layer", "all")]
    assert found == sorted(found, reverse=True)
    assert CHECKS["weights_offloaded"](without="ResNet-152")["ratio"] < found[0]


@pytest.mark.slow
def test_more_cores_add_up_sooner() -> None:
    assert accumulation_ns("ResNet-34", 1) > accumulation_ns("ResNet-34", 2) > accumulation_ns("ResNet-34", 20)


@pytest.mark.slow
def test_the_experiment_has_the_sub_batches_of_equation_8_as_printed() -> None:
    """`printed_window` and `whole_traffic` name them; in a K40's memory the other networks keep theirs."""
    (changed,) = (step.study["runs.moDNN.per_trace"] for step in PAPER.assumptions["printed_window"].steps.values())
    gpu = load_node("k40").gpu
    for name in BATCHES:
        graph = network(name)
        live, touched = (select_sub_batch(graph, gpu, gpu.memory, counted=c).size for c in ("live", "touched"))
        said = changed.get(name, {"policy": {"modnn": {"sub_batch": live}}})["policy"]["modnn"]["sub_batch"]
        assert said == touched
