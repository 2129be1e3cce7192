"""DTR against the authors' simulator, and its costs of neighbours against their definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.nodes import load_node
from simgpu.importers import import_trace
from simgpu.online.conductor import Conductor
from simgpu.policies.dtr.neighbours import Classes, Regions, Relatives, Surroundings
from simgpu.policies.dtr.policy import Dtr
from simgpu.policies.registry import make_policy
from simgpu.simulation.run import simulate

LOGS = Path(__file__).parents[3] / "shared" / "data" / "titanv-dtr"
#: By log: half of its peak, and by heuristic the time of an iteration in that by simrd (RuntimeV2EagerOptimized), less
#: that of the views it runs again, which are no kernels that make anything here; nanoseconds.
SIMRD = {
    "resnet32-b56": (
        5030589576,
        {"eq": 323076536, "dtr": 323076536, "local": 349272500 - 7093, "size": 423737420},
    ),
    "densenet121-b84": (5510374680, {"eq": 417955004, "dtr": 417955004, "local": 474195456 - 9607}),
    "unet-b6": (
        4207882320,
        {"eq": 504377312, "dtr": 504377312, "local": 803894802 - 2054, "msps": 492942749},
    ),
    "transformer-b10": (4932202500, {"eq": 292391282, "dtr": 292391282, "size": 294361938}),
}
CASES = [
    pytest.param(log, name, marks=[pytest.mark.slow] if log.startswith(("densenet", "transformer")) else [])
    for log, (_, times) in SIMRD.items()
    for name in times
]
needs_logs = pytest.mark.skipif(not LOGS.is_dir(), reason="the logs of the DTR prototype are not on this machine")


@needs_logs
@pytest.mark.parametrize(("log", "heuristic"), CASES)
def test_an_iteration_takes_as_long_as_in_simrd(log: str, heuristic: str) -> None:
    budget, times = SIMRD[log]
    policy = make_policy("dtr", {"heuristic": heuristic})
    assert isinstance(policy, Dtr)
    graph = transformed(TaskGraph.of(import_trace(LOGS / f"{log}.log")[0]), policy.transforms)
    conductor = Conductor(graph, load_node("v100"), budget, policy.decider(graph))
    conductor.run()
    assert conductor.view.now_ns == times[heuristic]


@needs_logs
def test_the_machine_runs_what_dtr_did() -> None:
    budget, times = SIMRD["resnet32-b56"]
    trace = import_trace(LOGS / "resnet32-b56.log")[0]
    result = simulate(trace, load_node("v100"), "dtr", budget=budget)
    assert result.iteration_ns == times["eq"] and result.steady
    assert result.metrics.device_peak_bytes <= budget


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """Costs, the parents of each block, which come before it, and blocks that leave or come back, in order."""
    count = draw(st.integers(1, 8))
    costs = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    parents = [draw(st.lists(st.integers(0, b - 1), unique=True)) if b else [] for b in range(count)]
    return costs, parents, draw(st.lists(st.integers(0, count - 1), max_size=30))


def relatives_of(parents: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    return parents, [[c for c, given in enumerate(parents) if b in given] for b in range(len(parents))]


def reached(b: int, towards: list[list[int]], gone: set[int]) -> set[int]:
    inside: set[int] = set()
    waiting = [b]
    while waiting:
        for each in towards[waiting.pop()]:
            if each in gone and each not in inside:
                inside.add(each)
                waiting.append(each)
    return inside


def follow(costs: Surroundings, count: int, moves: list[int], parents: list[list[int]]) -> tuple[set[int], set[int]]:
    """Lets all blocks be born in order, then leave and come back; returns those that are there and that are gone."""
    here: set[int] = set()
    gone: set[int] = set()
    for b in range(count):
        costs.came(b)
        here.add(b)
    for b in moves:
        if b in here:
            costs.left(b)
            here.discard(b)
            gone.add(b)
        elif not any(p in gone for p in parents[b]):
            # A block is recomputed when its parents are there.
            costs.came(b)
            gone.discard(b)
            here.add(b)
    return here, gone


@settings(max_examples=100, deadline=None)
@given(lives())
def test_regions_are_all_that_is_reached_over_what_is_gone(given: tuple[list[int], list[list[int]], list[int]]) -> None:
    costs, parents, moves = given
    up, down = relatives_of(parents)
    regions = Regions(np.array(costs, dtype=np.int64), Relatives.listed(up, down))
    here, gone = follow(regions, len(costs), moves, parents)
    blocks = np.array(sorted(here), dtype=np.int64)
    expected = [
        costs[b] + sum(costs[i] for i in reached(b, up, gone)) + sum(costs[i] for i in reached(b, down, gone))
        for b in blocks.tolist()
    ]
    assert regions.around(blocks).tolist() == expected


class PlainClasses:
    """The classes by their definition: a dictionary of sets, joined and never split."""

    def __init__(self, costs: list[int], near: list[set[int]]) -> None:
        self.costs, self.near = costs, near
        self.gone: set[int] = set()
        self.name: dict[int, int] = {}
        self.total: dict[int, int] = {}

    def came(self, b: int) -> None:
        if b in self.gone:
            self.gone.discard(b)
            self.total[self.name.pop(b)] -= self.costs[b]

    def left(self, b: int) -> None:
        self.gone.add(b)
        self.name[b] = len(self.total)
        self.total[self.name[b]] = self.costs[b]
        for old in {self.name[each] for each in self.near[b] & self.gone} - {self.name[b]}:
            new = self.name[b]
            self.total[new] += self.total[old]
            self.name = {each: new if name == old else name for each, name in self.name.items()}

    def around(self, blocks: np.ndarray) -> np.ndarray:
        names = [{self.name[each] for each in self.near[b] & self.gone} for b in blocks.tolist()]
        own = [self.costs[b] for b in blocks.tolist()]
        return np.array([cost + sum(self.total[n] for n in each) for cost, each in zip(own, names, strict=True)])


@settings(max_examples=100, deadline=None)
@given(lives())
def test_classes_are_joined_and_never_split(given: tuple[list[int], list[list[int]], list[int]]) -> None:
    costs, parents, moves = given
    up, down = relatives_of(parents)
    classes = Classes(np.array(costs, dtype=np.int64), Relatives.listed(up, down))
    plain = PlainClasses(costs, [{*one, *two} for one, two in zip(up, down, strict=True)])
    here, _ = follow(classes, len(costs), moves, parents)
    follow(plain, len(costs), moves, parents)
    blocks = np.array(sorted(here), dtype=np.int64)
    assert classes.around(blocks).tolist() == plain.around(blocks).tolist()
