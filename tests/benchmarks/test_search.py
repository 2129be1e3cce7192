"""What searching for a placement costs, over the seconds that HOME states for the same (TC 2022, table 3, 16 threads).

Run with ``pytest tests/benchmarks``. The networks are those of HOME's table 2 (`traces/README.md`) on its node, at the
batch that the table gives for Capuchin, which HOME can train too. A search of the paper scores 500 particles in each of
500 iterations. A swarm that has converged stops long before; so searches with one seed after another are made until as
many have been scored, on two threads. The whole search counts, not only its evaluations; what is compiled, and kept for
the next process, does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from simgpu.hardware.nodes import load_node
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.search.swarm import Swarm, SwarmResult, Update
from simgpu.policies.home import Home
from simgpu.simulation.run import plan_context
from simgpu.workloads.modelled import build_trace
from tests.benchmarks.conftest import Report

PARTICLES, ITERATIONS = 500, 500
THREADS = 2
AIM = 0.1

pytestmark = pytest.mark.skipif(not find_spec("numba"), reason="numba does not support this version of Python")


@dataclass(frozen=True)
class Network:
    """One of table 2. seconds: of its whole search (table 3)."""

    label: str
    zoo: str
    arguments: dict[str, Any]
    batch: int
    seconds: int


_OLD = {"framework": "pytorch-1.5"}
NETWORKS = [
    Network("MobileNet", "mobilenet", {**_OLD, "input": "cifar10"}, 3954, 28),
    Network("Plain20", "plain20", {**_OLD, "width": 4}, 2843, 41),
    Network("SqueezeNet", "squeezenet", {**_OLD, "input": "cifar10", "batch_norm": True}, 4056, 9),
    Network("VGG16", "vgg16", {**_OLD, "input": "cifar10", "batch_norm": True}, 4250, 25),
    Network("ResNet", "resnet20", {**_OLD, "width": 4}, 2014, 10),
    Network("InceptionV3", "inception-v3", {}, 345, 350),
]


def evaluator_of(network: Network) -> Evaluator:
    node, home = load_node("2080ti"), Home()
    trace = build_trace(network.zoo, batch=network.batch, gpu=node.gpu, **network.arguments)
    context = plan_context(trace, node, home, budget="11 GB")
    evaluator = replace(home.evaluator(context, home.decisions(context)), threads=THREADS)
    evaluator.score(np.zeros((PARTICLES, len(evaluator.decisions.maps)), np.int8))
    return evaluator


def search(evaluator: Evaluator, seed: int, update: Update = "recombine") -> SwarmResult:
    choices = evaluator.decisions.choices
    return Swarm(choices, len(choices), PARTICLES, ITERATIONS, seed, update).minimise(evaluator.score)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.label)
def test_a_search_takes_at_most_the_papers_time(network: Network, report: Report) -> None:
    evaluator = evaluator_of(network)
    scored = seed = 0
    begin = time.perf_counter()
    while scored < PARTICLES * ITERATIONS:
        scored += search(evaluator, seed).evaluations
        seed += 1
    took = time.perf_counter() - begin
    ratio = took / network.seconds
    what = f"{network.label}: {scored} evaluations in {took:.2f} s over {network.seconds} s"
    report(what, ratio, f"at most 1, aim {AIM}", ratio <= 1)
    report(f"  the search that ends when it has converged, one of {seed}", ratio / seed, "", None)
    assert took <= network.seconds


def sweep_as_printed(evaluator: Evaluator) -> None:
    """Algorithm 3 to the letter for one iteration: two evaluations for each feature map of each particle."""
    choices = evaluator.decisions.choices
    own = np.random.default_rng(0).integers(0, choices, size=(PARTICLES, len(choices)), dtype=np.int8)
    lead = own[evaluator.score(own).argmin()]
    particles = own.copy()
    for position in range(len(choices)):
        particles[:, position] = lead[position]
        first = evaluator.score(particles)
        particles[:, position] = own[:, position]
        second = evaluator.score(particles)
        particles[first < second, position] = lead[position]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.label)
def test_algorithm_3_in_full(network: Network, report: Report) -> None:
    evaluator = evaluator_of(network)
    results: list[SwarmResult] = []
    took = seconds(lambda: results.append(search(evaluator, 0, "full")))
    what = f"{network.label}: full updates, {results[0].evaluations} in {took:.2f} s over {network.seconds} s"
    report(what, took / network.seconds, "", None)
    printed = seconds(lambda: sweep_as_printed(evaluator))
    report(f"  one iteration as printed, 2 x {len(evaluator.decisions.maps)} a particle: seconds", printed, "", None)
