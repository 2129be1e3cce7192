"""HOME's particle swarm: its settings, how soon it finds its best placement, and how long a search would take."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from time import thread_time
from typing import Any, Literal

import numpy as np

from simgpu.papers.checks.found import lines
from simgpu.papers.checks.home_networks import Modelled, swept
from simgpu.planning import clocks
from simgpu.planning.columns import RESULTS
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.search.swarm import SwarmResult
from simgpu.planning.tables import scratch_for
from simgpu.policies.base import PlanContext
from simgpu.policies.home import Home
from simgpu.simulation.run import plan_context

#: Table 3: 500 particles for 500 iterations, one evaluation each, divided among 16 threads.
_EVALUATIONS, _THREADS = 250_000, 16
#: Placements whose evaluation is timed, as it is and without being compiled, which takes some hundred times as long.
_TIMED, _TIMED_PLAIN = 512, 4
_ROUNDS = 3


def settings() -> dict[str, Any]:
    """Iterations and particles of the policy as it is shipped."""
    return {"iterations": Home().iterations, "particles": Home().particles}


def convergence(
    update: Literal["full", "recombine"] = "recombine",
    until: Literal["best", "agreement"] = "best",
    searches: int = 5,
    without: str = "",
) -> dict[str, Any]:
    """Iterations of the swarm, mean of so many searches of each network at HOME's largest batch of table 2.

    update: of particles, as the policy has it; table 3 leaves one evaluation for each, which is recombine. until: the
    best placement is first met, or all particles agree, so that nothing more could come. without: a network
    that is not tried.
    """
    iterations: dict[str, float] = {}
    curves = {}
    for network in swept():
        if network.name == without:
            continue
        found = _searches(network, Home(update=update), searches)
        iterations[network.name] = fmean(each.converged_at if until == "best" else each.iterations for each in found)
        best = found[0].history.best
        curves[network.name] = [(number, float(cost / best[-1])) for number, cost in enumerate(best, start=1)]
    others = fmean(value for name, value in iterations.items() if name != "InceptionV3")
    return {
        **iterations,
        "others": others,
        "curves": lines(
            "time with the best placement so far, over that with the best of all",
            "iteration of the swarm",
            curves,
            {"InceptionV3": [(89, 1.0)], "mean of the others": [(42, 1.0)]},
        ),
    }


def seconds(compiled: bool = True) -> dict[str, Any]:
    """CPU seconds of a search by 16 threads, from the time of one evaluation on one core of this very machine.

    compiled: the evaluator as it is; else the same source as plain Python.
    """
    return {
        network.name: _evaluation_s(_evaluator(network, Home())[1], compiled) * _EVALUATIONS / _THREADS
        for network in swept()
    }


def _searches(network: Modelled, policy: Home, count: int) -> list[SwarmResult]:
    context, evaluator = _evaluator(network, policy)
    return [policy.search(replace(context, rng=np.random.default_rng(seed)), evaluator) for seed in range(count)]


def _evaluator(network: Modelled, policy: Home) -> tuple[PlanContext, Evaluator]:
    """What tells the cost of placements of a network at its largest batch."""
    context = plan_context(network.traces[-1], network.node, policy)
    return context, policy.evaluator(context, policy.decisions(context))


def _evaluation_s(evaluator: Evaluator, compiled: bool) -> float:
    """Seconds of one thread for one random placement."""
    alone = replace(evaluator, threads=1)
    choices = alone.decisions.choices
    count = _TIMED if compiled else _TIMED_PLAIN
    vectors = np.random.default_rng(0).integers(0, choices, size=(count, len(choices)), dtype=np.int8)
    found = np.zeros((count, len(RESULTS)), np.int64)
    # At most every kernel runs again for every feature map.
    scratch = scratch_for(alone.tables, len(choices) * len(alone.graph.kernels))
    took = []
    # The first round compiles, or finds what was compiled.
    for _ in range(1 + _ROUNDS if compiled else 1):
        begin = thread_time()
        if compiled:
            alone.score(vectors)
        else:
            clocks.evaluate_all(alone.tables, scratch, vectors, found)
        took.append(thread_time() - begin)
    return min(took) / count
