"""Checkmate: its schedules are the fastest of all, found by trying every order of runs and frees."""

from __future__ import annotations

import heapq
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

from simgpu.errors import MissingExtraError, OutOfMemoryError
from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers import import_trace
from simgpu.planning.highs import Optimum
from simgpu.policies.checkmate import program as checkmate_program
from simgpu.policies.checkmate.stage_costs import StageCosts
from simgpu.policies.common.node_schedule import written
from simgpu.policies.common.nodes import Nodes
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Kernel, Trace
from tests.semantics.random_traces import repeatable_traces
from tests.sets import slow_except


def node_of(memory: int, alignment: int = 1) -> NodeSpec:
    return NodeSpec("bench", GpuSpec("gpu", memory, alignment=alignment), LinkSpec("link", 10**9, 10**9))


def fastest(graph: TaskGraph, budget: int) -> int | None:
    """The least time of all schedules that fit; None if none does. For graphs in which every kernel makes one block.

    A state: how many kernels have run for the first time, and which blocks are there. Blocks that no kernel makes are
    always there. Any block may be freed at any time, and any kernel whose inputs are there may run.
    """
    made = [graph.writes[k][0] for k in range(len(graph.kernels))]
    given = {b for b, birth in enumerate(graph.births) if birth is not None and b not in made}
    base = sum(graph.sizes[b] for b in given)
    queue: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    done: set[tuple[int, tuple[int, ...]]] = set()
    while queue:
        time, count, there = heapq.heappop(queue)
        if (count, there) in done:
            continue
        done.add((count, there))
        if count == len(made):
            return time
        for b in there:
            heapq.heappush(queue, (time, count, tuple(each for each in there if each != b)))
        for k in range(count + 1):
            inputs = set(graph.reads[k]) - given
            if made[k] in there or not inputs <= set(there):
                continue
            if base + sum(graph.sizes[b] for b in (*there, made[k])) <= budget:
                after = tuple(sorted((*there, made[k])))
                heapq.heappush(queue, (time + graph.durations[k], max(count, k + 1), after))
    return None


@st.composite
def networks(draw: st.DrawFn) -> Trace:
    """Chains of two to four layers, with residual connections in some."""
    count = draw(st.integers(2, 4))
    numbers = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    trace = chain(draw(numbers), draw(numbers), draw(numbers))
    kernels = list(trace.kernels)
    for k in range(2, count):
        if draw(st.booleans()):
            also = draw(st.sampled_from([each.writes[0] for each in kernels[: k - 1]]))
            kernels[k] = with_input(kernels[k], also)
    return replace(trace, kernels=tuple(kernels))


def with_input(kernel: Kernel, block: str) -> Kernel:
    return replace(kernel, reads=tuple(dict.fromkeys((*kernel.reads, block))))


