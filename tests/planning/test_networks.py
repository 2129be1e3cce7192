"""The error of the evaluator on 200 random placements for each of HOME's six models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.hardware.nodes import load_node
from simgpu.machine.run import run_program
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.policies.common.placing import program_of
from simgpu.simulation.run import task_graph
from tests.planning.evaluated import iteration_ns, peak_of

NODE = load_node("2080ti")
#: The networks of HOME's table 2, at PyTorch's largest batch there.
SIX = load_study("home-table-2").traces
PLACEMENTS = 200


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "SqueezeNet" else pytest.mark.exhaustive) for name in SIX],
)
def test_evaluator_and_machine_agree_on_random_placements_of_networks(name: str):
    """Budgets are between the smallest one that fits and the peak, so that kernels wait for memory."""
    graph = task_graph(SIX[name], NODE)
    decisions = Decisions.of(graph)
    rng = np.random.default_rng(0)
    errors, understated, waited = [], 0, 0
    for _ in range(PLACEMENTS):
        stored = rng.random(len(decisions.maps)) < rng.choice([0, 0.3, 0.9])
        vector = np.where(stored, 0, rng.integers(decisions.choices))
        early = bool(rng.integers(2))
        ample = Evaluator(graph, NODE, 10**15, decisions, early=early, threads=1)
        assert ample.why_not is None
        smallest, unhurried = replace(ample, budget=0).costs([vector]).short[0], ample.costs([vector])
        budget = int(smallest if rng.integers(2) else rng.integers(smallest, unhurried.peak[0] + 1))
        costs = replace(ample, budget=budget).costs([vector])
        program = program_of(graph, decisions, vector, early=early)
        run = run_program(program, graph, NODE, budget=budget, iterations=1)
        errors.append(abs(int(costs.time_ns[0]) - iteration_ns(run)) / iteration_ns(run))
        understated += peak_of(run) > costs.peak[0]
        waited += bool(costs.time_ns[0] > unhurried.time_ns[0])
        assert costs.short[0] == 0
    assert (np.mean(errors), max(errors), understated) == (0, 0, 0)
    assert waited > 0
