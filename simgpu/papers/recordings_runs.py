"""Compares recorded iterations with simulated ones, under `ideal` and under the policy that managed their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.importers import detect, import_trace
from simgpu.papers import recordings_files as stated
from simgpu.papers.recordings import Compared, Managed, Trial
from simgpu.papers.recordings_files import Fact, g10_times
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.folder import read_trace
from simgpu.trace.model import NOT_RECORDED, Block, BlockKind, Kernel, Phase, Trace
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


#: Bytes of an operand, and whether the kernel reads and writes it.
Operand = tuple[int, bool, bool]

#: The measured situations, by suffix of the file's name.
FAULTS = {
    "PF": "every kernel with its data in host memory",
    "InputPF": "every kernel with its inputs on the GPU",
}
_FIRST = "parameters of the policy as they are"
_RESULTS = "results in host memory, too"
#: Further assumptions, each with results in host memory. (By default the policy acquires free memory without a fault.)
_ASSUMED: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "migrations at 4 GB/s": {"bandwidth": 4 * 10**9},
    "migrations at 2 GB/s": {"bandwidth": 2 * 10**9},
    "100 us for a batch of faults": {"fault_latency_ns": 100_000},
    "pages of 2 MiB": {"page": 2 * 2**20},
    "pages of 4 KiB": {"page": 4096},
    "32 faults a batch": {"fault_batch": 32},
    "8 faults a batch": {"fault_batch": 8},
    "4 faults a batch": {"fault_batch": 4},
    "2 faults a batch": {"fault_batch": 2},
}
_ITERATION = "one iteration, in which data stay on the GPU between kernels"
#: Kernels that read more than this many times the bytes they write show whether inputs fault.
_MOSTLY = 100
_US = 1000


def fault_files(path: Path) -> list[tuple[str, Path]]:
    """The files of a G10 folder that time kernels under faults, each with its key in `FAULTS`."""
    return [
        (word, file)
        for word in FAULTS
        for file in sorted(path.glob(f"cudnn*{word}.txt"))
        if file.stem.removeprefix("cudnn").removesuffix(word).isdecimal()
    ]


def shapes(trace: Trace) -> dict[tuple[Operand, ...], list[int]]:
    """The indices of the kernels, grouped by the shape of their operands, in order.

    >>> from simgpu.trace.chain import chain
    >>> list(shapes(chain([5, 7, 8], [7, 9, 9], [100, 100, 100])).values())
    [[0, 1], [2], [3, 4, 5]]
    """
    sizes = {block.id: block.bytes for block in trace.blocks}
    numbers: dict[tuple[Operand, ...], list[int]] = {}
    for number, kernel in enumerate(trace.kernels):
        operands = dict.fromkeys((*kernel.reads, *kernel.writes))
        shape = tuple((sizes[name], name in kernel.reads, name in kernel.writes) for name in operands)
        numbers.setdefault(shape, []).append(number)
    return numbers


def each_alone(trace: Trace, memory: int, faults: str, *, results_on_host: bool) -> Trace:
    """An iteration of one kernel of each shape of a trace, with operands initially where the recording put them.

    memory: of the GPU, bytes.
    faults: one of `FAULTS`. With `PF` all initialized operands are on the host; with `InputPF` operands that are only
    read are on the GPU.
    results_on_host: whether operands that are only written are on the host; else they have no memory yet.

    An additional first kernel frees the GPU's memory.
    """
    kernels = [Kernel("free", "free", Phase.FORWARD, _US, reads=("all",))]
    blocks = [Block("all", memory, BlockKind.OTHER, persistent=True, release="free")]
    for shape, numbers in shapes(trace).items():
        like = trace.kernels[numbers[0]]
        names = [f"{like.id}.{place}" for place in range(len(shape))]
        for name, (size, read, written) in zip(names, shape, strict=True):
            on_gpu = faults == "InputPF" and not written
            on_host = not on_gpu and (read or results_on_host)
            born = like.id if on_gpu else None
            blocks.append(Block(name, size, BlockKind.OTHER, persistent=on_host, host_write=born, release=like.id))
        reads = tuple(name for name, (_, read, _) in zip(names, shape, strict=True) if read)
        writes = tuple(name for name, (*_, written) in zip(names, shape, strict=True) if written)
        kernels.append(Kernel(like.id, like.op, Phase.FORWARD, like.duration_ns, reads, writes))
    return Trace(trace.info, tuple(kernels), tuple(blocks), name=trace.name)


def stalls(trace: Trace, alone: Trace, node: NodeSpec, parameters: Mapping[str, Any]) -> list[int]:
    """Nanoseconds that each kernel of a trace waits for its pages: those of its shape's kernel in `each_alone`."""
    timeline = simulate(alone, node, "um", parameters=parameters, iterations=1).timeline
    ran = timeline.kind == SpanKind.COMPUTE
    starts, ends = timeline.start_ns[ran].tolist(), timeline.end_ns[ran].tolist()
    waits = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    by_kernel = [0] * len(trace.kernels)
    for wait, numbers in zip(waits, shapes(trace).values(), strict=True):
        for number in numbers:
            by_kernel[number] = wait
    return by_kernel


