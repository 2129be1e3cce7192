"""Memory over a trace's recorded lifetimes, derived from the trace alone."""

from __future__ import annotations

from simgpu.trace.model import RELEASED_AT_END, Trace


def live_bytes(trace: Trace) -> list[int]:
    """Bytes of the blocks made in the iteration that are alive while each kernel runs."""
    position = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    first: dict[str, int] = {}
    for place, kernel in enumerate(trace.kernels):
        for name in kernel.reads + kernel.writes:
            first.setdefault(name, place)
    alive = [0] * len(trace.kernels)
    for block in trace.blocks:
        if not block.persistent:
            assert block.release is not None
            last = len(alive) - 1 if block.release == RELEASED_AT_END else position[block.release]
            for place in range(first[block.id], last + 1):
                alive[place] += block.bytes
    return alive
