"""Compares kernels that were timed under page faults with those under `um`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import quantiles
from typing import Any

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.importers import import_trace
from simgpu.memory.transfer import stream_ns
from simgpu.papers.recordings import Managed, Trial
from simgpu.papers.recordings_files import g10_times
from simgpu.papers.recordings_operands import FAULTS, Operand, operands
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace

#: `um` in a process that has just started.
_STARTED = {"first_touch": True}
#: The prediction, and other parameters for comparison.
_TRIALS: Mapping[str, Mapping[str, Any]] = {
    "the driver's rules": _STARTED,
    "without the fitted time of the host's pages": _STARTED | {"host_page_ns": 0},
    "without prefetching": _STARTED | {"prefetch": 0},
    "results without faults": {},
    "one fault for 64 KiB, 256 in a batch, as for Buddy Compression": {
        "page": 64 * 2**10,
        "entries_per_page": 1,
        "prefetch": 0,
        "host_page_ns": 0,
    },
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


def shapes(trace: Trace, faults: str) -> dict[tuple[Operand, ...], list[int]]:
    """The indices of the kernels, grouped by their operands, in order.

    >>> from simgpu.trace.chain import chain
    >>> list(shapes(chain([5, 7, 8], [7, 9, 9], [100, 100, 100]), "PF").values())
    [[0, 1], [2], [3, 4, 5]]
    """
    sizes = {block.id: block.bytes for block in trace.blocks}
    workspaces = {block.id for block in trace.blocks if block.kind is BlockKind.WORKSPACE}
    numbers: dict[tuple[Operand, ...], list[int]] = {}
    for number, kernel in enumerate(trace.kernels):
        reads, writes = dict.fromkeys(kernel.reads), dict.fromkeys(kernel.writes)
        read = [sizes[block] for block in reads if block not in writes]
        written = [sizes[block] for block in writes if block not in reads and block not in workspaces]
        changed = [sizes[block] for block in reads if block in writes]
        scratch = [sizes[block] for block in writes if block in workspaces]
        numbers.setdefault(operands(kernel.op, read, written, changed, faults, scratch), []).append(number)
    return numbers


def each_alone(trace: Trace, memory: int, faults: str) -> Trace:
    """An iteration of one kernel of each shape of a trace, with operands initially where the profiler put them.

    memory: of the GPU, bytes. An additional first kernel frees the GPU's memory.
    """
    kernels = [Kernel("free", "free", Phase.FORWARD, _US, reads=("all",))]
    blocks = [Block("all", memory, BlockKind.OTHER, persistent=True, release="free")]
    for shape, numbers in shapes(trace, faults).items():
        like = trace.kernels[numbers[0]]
        names = [f"{like.id}.{place}" for place in range(len(shape))]
        for name, operand in zip(names, shape, strict=True):
            born = like.id if operand.place == "gpu" else None
            on_host = operand.place == "host"
            blocks.append(
                Block(name, operand.bytes, BlockKind.OTHER, persistent=on_host, host_write=born, release=like.id)
            )
        reads = tuple(name for name, operand in zip(names, shape, strict=True) if not operand.result)
        writes = tuple(name for name, operand in zip(names, shape, strict=True) if operand.result)
        kernels.append(Kernel(like.id, like.op, Phase.FORWARD, like.duration_ns, reads, writes))
    return Trace(trace.info, tuple(kernels), tuple(blocks), name=trace.name)


def stalls(trace: Trace, node: NodeSpec, faults: str, parameters: Mapping[str, Any]) -> list[int]:
    """Nanoseconds that each kernel of a trace waits for its pages, where it runs alone."""
    alone = each_alone(trace, node.gpu.memory, faults)
    timeline = simulate(alone, node, "um", parameters=parameters, iterations=1).timeline
    ran = timeline.kind == SpanKind.COMPUTE
    starts, ends = timeline.start_ns[ran].tolist(), timeline.end_ns[ran].tolist()
    waits = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    by_kernel = [0] * len(trace.kernels)
    for wait, numbers in zip(waits, shapes(trace, faults).values(), strict=True):
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

    @cached_property
    def kept(self) -> list[int]:
        """The kernels that ran with the operands that the graph has for them.

        Others took less than half as long with data on the GPU as its memory takes for these operands: the profiler
        gave them smaller ones.
        """
        rate = self.node.gpu.dram_bandwidth or 0
        numbers = []
        for shape, group in shapes(self.trace, self.faults).items():
            least = stream_ns(sum(operand.bytes for operand in shape), rate) // 2 if rate else 0
            numbers += [number for number in group if self.trace.kernels[number].duration_ns >= least]
        return sorted(numbers)

    def sum(self, times: Sequence[int]) -> int:
        """The times of these kernels together."""
        return sum(times[number] for number in self.kept)

    @property
    def note(self) -> str:
        """How many kernels are left out."""
        missing = len(self.trace.kernels) - len(self.kept)
        if not missing:
            return ""
        return (
            f"{missing} kernels are left out, which ran with smaller operands than the graph has: with data on the GPU "
            "they took less than half of what its memory takes for those. "
        )

    def trial(self, label: str, parameters: Mapping[str, Any]) -> Trial:
        waits = stalls(self.trace, self.node, self.faults, parameters)
        predicted = [kernel.duration_ns + wait for kernel, wait in zip(self.trace.kernels, waits, strict=True)]
        ratios = [
            predicted[number] / self.times[number]
            for number in self.kept
            if self.times[number] > 2 * self.trace.kernels[number].duration_ns
        ]
        quarters = quantiles(ratios, method="inclusive") if len(ratios) > 1 else [0.0, 0.0, 0.0]
        return Trial(label, self.sum(predicted), *quarters)


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
        measured.sum([kernel.duration_ns for kernel in trace.kernels]),
        measured.sum(times),
        tuple(measured.trial(label, parameters) for label, parameters in _TRIALS.items()),
        unmeasured,
        f"{measured.note}{note} Each kernel ran alone, in its own process: nothing had to be evicted from the GPU, so "
        "GPU memory capacity and the order of eviction do not matter.",
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
