"""moDNN evicts the contiguous blocks that delay the iteration least (section 5.2, figure 6): against all windows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simgpu.memory.addressed import AddressedPool
from simgpu.policies.modnn.evictable import Scheme
from simgpu.policies.modnn.memory import DeviceMemory
from simgpu.policies.modnn.streams import Point
from simgpu.policies.modnn.tasks import Tasks


@st.composite
def memories(draw: st.DrawFn) -> DeviceMemory:
    """Up to nine adjacent blocks, some released, some unused, some on the host; also with times beyond 64 bits."""
    ns = draw(st.sampled_from([1, 2**59, 2**62]))
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=9))
    some = st.sets(st.integers(0, len(sizes) - 1))
    out_ns = {b: ns * draw(st.integers(1, 9)) for b in range(len(sizes))}
    graph = SimpleNamespace(sizes=sizes, copy_sizes=[draw(st.integers(1, size)) for size in sizes])
    tasks = cast("Tasks", cast("Any", SimpleNamespace(graph=graph, sizes=sizes, out_ns=out_ns)))
    memory = DeviceMemory(tasks, AddressedPool(sum(sizes) + draw(st.integers(0, 4))))
    memory.written = {b: Point(ns * draw(st.integers(0, 30)), b) for b in range(len(sizes))}
    for b in range(len(sizes)):
        assert memory.acquire(b)
    for b in draw(some):
        memory.release(b)
    memory.on_host = draw(some)
    memory.unused &= draw(some)
    return memory


def windows(memory: DeviceMemory, size: int, needed: set[int]) -> list[tuple[int, list[int]]]:
    """The address and the blocks of the shortest window from each range upwards that frees `size` bytes."""
    ranges, result = list(memory.pool.segments()), []
    for first, begin in enumerate(ranges):
        blocks, total = [], 0
        for each in ranges[first:]:
            if each.block is not None and (each.block in needed or each.block in memory.unused):
                break
            blocks += [] if each.block is None else [each.block]
            total += each.size
            if total >= size:
                result.append((begin.start, blocks))
                break
    return result


def cost(memory: DeviceMemory, blocks: list[int], begin: int, free: int) -> tuple[int, int]:
    """The delay (ns) and the bytes in both directions, if the data stream is free at `begin` and may end at `free`."""
    now, copied = begin, 0
    for b in blocks:
        copied += memory.tasks.graph.copy_sizes[b]
        if b not in memory.on_host:
            now = max(now, memory.written[b].time) + memory.tasks.out_ns[b]
            copied += memory.tasks.graph.copy_sizes[b]
    offloads = any(b not in memory.on_host for b in blocks)
    return max(0, now - free) if offloads else 0, copied


@given(memories(), st.integers(1, 40), st.sets(st.integers(0, 8)), st.integers(0, 30), st.integers(0, 40))
def test_the_scheme_has_the_lowest_delay_then_the_fewest_bytes_then_the_lowest_address(
    memory: DeviceMemory, size: int, needed: set[int], begin: int, free: int
) -> None:
    expected = min(
        ((*cost(memory, blocks, begin, free), address, blocks) for address, blocks in windows(memory, size, needed)),
        default=None,
    )
    known = needed.intersection(range(len(memory.tasks.sizes)))
    scheme = memory.scheme(size, known, begin, lambda end: np.maximum(0, end - free))
    assert scheme == (None if expected is None else Scheme(expected[0], tuple(expected[3])))
