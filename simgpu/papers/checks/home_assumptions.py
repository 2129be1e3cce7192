"""What experiments on HOME's claims change that no study has a word for: holes, workspaces and slow kernels."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simgpu.experiments.max_batch import max_batch
from simgpu.papers.checks.home_networks import NETWORKS, plain, swept
from simgpu.policies.home import Home
from simgpu.simulation.run import simulate

if TYPE_CHECKING:
    from simgpu.policies.base import Policy
    from simgpu.trace.model import Kernel, Trace

#: One evaluation a particle, as table 3 leaves time for, and swift.
_HOME = Home(update="recombine")


def holes() -> dict[str, Any]:
    """Largest batches of Capuchin where every block has one place and nothing is moved together; over those of none."""
    batches = {}
    for network in plain():
        found = max_batch(network.traces[0], network.node, ["none", "capuchin"], pool="addressed", speeds=False)
        batches[network.name] = [each.batch or 0 for each in found]
    none, capuchin = map(sum, zip(*batches.values(), strict=True))
    return {**{name: both[1] for name, both in batches.items()}, "gain": capuchin / none}


def holes_home() -> dict[str, Any]:
    """The same of HOME on VGG16, the quickest to find."""
    (vgg16,) = (network for network in plain() if network.name == "VGG16")
    home = {"home": {"update": "recombine"}}
    (found,) = max_batch(vgg16.traces[0], vgg16.node, [home], pool="addressed", speeds=False)
    return {"VGG16": found.batch or 0}


def workspaces(limit: str = "0 B") -> dict[str, Any]:
    """Throughput of HOME at its largest batch of table 2 over that of PyTorch at its own, which has this much workspace
    at most: all memory is taken there.
    """
    without = {f"traces.{name}.workspace_limit": limit for name in NETWORKS}
    gains = {}
    for managed, full in zip(swept(), plain(without), strict=True):
        ours = simulate(managed.traces[-1], managed.node, _HOME).metrics.samples_per_s
        gains[managed.name] = ours / simulate(full.traces[0], full.node, "ideal").metrics.samples_per_s
    others = fmean(gain for name, gain in gains.items() if name not in ("MobileNet", "VGG16"))
    return {**gains, "others": others}


def depthwise(times: int = 1) -> dict[str, Any]:
    """Samples/s of MobileNet where depthwise convolutions take so many times as long, at batches of table 2."""
    (small,) = (network for network in plain() if network.name == "MobileNet")
    (large,) = (network for network in swept() if network.name == "MobileNet")
    largest = slowed(large.traces[-1], times)

    def speed(trace: Trace, policy: str | Policy) -> float:
        return simulate(trace, small.node, policy).metrics.samples_per_s

    return {
        "PyTorch": speed(slowed(small.traces[0], times), "ideal"),
        "Capuchin": speed(largest, "capuchin"),
        "HOME": speed(largest, _HOME),
    }


def slowed(trace: Trace, times: int) -> Trace:
    """A trace whose depthwise convolutions take so many times as long."""
    return replace(trace, kernels=tuple(_slowed(kernel, times) for kernel in trace.kernels))


def _slowed(kernel: Kernel, times: int) -> Kernel:
    if not (kernel.op.startswith("conv2d") and ".depthwise" in kernel.id):
        return kernel
    return replace(kernel, duration_ns=kernel.duration_ns * times)
