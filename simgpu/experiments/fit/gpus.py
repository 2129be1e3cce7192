"""Shipped GPUs on which a candidate fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.experiments.fit.candidates import Candidate
from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.rows import FitRun
from simgpu.hardware.nodes import load_node, node_names
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.config import RunConfig
from simgpu.units import format_bytes

#: GPUs that are named, and GPUs that are tried for it, without those that do not support the candidate.
_NAMED, _TRIED = 3, 6


def gpus_that_fit(question: Question, candidate: Candidate, need: FitRun, say: Callable[[str], None]) -> list[str]:
    """The smallest shipped GPUs on which a candidate fits at the size of a run, with their memory."""
    result: list[str] = []
    tried = 0
    for node in _larger(need.reserved):
        say(f"{node.gpu.name}: {candidate.stage}")
        budget = RunConfig(pool="caching").on(node)[1]
        there = replace(question, node=_with_host(node, question.node), budget=budget, traces={}, plain={})
        there = replace(there, batch=need.batch, length=need.length)
        try:
            row = there.row(candidate)
        except InputError:
            continue
        tried += row.run is not None
        if row.fits:
            result.append(f"{node.name} ({format_bytes(node.budget)})")
        if len(result) == _NAMED or tried == _TRIED:
            break
    return result


def _with_host(node: NodeSpec, own: NodeSpec) -> NodeSpec:
    """A node whose host has the memory of one's own where it states no bandwidth of it."""
    bandwidth = node.host.memory_bandwidth or own.host.memory_bandwidth
    return replace(node, host=replace(node.host, memory_bandwidth=bandwidth))


def _larger(need: int) -> Iterator[NodeSpec]:
    """One shipped node of each GPU with at least this much memory, the smallest first."""
    nodes = sorted(map(load_node, node_names()), key=lambda node: (node.budget, node.gpus, len(node.name), node.name))
    named: set[str] = set()
    for node in nodes:
        if node.budget >= need and node.gpu.architecture and node.gpu.name not in named:
            named.add(node.gpu.name)
            yield node
