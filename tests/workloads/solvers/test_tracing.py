"""Traces of solvers: valid, counted from the algorithm, exactly scaled histograms; shipped traces are reproduced."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from simgpu.compression.codecs.entries import ENTRY_SIZES, histogram, size_classes
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.trace.entries import histograms
from simgpu.trace.folder import load_trace
from simgpu.trace.model import AccessOrder, Origin, Trace
from simgpu.workloads.solvers.catalogue import SOLVERS, solver_of
from simgpu.workloads.solvers.tracing import NODE, solver_trace
from tests.sets import slow_except

each = pytest.mark.parametrize("name", SOLVERS)


@cache
def bare(name: str) -> Trace:
    return solver_trace(solver_of(name), [])


def moved(trace: Trace, kernel: str) -> int:
    """Bytes of a kernel by its blocks and accesses."""
    description = {(each.kernel, each.block, each.write): each.entries * each.sectors * 32 for each in trace.accesses}
    usual = {block.id: -(-block.bytes // 128) * 128 for block in trace.blocks}
    result = next(each for each in trace.kernels if each.id == kernel)
    pairs = [*((block, False) for block in result.reads), *((block, True) for block in result.writes)]
    return sum(description.get((kernel, block, write), usual[block]) for block, write in pairs)


@pytest.mark.parametrize("name", slow_except(SOLVERS, *({*SOLVERS} - {"lbm"})))
def test_the_trace_of_a_solver_is_valid_and_marked_modelled(name: str) -> None:
    trace = bare(name)
    assert check_trace(trace) == []
    assert trace.info.origin is Origin.MODELLED
    for description in (
        SOLVERS[name].like,
        "none of whose code is here",
        "Durations are modelled",
        "Compressibility is measured",
    ):
        assert description in trace.info.notes


@pytest.mark.parametrize("name", slow_except(SOLVERS, *({*SOLVERS} - {"lbm"})))
def test_dram_bytes_of_a_kernel_equal_the_bytes_of_its_accesses(name: str) -> None:
    trace = bare(name)
    for kernel in trace.kernels:
        assert kernel.dram_bytes == moved(trace, kernel.id)


@each
def test_no_kernel_is_faster_than_memory_and_arithmetic_allow(name: str) -> None:
    trace, gpu = bare(name), load_node(NODE).gpu
    assert gpu.dram_bandwidth and gpu.fp32_rate
    for kernel in trace.kernels:
        assert kernel.duration_ns / 1e9 > (kernel.dram_bytes or 0) / gpu.dram_bandwidth
        assert kernel.duration_ns / 1e9 > (kernel.flops or 0) / gpu.fp32_rate


@each
def test_a_kernel_that_overwrites_its_input_is_not_pure(name: str) -> None:
    for kernel in bare(name).kernels:
        assert kernel.pure is (not set(kernel.reads) & set(kernel.writes))


@pytest.mark.slow
def test_access_patterns_match_the_paper() -> None:
    """CG gathers at random, a sector each; seismic strides by planes (Buddy Compression, section 4.2)."""
    gather = next(access for access in bare("cg").accesses if access.order is AccessOrder.RANDOM)
    assert (gather.block, gather.sectors, gather.write) == ("p", 1, False)
    assert {access.order for access in bare("seismic").accesses} == {AccessOrder.STRIDED}
    assert {access.stride for access in bare("seismic").accesses} == {288 * 288 * 4 // 128}
    pulled = [access for access in bare("lbm").accesses if not access.write]
    assert all(access.sectors < 4 for access in pulled)
    assert bare("ep").accesses == ()


def test_histograms_are_scaled_to_the_reference_by_largest_remainder() -> None:
    trace = solver_trace(solver_of("ep"), [{"tally0": {0: 1, 32: 1, 128: 1}}, {"tally0": {128: 5}}])
    entries = 26_443_776 * 8 // 128
    assert histograms(trace.compressibility) == {
        ("tally0", 0): {0: entries // 3, 32: entries // 3, 128: entries // 3},
        ("tally0", 1): {128: entries},
    }


@each
def test_the_shipped_trace_equals_the_built_trace(name: str) -> None:
    shipped, now = load_trace(f"hpc-{name}"), bare(name)
    assert (shipped.kernels, shipped.blocks, shipped.accesses) == (now.kernels, now.blocks, now.accesses)


@pytest.mark.slow
@each
def test_the_shipped_histograms_match_a_fresh_run(name: str) -> None:
    """The last bits of logarithms and sines, and so a few entries, may differ on another processor."""
    shipped = histograms(load_trace(f"hpc-{name}").compressibility)
    for epoch, state in enumerate(solver_of(name).snapshots()):
        for array, values in state.items():
            counts = histogram(size_classes(values))
            description = Counter(shipped[array, epoch])
            for size, count in zip(ENTRY_SIZES, counts, strict=True):
                share = count / sum(counts)
                assert description[size] / sum(description.values()) == pytest.approx(share, abs=0.01)