@given(networks(), st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_no_schedule_is_faster(trace: Trace, data: st.DataObject) -> None:
    graph = TaskGraph.of(trace)
    assume(all(len(writes) == 1 for writes in graph.writes))
    most = simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes
    budget = data.draw(st.integers(most // 3, most))
    expected = fastest(graph, budget)
    try:
        result = simulate(trace, node_of(budget), "checkmate")
    except OutOfMemoryError:
        assert expected is None
        return
    assert result.iteration_ns == expected
    assert result.metrics.device_peak_bytes <= budget
    assert result.notes[-1].startswith("no schedule of whole groups is faster")


@given(repeatable_traces(), st.integers(1, 12), st.sampled_from(["optimal", "rounding"]), st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_every_schedule_is_a_program_within_the_budget(
    trace: Trace, groups: int, method: str, data: st.DataObject
) -> None:
    """With changes in place, several results, kernels that cannot run again; `simulate` verifies each program."""
    alignment = data.draw(st.sampled_from([1, 64]))
    most = simulate(trace, node_of(10**9, alignment), "none").metrics.device_peak_used_bytes
    budget = data.draw(st.integers(most // 3, most))
    parameters = {"groups": groups, "method": method, "evaluations": 2_000}
    try:
        result = simulate(trace, node_of(budget, alignment), "checkmate", parameters=parameters)
    except OutOfMemoryError:
        assert budget < most
        return
    assert result.metrics.device_peak_used_bytes <= budget
    assert result.iteration_ns >= result.ideal_ns and not any(result.metrics.copied_bytes.values())


@pytest.mark.parametrize("share", slow_except([0.5, 0.6, 0.8], 0.8))
def test_no_policy_that_only_recomputes_is_faster(share: float) -> None:
    trace = chain([9, 4, 7, 2, 8, 5, 6, 3], [12, 9, 8, 14, 11, 9, 10, 7], [90, 40, 70, 120, 60, 80, 50, 100])
    budget = int(simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes * share)
    best = simulate(trace, node_of(budget), "checkmate").iteration_ns
    rounded = simulate(trace, node_of(budget), "checkmate", parameters={"method": "rounding"})
    assert best <= rounded.iteration_ns
    for policy, parameters in (
        ("dtr", {}),
        ("dtr", {"heuristic": "dtr"}),
        ("checkpoint", {}),
        ("checkpoint", {"blocks": 2}),
    ):
        try:
            other = simulate(trace, node_of(budget), policy, parameters=parameters)
        except OutOfMemoryError:
            continue
        assert best <= other.iteration_ns


@pytest.mark.slow
def test_kernels_that_only_count_do_not_keep_a_layer_from_running_again() -> None:
    """Of a recorded network: batch normalization counts its batches, which nothing else reads."""
    trace = load_trace("resnet20-cifar-cpu")
    peak = simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes
    result = simulate(trace, node_of(int(peak * 0.8)), "checkmate", parameters={"evaluations": 0})
    assert any(note.startswith("scheduled in 32 groups") for note in result.notes)
    assert result.ideal_ns < result.iteration_ns < 1.15 * result.ideal_ns


@pytest.mark.parametrize("nothing_found", slow_except([False, True], True))
def test_where_highs_is_stopped_the_result_says_so(monkeypatch: pytest.MonkeyPatch, nothing_found: bool) -> None:
    """It then has a poor answer, or none; the rounded program and Revolve's snapshots are tried too."""
    own = checkmate_program.minimize

    def stopped(cost: Any, matrix: Any, least: Any, upper: Any, integral: Any, **limits: Any) -> Optimum | None:
        found = own(cost, matrix, least, upper, integral, **limits)
        if found is None or not integral.any():
            return found
        return None if nothing_found else found._replace(x=np.zeros_like(found.x), bound=0.0, is_timed_out=True)

    trace = chain([5] * 4, [9] * 4, [100] * 4)
    budget = int(simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes * 0.8)
    best = simulate(trace, node_of(budget), "checkmate")
    monkeypatch.setattr(checkmate_program, "minimize", stopped)
    result = simulate(trace, node_of(budget), "checkmate", seed=1)
    assert result.metrics.device_peak_bytes <= budget
    assert best.iteration_ns <= result.iteration_ns <= 2 * best.ideal_ns
    assert any(note.startswith("HiGHS was stopped after 120 s") for note in result.notes) is not nothing_found


def test_without_scipy_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r"policy checkmate.*calibrate"):
        simulate(chain([5] * 4, [9] * 4, [100] * 4), node_of(400), "checkmate")


@given(repeatable_traces(), st.integers(0, 2**32 - 1), st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_a_stage_takes_the_time_and_memory_of_its_schedule(trace: Trace, seed: int, data: st.DataObject) -> None:
    """The search counts as `NodeSchedule` does, except that it frees at once what is kept for nothing."""
    graph = transformed(TaskGraph.of(trace), (Functional(),))
    nodes = Nodes(graph, [range(k, k + 1) for k in range(len(graph.kernels))], data.draw(st.sampled_from([1, 64])))
    values, draw = StageCosts(nodes, 0), np.random.default_rng(seed)
    kept = values.none
    for v, b in enumerate(values.blocks):
        stages = slice(nodes.maker[b] + 1, nodes.last[b] + 1)
        kept[stages, v] = draw.integers(0, 2, len(kept[stages, v]))
    kept = values.of(written(nodes, values.schedule(kept)))
    schedule = values.schedule(kept)
    counted = values.stages(kept)
    assert sum(time for time, _ in counted) == schedule.time_ns - sum(graph.durations)
    assert max(peak for _, peak in counted) == schedule.peak()


@given(repeatable_traces(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
def test_a_few_values_are_kept_in_the_best_way(trace: Trace, seed: int) -> None:
    """Against every way to keep two values, with the others as they are."""
    graph = transformed(TaskGraph.of(trace), (Functional(),))
    nodes = Nodes(graph, [range(k, k + 1) for k in range(len(graph.kernels))])
    draw = np.random.default_rng(seed)
    values = StageCosts(nodes, int(max(nodes.first_peak(n) for n in range(len(nodes.groups))) * draw.uniform(1, 1.5)))
    cells = [(t, v) for v, b in enumerate(values.blocks) for t in range(nodes.maker[b] + 1, nodes.last[b] + 1)]
    assume(len(values.blocks) > 1)
    kept = values.none
    for t, v in cells:
        kept[t, v] = draw.integers(0, 2)
    chosen = sorted(map(int, draw.choice(len(values.blocks), 2, replace=False)))
    free = [cell for cell in cells if cell[1] in chosen]
    assume(len(free) <= 8)
    costs = []
    for bits in product((0, 1), repeat=len(free)):
        for cell, bit in zip(free, bits, strict=True):
            kept[cell] = bit
        costs.append(values.cost(kept))
    values.keep_best(kept, chosen)
    assert values.cost(kept) == min(costs)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "share"), [(20, 0.35), (20, 0.5), (30, 0.35), (30, 0.5)])
def test_no_policy_that_only_recomputes_is_faster_on_longer_chains(layers: int, share: float) -> None:
    """The integer program is of few groups, for time; `joint` is on a link of a byte a second."""
    draw = Random(layers)
    numbers = [[draw.randint(1, 9) * unit for _ in range(layers)] for unit in (1000, 1000, 100)]
    trace = chain(*numbers)
    peak = simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes
    node = replace(node_of(int(peak * share)), link=LinkSpec("link", 1, 1))
    best = simulate(trace, node, "checkmate", parameters={"groups": 8}).iteration_ns
    assert best < simulate(trace, node, "revolve").iteration_ns
    assert best < simulate(trace, node, "dtr").iteration_ns
    assert best == simulate(trace, node, "joint").iteration_ns


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_a_recording_of_hundreds_of_kernels_is_scheduled_faster_than_by_dtr(share: float) -> None:
    log = Path(__file__).parents[3] / "shared/data/titanv-dtr/resnet32-b56.log"
    if not log.exists():
        pytest.skip("the ResNet-32 recording is not at hand (../shared/data)")
    trace, _ = import_trace(log)
    node = node_of(int(simulate(trace, node_of(10**12), "none").metrics.device_peak_bytes * share))
    result = simulate(trace, node, "checkmate")
    for heuristic in ("eq", "dtr", "local", "msps", "lru", "size"):
        assert result.iteration_ns < simulate(trace, node, "dtr", parameters={"heuristic": heuristic}).iteration_ns
    assert "scheduled by a search, kernel by kernel" in result.notes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_joint_with_recomputation_alone_reaches_it_on_chains(seed: int) -> None:
    """On a link of a byte a second."""
    draw = Random(seed)
    numbers = [[draw.randint(*ends) for _ in range(12)] for ends in ((5, 50), (10, 100), (50, 400))]
    trace, slow = chain(*numbers), LinkSpec("link", 1, 1)
    peak = simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes
    for share in (0.9, 0.75, 0.6):
        node = replace(node_of(int(peak * share)), link=slow)
        assert simulate(trace, node, "joint").iteration_ns == simulate(trace, node, "checkmate").iteration_ns


def test_a_longer_iteration_is_scheduled_in_groups_and_says_so() -> None:
    trace = chain([5] * 10, [9] * 10, [100] * 10)
    budget = int(simulate(trace, node_of(10**9), "none").metrics.device_peak_bytes * 0.7)
    one, grouped = (
        simulate(trace, node_of(budget), "checkmate", parameters={"groups": count, "evaluations": 0})
        for count in (20, 8)
    )
    assert one.iteration_ns <= grouped.iteration_ns and grouped.metrics.device_peak_bytes <= budget
    assert "scheduled in 8 groups of the 20 kernels" in grouped.notes