@dataclass(frozen=True)
class _Measured:
    """Measured kernels under faults. faults: one of `FAULTS`. times: of each kernel, ns."""

    trace: Trace
    node: NodeSpec
    faults: str
    times: list[int]

    def trials(self) -> Iterator[Trial]:
        yield self.trial(_FIRST, {}, results_on_host=False)
        for label, parameters in _ASSUMED.items():
            assumed = f"{_RESULTS[: -len(', too')]}, {label}" if label else _RESULTS
            yield self.trial(assumed, parameters, results_on_host=True)

    def trial(self, label: str, parameters: Mapping[str, Any], *, results_on_host: bool) -> Trial:
        alone = each_alone(self.trace, self.node.gpu.memory, self.faults, results_on_host=results_on_host)
        waits = stalls(self.trace, alone, self.node, parameters)
        predicted = [kernel.duration_ns + wait for kernel, wait in zip(self.trace.kernels, waits, strict=True)]
        ratios = [
            ours / theirs
            for ours, theirs, kernel in zip(predicted, self.times, self.trace.kernels, strict=True)
            if theirs > 2 * kernel.duration_ns
        ]
        quarters = quantiles(ratios, method="inclusive") if len(ratios) > 1 else [0.0, 0.0, 0.0]
        return Trial(label, sum(predicted), *quarters)


def compare_managed(name: str, path: Path, gpu: str, faults: str) -> Managed:
    """A file of kernel times under faults, compared with `um` on a node's GPU.

    faults: one of `FAULTS`. Raises `InputError` if the file does not match the recording.
    """
    trace, _ = import_trace(path)
    files = dict(fault_files(path))
    times = g10_times(files[faults])
    if len(times) != len(trace.kernels):
        what = f"contains {len(times)} kernels, but kernels.config has {len(trace.kernels)}"
        raise InputError.single(files[faults], "", what, "give files of the same model, batch and run")
    node = load_node(gpu)
    note = "All data of each kernel were in host memory."
    unmeasured = {}
    if faults == "PF":
        unmeasured[_ITERATION] = simulate(trace, node, "um").iteration_ns
    elif "PF" in files:
        note = _evidence(trace, times, g10_times(files["PF"]))
    measured = _Measured(trace, node, faults, times)
    return Managed(
        name,
        str(trace.info.origin),
        node.gpu.name,
        FAULTS[faults],
        "um",
        node.name,
        node.gpu.memory,
        trace.compute_ns,
        sum(times),
        tuple(measured.trials()),
        unmeasured,
        f"{note} Each kernel ran alone, in its own process: nothing had to be evicted from the GPU, so GPU memory "
        "capacity and the order of eviction do not matter.",
    )


def _evidence(trace: Trace, times: list[int], all_cold: list[int]) -> str:
    """A note on whether inputs fault, from the fault time of kernels that read far more than they write."""
    sizes = {block.id: block.bytes for block in trace.blocks}
    faults_ns = all_cold_ns = count = 0
    for kernel, one, other in zip(trace.kernels, times, all_cold, strict=True):
        read = sum(sizes[block] for block in kernel.reads)
        if read > _MOSTLY * sum(sizes[block] for block in kernel.writes):
            faults_ns += one - kernel.duration_ns
            all_cold_ns += other - kernel.duration_ns
            count += 1
    if not all_cold_ns:
        return "According to its profiler's code, only results fault."
    return (
        "According to its profiler's code only results fault, in spite of the file's name. The times confirm it: with "
        f"inputs on the GPU, {count} kernels that read over {_MOSTLY} times the bytes they write keep "
        f"{faults_ns / all_cold_ns:.1%} of their fault time."
    )
