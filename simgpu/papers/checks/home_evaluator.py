"""HOME's evaluator beside simulated runs of what it predicts. No hardware is involved."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import numpy as np

from simgpu.papers.checks.found import bars
from simgpu.papers.checks.home_networks import Modelled, swept
from simgpu.planning.columns import DRAINED
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Vector
from simgpu.policies.base import PlanContext
from simgpu.policies.common.placing import program_of
from simgpu.policies.home import Home
from simgpu.simulation.run import plan_context

#: Random placements that are looked through for those that fit; those run at each of the largest batches.
_DRAWN, _RUN, _BATCHES = 2000, 8, 2
#: As the evaluator has it; and with copies out issued after the last reader, and device-wide synchronisation.
_DRAWN_SO, _SAID_SO = "run as figure 4 draws it", "run as sections 3.6 and 3.7 say"


def prediction() -> dict[str, Any]:
    """The error of predicted iteration times as in section 4.6: means over placements, then over networks.

    Placements are random ones that fit, and the best that the swarm finds, at the two largest batches of home-6.
    """
    errors = {network.name: _errors(network) for network in swept()}
    exact = [fmean(as_drawn for as_drawn, _ in each) for each in errors.values()]
    return {
        "mean": fmean(exact),
        "largest": max(exact),
        "placements": sum(map(len, errors.values())),
        "errors": bars(
            "error of the predicted iteration time",
            {
                name: {_DRAWN_SO: fmean(first for first, _ in each), _SAID_SO: fmean(second for _, second in each)}
                for name, each in errors.items()
            },
            # 546 ms where 543 ms were measured.
            {"VGG16": {_DRAWN_SO: 3 / 543}, "InceptionV3": {_DRAWN_SO: 0.009}},
            share=True,
        ),
    }


def _errors(network: Modelled) -> list[tuple[float, float]]:
    """Of each placement, run in both ways."""
    found = []
    for trace in network.traces[-_BATCHES:]:
        policy = Home(update="recombine")
        context = plan_context(trace, network.node, policy)
        decisions = policy.decisions(context)
        evaluator = policy.evaluator(context, decisions)
        said = Home(offload="after", drain=True).evaluator(context, decisions)
        best = policy.search(context, evaluator).best
        for vector in _tried(evaluator, said, best):
            predicted = int(evaluator.costs([vector]).time_ns[0])
            found.append((_error(context, evaluator, vector, predicted), _error(context, said, vector, predicted)))
    return found


def _tried(evaluator: Evaluator, other: Evaluator, best: Vector) -> Iterator[Vector]:
    """The best placement, and random ones, as far as they fit with both."""
    choices = evaluator.decisions.choices
    drawn = np.random.default_rng(0).integers(0, choices, size=(_DRAWN, len(choices)), dtype=np.int8)
    vectors = np.concatenate([np.array([best], dtype=np.int8), drawn])
    fits = (evaluator.costs(vectors).short == 0) & (other.costs(vectors).short == 0)
    for row in vectors[fits][: _RUN + 1]:
        yield tuple(map(int, row))


def _error(context: PlanContext, evaluator: Evaluator, vector: Vector, predicted_ns: int) -> float:
    """By how much a prediction misses the run of a placement, as the evaluator's switches have it run."""
    drained = evaluator.details(vector)[:, DRAINED].astype(bool).tolist() if evaluator.drain else None
    program = program_of(context.graph, evaluator.decisions, vector, early=evaluator.early, drained=drained)
    measured = context.trial(program).iteration_ns
    return abs(predicted_ns - measured) / measured
