"""A recording beside the iteration that `ideal` and `none` make of it."""

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

#: Where it does not matter on which node: `ideal` takes recorded durations, and `none` is given all memory it asks for.
_ANY_NODE = "v100"
#: PyTorch's allocator gives memory in pieces of so many bytes.
_ROUNDED = 512


def is_trace(path: Path) -> bool:
    """Whether a path is a trace of simgpu."""
    return (path / "trace.yaml").exists()


def read(path: Path) -> tuple[Trace, list[Fact]]:
    """A recording as a trace, and what its files state; nothing of a format whose files are not read apart."""
    if is_trace(path):
        return read_trace(path), stated.of_folder(path)
    reader = stated.READERS.get(detect(path).name)
    return import_trace(path)[0], [] if reader is None else reader(path)


def compare(name: str, path: Path, gpu: str) -> list[Compared]:
    """The rows of a recording. gpu: the node on whose GPU it was made, empty where only the trace tells."""
    trace, facts = read(path)
    told = {fact.what: fact for fact in facts}
    device = load_node(gpu).gpu.name if gpu and trace.info.device == NOT_RECORDED else trace.info.device
    about = name, str(trace.info.origin), device
    node = load_node(_ANY_NODE)
    ideal = simulate(trace, node, "ideal")
    rows = [*_times(about, trace, told, ideal), *_memory(about, trace, told, node)]
    if stated.CONSTANTS in told:
        found = trace_stats(trace).constant_bytes
        rows.append(Compared(*about, "import", "constants", "bytes", told[stated.CONSTANTS].value, found))
    return rows


def _times(about: tuple[str, str, str], trace: Trace, told: dict[str, Fact], ideal: Result) -> Iterator[Compared]:
    """Kernels, their time, and where starts are recorded the timeline; as imported where the files are not read."""
    ran = int(((ideal.timeline.kind == SpanKind.COMPUTE) & (ideal.timeline.iteration == ideal.iterations - 1)).sum())
    kernels = told.get(stated.KERNELS, Fact(stated.KERNELS, len(trace.kernels)))
    compute = told.get(stated.COMPUTE, Fact(stated.COMPUTE, trace.compute_ns))
    yield Compared(*about, "ideal", kernels.what, "kernels", kernels.value, ran)
    streams = len({kernel.stream for kernel in trace.kernels})
    if streams == 1:
        yield Compared(*about, "ideal", compute.what, "ns", compute.value, ideal.iteration_ns)
    if timeline := told.get(stated.TIMELINE):
        why = "" if timeline.value == ideal.iteration_ns else timeline.told
        yield Compared(*about, "ideal", timeline.what, "ns", timeline.value, ideal.iteration_ns, why)


def _memory(about: tuple[str, str, str], trace: Trace, told: dict[str, Fact], node: NodeSpec) -> Iterator[Compared]:
    """The peak of `none`, which holds blocks as long as the framework did, where their lifetimes are recorded."""
    recorded = trace_stats(trace).peak_recorded
    if recorded is None:
        return
    everything = sum(block.bytes + _ROUNDED for block in trace.blocks)
    plain = simulate(trace, node, "none", budget=everything).metrics.device_peak_bytes
    peak = told.get(stated.PEAK)
    if peak is None:
        yield Compared(*about, "none", "peak memory, of the recorded lifetimes", "bytes", recorded.bytes, plain)
        return
    why = "" if peak.value == plain else _rounding(trace, node, everything, peak.value)
    yield Compared(*about, "none", peak.what, "bytes", peak.value, plain, why)


def _rounding(trace: Trace, node: NodeSpec, budget: int, recorded: int) -> str:
    """Whether it is the allocator's rounding that makes the difference."""
    found = simulate(trace, node, "none", budget=budget, alignment=_ROUNDED).high_water
    return (
        "blocks have the sizes of their tensors, the recorded peak has what the allocator gave for them; with sizes "
        f"rounded up to {_ROUNDED} bytes the peak is {found:,} bytes, {found - recorded:+,} from the recorded one; "
        "what is left is in allocations that are larger still (of a profile without its execution trace, blocks are "
        "the allocations themselves)"
    )
