"""What planning costs, as ratios against simulating a program in the same run."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.importers import import_trace
from simgpu.policies.base import PlanContext, Trial
from simgpu.policies.registry import make_policy
from simgpu.program.instructions import Program
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.folder import load_trace
from simgpu.units import parse_bytes
from simgpu.workloads.modelled import build_trace
from tests.benchmarks.conftest import Report
from tests.benchmarks.test_speed import DENSENET, NODE, interleaved, planned, run


def no_trial(program: Program) -> Trial:
    raise AssertionError("moDNN plans without trial runs")


@pytest.mark.parametrize("budget", ["12 GiB", "4 GiB", "1 GiB"])
def test_planning_is_cheap_compared_with_simulating(budget: str, report: Report) -> None:
    node = load_node("k40")
    trace = build_trace("resnet152", batch=256, gpu=node.gpu, framework="fused", optimizer="plain-sgd")
    limit, vdnn = parse_bytes(budget), planned(TaskGraph.of(trace), "vdnn")
    rng = np.random.default_rng(0)

    def plan() -> None:
        # A new graph each time, because a graph caches its rescaled batches.
        context = PlanContext(task_graph(trace, node), node, limit, trial=no_trial, rng=rng)
        make_policy("modnn").plan(context)

    planning, _ = interleaved(plan, rounds=3)
    graph = TaskGraph.of(trace)
    simulating, _ = interleaved(lambda: run(vdnn, graph, "counting", 3), rounds=3)
    compiled, _ = interleaved(lambda: run(vdnn, graph, "counting", 3, "compiled"), rounds=3)
    ratio = planning / simulating
    what = f"modnn, {budget}: planning ResNet-152 over simulating it under vDNN"
    report(what, ratio, "at most 10", ratio <= 10)
    report("  the same over simulating it compiled", planning / compiled, "", None)


@pytest.mark.parametrize("budget", ["39 MiB", "20 MiB", "15 MiB"])
def test_capuchin_on_the_shipped_resnet_is_instant(budget: str, report: Report) -> None:
    """The whole run, with its measured execution, in processor time; of a trace that was not used before."""
    trace, node = load_trace("resnet20-cifar-cpu"), load_node("laptop-2gb")
    node = replace(node, gpu=replace(node.gpu, memory=parse_bytes(budget)))

    def seconds() -> float:
        begin = time.process_time()
        simulate(copy(trace), node, "capuchin")
        return time.process_time() - begin

    seconds()
    spent = median(seconds() for _ in range(5))
    report(f"capuchin, {budget}: seconds of CPU for ResNet-20", spent, "at most 0.3", spent <= 0.3)


@pytest.mark.parametrize("budget", ["12 GiB", "8 GiB", "4 GiB"])
def test_unified_memory_per_simulated_kernel(budget: str, report: Report) -> None:
    """Page faults run on the SimPy model only; the smaller the memory, the more pages are evicted."""
    if not DENSENET.exists():
        pytest.skip("the DenseNet-121 recording is not at hand (../shared/data)")
    trace, _ = import_trace(DENSENET)
    node = replace(NODE, gpu=replace(NODE.gpu, memory=parse_bytes(budget)))

    def whole() -> None:
        assert simulate(copy(trace), node, "um").metrics.iteration_ns

    whole()
    total, bare = interleaved(whole, rounds=3)
    events = total / bare / (3 * len(trace.kernels))
    report(f"um, {budget}, all in: SimPy events per simulated kernel", events, "", None)
