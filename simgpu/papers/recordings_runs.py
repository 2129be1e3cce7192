"""Compares recorded iterations with simulated ones, under `ideal` and `none`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.importers import detect, import_trace
from simgpu.papers import recordings_files as stated
from simgpu.papers.recordings import Compared
from simgpu.papers.recordings_files import Fact
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.folder import read_trace
from simgpu.trace.model import NOT_RECORDED, Trace
from simgpu.trace.stats import trace_stats

#: Results do not depend on the node: `ideal` uses recorded durations, and `none` gets all the memory it requests.
_ANY_NODE = "v100"
#: PyTorch's allocator rounds sizes up to multiples of this.
_ROUNDED = 512


def is_trace(path: Path) -> bool:
    """Whether a path is a simgpu trace."""
    return (path / "trace.yaml").exists()


def read(path: Path) -> tuple[Trace, list[Fact]]:
    """A recording as a trace, and the facts in its files; no facts if the format has no reader."""
    if is_trace(path):
        return read_trace(path), stated.of_folder(path)
    reader = stated.READERS.get(detect(path).name)
    return import_trace(path)[0], [] if reader is None else reader(path)


def compare(name: str, path: Path, gpu: str) -> list[Compared]:
    """The rows of a recording. gpu: the node with the recorded GPU; empty if the trace names the device."""
    trace, listed = read(path)
    facts = {fact.what: fact for fact in listed}
    device = load_node(gpu).gpu.name if gpu and trace.info.device == NOT_RECORDED else trace.info.device
    about = name, str(trace.info.origin), device
    node = load_node(_ANY_NODE)
    ideal = simulate(trace, node, "ideal")
    rows = [*_times(about, trace, facts, ideal), *_memory(about, trace, facts, node)]
    if stated.CONSTANTS in facts:
        imported = trace_stats(trace).constant_bytes
        rows.append(Compared(*about, "import", "constants", "bytes", facts[stated.CONSTANTS].value, imported))
    return rows


def _times(about: tuple[str, str, str], trace: Trace, facts: dict[str, Fact], ideal: Result) -> Iterator[Compared]:
    """Rows for kernels, kernel time, and the timeline if starts are recorded.

    Without facts, the imported trace is compared instead of the files.
    """
    ran = int(((ideal.timeline.kind == SpanKind.COMPUTE) & (ideal.timeline.iteration == ideal.iterations - 1)).sum())
    kernels = facts.get(stated.KERNELS, Fact(stated.KERNELS, len(trace.kernels)))
    compute = facts.get(stated.COMPUTE, Fact(stated.COMPUTE, trace.compute_ns))
    yield Compared(*about, "ideal", kernels.what, "kernels", kernels.value, ran)
    streams = len({kernel.stream for kernel in trace.kernels})
    if streams == 1:
        yield Compared(*about, "ideal", compute.what, "ns", compute.value, ideal.iteration_ns)
    if timeline := facts.get(stated.TIMELINE):
        why = "" if timeline.value == ideal.iteration_ns else timeline.note
        yield Compared(*about, "ideal", timeline.what, "ns", timeline.value, ideal.iteration_ns, why)


def _memory(about: tuple[str, str, str], trace: Trace, facts: dict[str, Fact], node: NodeSpec) -> Iterator[Compared]:
    """A row for the peak of `none`, which frees blocks where the framework did; no row without recorded lifetimes."""
    recorded = trace_stats(trace).peak_recorded
    if recorded is None:
        return
    everything = sum(block.bytes + _ROUNDED for block in trace.blocks)
    plain = simulate(trace, node, "none", budget=everything).metrics.device_peak_bytes
    peak = facts.get(stated.PEAK)
    if peak is None:
        yield Compared(*about, "none", "peak memory, from recorded lifetimes", "bytes", recorded.bytes, plain)
        return
    why = "" if peak.value == plain else _rounding(trace, node, everything, peak.value)
    yield Compared(*about, "none", peak.what, "bytes", peak.value, plain, why)


def _rounding(trace: Trace, node: NodeSpec, budget: int, recorded: int) -> str:
    """A note on how much of the difference is due to the allocator's rounding."""
    rounded = simulate(trace, node, "none", budget=budget, alignment=_ROUNDED).high_water
    return (
        "blocks have the sizes of their tensors, while the recorded peak counts allocated bytes; with sizes rounded up "
        f"to {_ROUNDED} bytes the peak is {rounded:,} bytes, {rounded - recorded:+,} from the recorded one; the rest "
        "are allocations that are larger still (in a profile without its execution trace, blocks are the "
        "allocations themselves)"
    )
