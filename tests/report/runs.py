"""Runs for reports: a chain of three layers, names with markup, and very many spans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.outputs import write_outputs
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.report.recorded import Ran, ReportInput, recorded_from
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.timeline.hand_made import curve_of

CHAIN = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [100_000, 200_000, 300_000])
LINK = LinkSpec("PCIe", 10**10, 10**10)
NODE = NodeSpec("bench", GpuSpec("a GPU", 10**9), LINK)
TIGHT = NodeSpec("tight", GpuSpec("a GPU", 550_000), LINK)

#: Breaks out of scripts, attributes and comments where it is not escaped.
NASTY = "</script><script>document.title='broken'</script>\"'&lt;<!--"


def renamed(trace: Trace, old: str, new: str) -> Trace:
    """The same trace with one block renamed."""

    def name(result: str) -> str:
        return new if result == old else result

    kernels = tuple(
        replace(
            kernel, reads=tuple(map(name, kernel.reads)), writes=tuple(map(name, kernel.writes)), op=f"<b>{kernel.op}"
        )
        for kernel in trace.kernels
    )
    return replace(trace, kernels=kernels, blocks=tuple(replace(b, id=name(b.id)) for b in trace.blocks))


def small() -> Comparison:
    """Completed runs, and one out of memory."""
    return compare(CHAIN, TIGHT, ["ideal", "none", "vdnn"])


def written(comparison: Comparison, folder: Path, *, formats: tuple[str, ...] = ("csv",)) -> Path:
    """The folder that `simgpu run` would write."""
    write_outputs(comparison, folder, about={"simgpu": "0", "scenario": "small"}, timeline=formats)  # type: ignore[arg-type]
    return folder


def cached() -> Comparison:
    """Runs with PyTorch's allocator, whose three feature maps of 12 MiB have segments of their own."""
    trace = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [12 * 2**20] * 3)
    node = NodeSpec("bench", GpuSpec("a GPU", 10**9, context_memory=300 * 2**20), LINK)
    return compare(trace, node, ["none", "vdnn"], pool="caching")


def huge(spans: int) -> ReportInput:
    """A run with many spans on each of two streams, so dense that thousands share a pixel."""
    recorded = recorded_from(compare(CHAIN, NODE, ["vdnn"]))
    [ran] = recorded.runs
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2_000, size=(2, spans))
    ends = np.cumsum(lengths, axis=1)
    starts = ends - lengths
    order = np.argsort(starts.ravel(), kind="stable")
    stream = np.repeat(np.arange(2), spans)[order]
    kinds = np.where(stream == 0, SpanKind.COMPUTE, SpanKind.COPY)
    kinds[rng.random(2 * spans) < 0.3] = SpanKind.STALL_EVENT
    end = int(ends.max())
    times = np.linspace(0, end, spans).astype(np.int64)
    sizes = rng.integers(0, 10**9, size=spans)
    names = (*(kernel.id for kernel in ran.kernels), *(block.id for block in ran.blocks))
    timeline = Timeline(
        streams=("compute", "d2h"),
        names=names,
        gpu=np.zeros(2 * spans, dtype=np.int64),
        stream=stream,
        kind=kinds.astype(np.int64),
        name=np.where(stream == 0, 0, len(ran.kernels)),
        start_ns=starts.ravel()[order],
        end_ns=ends.ravel()[order],
        bytes=np.where(kinds == SpanKind.COPY, 4096, 0),
        cause=np.where(kinds == SpanKind.STALL_EVENT, 1 - stream, -1),
        iteration=np.zeros(2 * spans, dtype=np.int64),
        resource=np.where(kinds == SpanKind.COPY, 0, -1),
        resources=("d2h",),
        memories=(curve_of(zip(times.tolist(), sizes.tolist(), sizes.tolist(), strict=True)), curve_of(memory="host")),
        iteration_ends_ns=(end,),
    )
    return ReportInput(recorded.document, (Ran(ran.entry, ran.name, timeline, ran.kernels, ran.blocks),))
