"""Kernels measured under page faults beside the same kernels under `um`.

G10's recordings time each kernel three times (its profiler is `src/cudnn` of https://github.com/platformxlab/G10, which
`src/codegen.cc` there calls): in plain device memory (`cudnnB.txt`), and twice in managed memory, each time alone in a
process of its own, with arrays just allocated. For `cudnnBPF.txt` nothing lies on the GPU: inputs are in host memory,
and so are results that the kernel adds to; other results have no memory yet. For `cudnnBInputPF.txt` the GPU has
touched all inputs before the clock starts, so that, whatever the name says, results alone fault. No kernel's arrays
come near the memory of the GPU: nothing ever leaves.

The same is simulated as one iteration in which every kernel has blocks of its own. They lie on the host because a block
as large as the memory takes its place first and goes before the first kernel begins. Kernels with operands of the same
sizes stall equally long, so that one stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.importers import import_trace
from simgpu.papers.recordings import Managed, Trial
from simgpu.papers.recordings_files import g10_times
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace

#: Bytes of an operand, and whether the kernel reads and writes it.
Operand = tuple[int, bool, bool]

#: What is measured, by the ending of a file's name.
FAULTS = {
    "PF": "every kernel with its data in host memory",
    "InputPF": "every kernel with its inputs on the GPU",
}
_FIRST = "parameters of the policy as they are"
_RESULTS = "results in host memory, too"
#: What else is assumed, always with results in host memory, of which the policy takes free memory without a fault.
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
_WHOLE = "one whole iteration, where data stay on the GPU between kernels"
#: A kernel that has so many times more of one than of the other tells which of the two fault.
_MOSTLY = 100
_US = 1000


def fault_files(path: Path) -> list[tuple[str, Path]]:
    """The files of a G10 folder that time kernels under faults, by a word in `FAULTS`."""
    return [
        (word, file)
        for word in FAULTS
        for file in sorted(path.glob(f"cudnn*{word}.txt"))
        if file.stem.removeprefix("cudnn").removesuffix(word).isdecimal()
    ]


def shapes(trace: Trace) -> dict[tuple[Operand, ...], list[int]]:
    """The numbers of the kernels by what operands they have, in their order.

    >>> from simgpu.trace.chain import chain
    >>> list(shapes(chain([5, 7, 8], [7, 9, 9], [100, 100, 100])).values())
    [[0, 1], [2], [3, 4, 5]]
    """
    sizes = {block.id: block.bytes for block in trace.blocks}
    found: dict[tuple[Operand, ...], list[int]] = {}
    for number, kernel in enumerate(trace.kernels):
        operands = dict.fromkeys((*kernel.reads, *kernel.writes))
        shape = tuple((sizes[name], name in kernel.reads, name in kernel.writes) for name in operands)
        found.setdefault(shape, []).append(number)
    return found


def each_alone(trace: Trace, memory: int, faults: str, *, results_on_host: bool) -> Trace:
    """An iteration in which one kernel of each shape of a trace finds its operands where a recording put them.

    memory: of the GPU, bytes. faults: one of `FAULTS`; with `PF` all that has a value is on the host, with `InputPF`
    what is read alone is on the GPU. results_on_host: so is what is written alone, else it has no memory yet. The first
    kernel is not of the trace: it frees the GPU's memory.
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
    """How long each kernel of a trace waits for its pages, ns, as its like does in the iteration of `each_alone`."""
    timeline = simulate(alone, node, "um", parameters=parameters, iterations=1).timeline
    ran = timeline.kind == SpanKind.COMPUTE
    starts, ends = timeline.start_ns[ran].tolist(), timeline.end_ns[ran].tolist()
    waits = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    found = [0] * len(trace.kernels)
    for wait, numbers in zip(waits, shapes(trace).values(), strict=True):
        for number in numbers:
            found[number] = wait
    return found


@dataclass(frozen=True)
class _Measured:
    """Kernels under faults: nanoseconds of each, and what faulted."""

    trace: Trace
    node: NodeSpec
    faults: str
    times: list[int]

    def trials(self) -> Iterator[Trial]:
        yield self.trial(_FIRST, {}, results_on_host=False)
        for label, parameters in _ASSUMED.items():
            both = f"{_RESULTS[: -len(', too')]}, {label}" if label else _RESULTS
            yield self.trial(both, parameters, results_on_host=True)

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
    """A file of kernels under faults beside `um` on a node's GPU.

    faults: one of `FAULTS`. Raises `InputError` where the file does not fit the recording.
    """
    trace, _ = import_trace(path)
    files = dict(fault_files(path))
    times = g10_times(files[faults])
    if len(times) != len(trace.kernels):
        what = f"holds {len(times)} kernels, kernels.config {len(trace.kernels)}"
        raise InputError.single(files[faults], "", what, "give files of one model, batch and run")
    node = load_node(gpu)
    told = "All of a kernel's data were in host memory."
    unmeasured = {}
    if faults == "PF":
        unmeasured[_WHOLE] = simulate(trace, node, "um").iteration_ns
    elif "PF" in files:
        told = _evidence(trace, times, g10_times(files["PF"]))
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
        f"{told} Each kernel ran alone, in a process of its own: nothing had to leave the GPU, so that neither its "
        "memory nor the order of eviction matters.",
    )


def _evidence(trace: Trace, times: list[int], all_cold: list[int]) -> str:
    """Whether inputs fault: what is left of the faults of kernels that read far more than they write."""
    sizes = {block.id: block.bytes for block in trace.blocks}
    here = there = count = 0
    for kernel, one, other in zip(trace.kernels, times, all_cold, strict=True):
        read = sum(sizes[block] for block in kernel.reads)
        if read > _MOSTLY * sum(sizes[block] for block in kernel.writes):
            here, there, count = here + one - kernel.duration_ns, there + other - kernel.duration_ns, count + 1
    if not there:
        return "By its profiler's code, results alone fault."
    return (
        "By its profiler's code results alone fault, in spite of the file's name, and so the times say: of what faults "
        f"add to {count} kernels that read over {_MOSTLY} times what they write, {here / there:.1%} is left when their "
        "inputs are on the GPU."
    )
