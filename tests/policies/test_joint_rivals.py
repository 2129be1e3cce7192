"""`joint` compared with every policy of HOME's paper, on all shipped traces and on the networks of its table 2: never
slower than the best of them, for any budget and link."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.io.shipped import shipped_names
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.workloads.rescale import at_batch

RIVALS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    ("vdnn", {}),
    ("vdnn", {"mode": "conv"}),
    ("superneurons", {}),
    ("capuchin", {}),
    ("capuchin", {"version": "published"}),
    ("home", {}),
)
#: Budgets, as fractions of the way from the largest single-operator working set to the peak without offloading.
MIDDLE = 0.4
SHARES = (0.75, MIDDLE, 0.1)
#: A fast search; its starting placements do not depend on this number.
FAST = {"evaluations": 5_000, "lower_bound": False}

#: By name, as in the study of table 2.
NETWORKS = ("MobileNet", "Plain20", "SqueezeNet", "VGG16", "ResNet", "InceptionV3")


@cache
def network(name: str) -> Trace:
    return at_batch(load_study("home-table-2").traces[name], 64)


def budget_of(trace: Trace, node: NodeSpec, share: float) -> int:
    """Bytes."""
    graph = task_graph(trace, node)
    resident = sum(block.bytes for block in graph.blocks if block.persistent)
    touched = (set(graph.reads[k]) | set(graph.writes[k]) for k in range(len(graph.kernels)))
    smallest = max(sum(graph.blocks[b].bytes for b in some if not graph.blocks[b].persistent) for some in touched)
    most = simulate(trace, node, "none").metrics.device_peak_bytes
    return round(resident + smallest + share * (most - resident - smallest))


@cache
def times(trace: Trace, node: NodeSpec, share: float) -> tuple[int | None, dict[str, int]]:
    """Step times in nanoseconds: joint's (None if it does not fit), and those of the rivals that fit."""
    budget = budget_of(trace, node, share)

    def time_ns(policy: str, parameters: dict[str, Any]) -> int | None:
        try:
            return simulate(trace, node, policy, parameters=parameters, budget=budget).iteration_ns
        except OutOfMemoryError:
            return None

    rivals = {f"{policy} {parameters}": time_ns(policy, parameters) for policy, parameters in RIVALS}
    return time_ns("joint", FAST), {label: time for label, time in rivals.items() if time is not None}


def check(trace: Trace, node: NodeSpec, share: float) -> None:
    simulated, rivals = times(trace, node, share)
    assert rivals, "some policy fits, so that there is something to be compared with"
    assert simulated is not None, f"does not fit, and {', '.join(rivals)} do"
    best = min(rivals, key=lambda label: rivals[label])
    assert simulated <= rivals[best], f"slower than {best}"


@pytest.mark.parametrize(
    "share",
    [pytest.param(each, marks=pytest.mark.slow if each == MIDDLE else pytest.mark.exhaustive) for each in SHARES],
)
@pytest.mark.parametrize("name", shipped_names("traces"))
def test_joint_is_never_slower_than_the_policies_of_home_on_shipped_traces(name: str, share: float) -> None:
    check(load_trace(name), load_node("v100"), share)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_names("traces"))
def test_joint_is_never_slower_than_the_policies_of_home_over_a_slow_link(name: str) -> None:
    """Kernels recorded on a CPU are so long that the usual link overlaps every copy."""
    node = load_node("v100", {"link.d2h_bandwidth": "100 MB/s", "link.h2d_bandwidth": "100 MB/s"})
    check(load_trace(name), node, MIDDLE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", SHARES[:2])
@pytest.mark.parametrize("name", NETWORKS)
def test_joint_is_never_slower_than_the_policies_of_home_on_its_networks(name: str, share: float) -> None:
    check(network(name), load_node("2080ti"), share)


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name != "InceptionV3"),
        pytest.param("InceptionV3", marks=pytest.mark.exhaustive),
    ],
)
def test_joint_is_faster_than_the_policies_of_home_with_little_memory(name: str) -> None:
    simulated, rivals = times(network(name), load_node("2080ti"), MIDDLE)
    assert simulated is not None
    assert simulated < min(rivals.values())
