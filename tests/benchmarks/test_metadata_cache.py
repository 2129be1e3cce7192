"""What counting metadata misses costs, for each 30 GB that the kernels of an iteration walk: ResNet-50, batch 32.

Run with ``pytest tests/benchmarks``. The iteration goes through the cache of the paper twice, as for every run; making
its streams is part of the figure, compiling is not. The sweep is over the total sizes from 4 KiB to 512 KiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

from simgpu.compression.buddy.streams import EntryAccesses, hit_rates, misses_of, side_by_side, walks_of
from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import MetadataCacheSpec
from simgpu.workloads.modelled import build_trace
from tests.benchmarks.conftest import Report

PAPERS = MetadataCacheSpec(size=4096, slices=32, ways=4, line=32, entries=64)
SIZES = [2**shift for shift in range(12, 20)]
WALKED = 30 * 10**9
ROUNDS = 3


@pytest.fixture(scope="module")
def kernels() -> list[tuple[EntryAccesses, ...]]:
    trace = build_trace("resnet50", batch=32, gpu=load_node("2080ti").gpu)
    return walks_of(trace, side_by_side(trace.blocks, PAPERS))


def seconds(kernels: list[tuple[EntryAccesses, ...]], work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """For each 30 GB: the median."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken) * WALKED / sum(walk.accesses * ENTRY_BYTES for of_kernel in kernels for walk in of_kernel)


def test_misses(kernels: list[tuple[EntryAccesses, ...]], report: Report) -> None:
    misses_of(kernels[:1], PAPERS)  # what is compiled is compiled once
    figure = seconds(kernels, lambda: misses_of(kernels, PAPERS))
    report("metadata misses, seconds for each 30 GB walked, compiled", figure, "aim 0.5", figure <= 0.5)


def test_sweep(kernels: list[tuple[EntryAccesses, ...]], report: Report) -> None:
    hit_rates(kernels[:1], PAPERS, SIZES)
    figure = seconds(kernels, lambda: hit_rates(kernels, PAPERS, SIZES))
    report(f"metadata hits with {len(SIZES)} sizes, seconds for each 30 GB, compiled", figure, "", None)
