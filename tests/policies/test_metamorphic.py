"""What holds between runs whatever the network: nothing is faster than kernels alone, a faster link costs no time.

`-m exhaustive` tries a thousand points.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import DEVICE, GpuSpec, LinkSpec, MemoryLink, MemorySpec, NodeSpec
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.planning.test_wide_bound import chains
from tests.semantics.random_training import trainings

#: A policy's name and parameters.
Choice = tuple[str, dict[str, object]]
#: By label: name and parameters. The programs of these do not depend on the link.
STATIC: dict[str, Choice] = {
    "none": ("none", {}),
    "vdnn": ("vdnn", {}),
    "vdnn-conv": ("vdnn", {"mode": "conv"}),
    "checkpoint": ("checkpoint", {}),
    "save_on_cpu": ("save_on_cpu", {}),
    "async_offload": ("async_offload", {"min_bytes": 1}),
    "offload_activations": ("offload_activations", {"min_offload_size": 1, "max_fwd_stash_size": 1}),
    "offload_groups": ("offload_groups", {"blocks": 3, "min_elements": 1}),
    "offload_groups-v1": ("offload_groups", {"blocks": 3, "schedule": "transformer_engine_v1"}),
}
OTHERS: dict[str, Choice] = {
    **{name: (name, {}) for name in ("superneurons", "capuchin", "um", "dtr", "lru", "belady", "g10", "flashneuron")},
    "deepum": ("deepum", {"degree": 2}),
    "deepum-pages": ("deepum", {"degree": 2, "migrates": "pages"}),
    "dtr-dtr": ("dtr", {"heuristic": "dtr"}),
}
SEARCHING: dict[str, Choice] = {
    "modnn": ("modnn", {}),
    "home": ("home", {"particles": 10, "iterations": 3}),
    "swapadvisor": ("swapadvisor", {"population": 6, "generations": 2}),
    "joint": ("joint", {"evaluations": 100, "lower_bound": False}),
    "checkmate": ("checkmate", {"groups": 8}),
}


def node_of(rate: int) -> NodeSpec:
    """With an SSD at a quarter of the link's bandwidth, over the link."""
    ssd = MemoryLink((DEVICE, "ssd"), "wire", (rate // 4, rate // 4), latency_ns=2, over_gpu_link=True)
    memories = (MemorySpec("ssd", "SSD"),)
    return NodeSpec(
        "drawn", GpuSpec("gpu", 10**12), LinkSpec("pcie", rate, rate), more_memories=memories, more_links=(ssd,)
    )


def check(points: int, policies: dict[str, Choice]) -> None:
    networks = st.one_of(chains(), trainings(max_layers=6))
    shares, rates = st.sampled_from([0.4, 0.6, 0.8, 0.9, 1.0, 1.1]), st.sampled_from([10**8, 10**9, 10**10])
    seen: Counter[str] = Counter()

    def check_of(label: str) -> None:
        policy, parameters = policies[label]

        @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=max(points // len(policies), 20))
        @given(networks, shares, rates)
        def point(trace: Trace, share: float, rate: int) -> None:
            budget = max(int(simulate(trace, node_of(rate), "none").metrics.device_peak_bytes * share), 1)
            try:
                result = simulate(trace, node_of(rate), policy, parameters=parameters, budget=budget)
            except (InputError, OutOfMemoryError):
                return
            seen[label] += 1
            if policy != "modnn":  # it chooses other algorithms, and splits the batch
                assert result.iteration_ns >= result.ideal_ns
            assert result.metrics.device_peak_bytes <= budget
            if label in STATIC:
                faster = simulate(trace, node_of(2 * rate), policy, parameters=parameters, budget=budget)
                assert faster.iteration_ns <= result.iteration_ns

        point()

    for label in policies:
        check_of(label)
    assert set(policies) <= set(seen)


@pytest.mark.slow
def test_random_points() -> None:
    check(300, STATIC | OTHERS)


@pytest.mark.exhaustive
def test_a_thousand_random_points() -> None:
    check(1000, STATIC | OTHERS | SEARCHING)


def test_the_link_is_what_makes_a_static_policy_slow() -> None:
    """So that a faster one costs no time says something."""
    trace = chain([10] * 6, [20] * 6, [100] * 6)
    times = [simulate(trace, node_of(rate), "vdnn", budget=400).iteration_ns for rate in (10**9, 2 * 10**9, 10**12)]
    assert times[0] > times[1] > times[2] >= sum(kernel.duration_ns for kernel in trace.kernels)
