"""How much sooner more of the host's cores have added up gradients (moDNN, section 7.5)."""

from __future__ import annotations

from typing import Any

from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.modnn_networks import traces
from simgpu.simulation.run import simulate

_NETWORKS = ("VGG-16", "ResNet-34")


def cores() -> dict[str, Any]:
    """The time of accumulation by one core over that by all 20, at most."""
    return {"times": max(accumulation_ns(name, 1) / accumulation_ns(name, 20) for name in _NETWORKS)}


def accumulation_ns(name: str, cores: int) -> int:
    """Nanoseconds that the host's cores are adding up gradients and updating weights in an iteration."""
    trace, node = traces()[name], load_node("k40-x4")
    result = simulate(trace, node, "modnn", gpus=4, exchange="host", cores=cores, iterations=1)
    spans = (span for span in result.timeline if span.stream.startswith("host") and not span.kind.is_stall)
    return sum(span.end_ns - span.start_ns for span in spans)
