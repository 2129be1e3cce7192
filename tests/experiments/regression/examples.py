"""Timings of a hand-made chain of three layers, with changes for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simgpu.experiments.compare import PolicyRequest, compare
from simgpu.experiments.regression.timings import PolicyTimings, Timings, timings_of
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace

CHAIN = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [100_000, 200_000, 300_000])
POLICIES = ("ideal", "none", "vdnn")


def node(bandwidth: int = 10**10, memory: int = 2**30) -> NodeSpec:
    return NodeSpec("bench", GpuSpec("a GPU", memory), LinkSpec("PCIe", bandwidth, bandwidth))


def example_timings(
    trace: Trace = CHAIN, on: NodeSpec | None = None, policies: Iterable[PolicyRequest] = POLICIES, iterations: int = 3
) -> Timings:
    return timings_of(compare(trace, on or node(), policies, iterations=iterations))


def longer(kernel: str, by: int = 1) -> Trace:
    """The chain with one kernel that takes longer, in ns."""
    kernels = [replace(each, duration_ns=each.duration_ns + by * (each.id == kernel)) for each in CHAIN.kernels]
    return replace(CHAIN, kernels=tuple(kernels))


def with_policy(timings: Timings, label: str, policy: PolicyTimings) -> Timings:
    """The timings with those of one policy replaced."""
    changed = tuple(policy if each.label == label else each for each in timings.policies)
    return replace(timings, policies=changed)
