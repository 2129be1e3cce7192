"""Shared by the tests of PyTorch's own policies: runs at one byte per nanosecond, and chains cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simgpu.program.instructions import Launch, Program
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.semantics.hand_made import node

WORK = ("compute", "recompute", "copy_d2h", "copy_h2d")


def run(trace: Trace, policy: str, *, bandwidth: int = 10**9, latency: int = 0, **parameters: object) -> Result:
    """A run with plenty of memory; verified, as every run is."""
    where = node(10**15, out=bandwidth, back=bandwidth, latency=latency)
    return simulate(trace, where, policy, parameters=parameters)


def work(result: Result) -> list[tuple[str, int, int]]:
    """Name, start and end of every kernel and copy of the second iteration, relative to its start.

    The prefixes ``in:`` and ``out:`` mark copies, ``again:`` marks recomputation.
    """
    prefix = {"copy_d2h": "out:", "copy_h2d": "in:", "recompute": "again:"}
    begin = result.timeline.iteration_ends_ns[0]
    outcome = [
        (prefix.get(span.label, "") + span.name, span.start_ns - begin, span.end_ns - begin)
        for span in result.timeline
        if span.label in WORK and span.iteration == 1
    ]
    return sorted(outcome, key=lambda each: each[1:])


def run_again(program: Program, trace: Trace) -> list[str]:
    """The kernels that run again, in order."""
    return [
        trace.kernels[instruction.kernel].id
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, Launch) and instruction.recompute
    ]


def peak(result: Result) -> int:
    """The most device memory in use at once, bytes."""
    return int(result.timeline.memory("device").used.max())


def used(result: Result, moment: int) -> int:
    """Device memory in use at a moment of the second iteration, ns from its start."""
    memory = result.timeline.memory("device")
    place = memory.time_ns.searchsorted(moment + result.timeline.iteration_ends_ns[0], side="right")
    return int(memory.used[place - 1])


def parts(forward: Sequence[int], backward: Sequence[int], sizes: Sequence[int], lengths: Sequence[int]) -> Trace:
    """A chain cut into parts ``a``, ``b`` and so on with these numbers of layers, named ``a.1``, ``a.2``, ..."""
    tags = [f"{name}.{n}" for name, length in zip("abcdefgh", lengths, strict=False) for n in range(1, length + 1)]
    built = chain(forward, backward, sizes)
    return replace(built, kernels=tuple(replace(k, layer=tags[int(k.id[1:]) - 1]) for k in built.kernels))
