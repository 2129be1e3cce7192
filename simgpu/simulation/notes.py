"""Notes on a run, in addition to its policy's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from simgpu.graph.functional import Functional
from simgpu.graph.replicate import NO_COLLECTIVES, Exchange
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings
from simgpu.graph.updates import updates_of, without_gradient
from simgpu.hardware.collectives import EXCHANGES, RECEIVE
from simgpu.hardware.spec import GpuSpec, MemoryLink, MemorySpec, NodeSpec
from simgpu.program.instructions import DEVICE, HOST, Copy, Instruction, Program
from simgpu.timeline.model import Timeline
from simgpu.trace.epochs import epochs_of
from simgpu.trace.model import NOT_RECORDED, RELEASED_AT_END, BlockKind, Origin, OutputLife, Trace, TraceInfo
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.workloads.timemodel.formats import model_notes

#: An output below this share of the feature maps does not change the peak noticeably.
_NOTABLE = 0.01


def kernel_times(info: TraceInfo, gpu: GpuSpec) -> str:
    """The source of a run's kernel times if they are not of the node's GPU, else empty.

    gpu: of the node. For modelled durations of a GPU to which the time model was not fitted, the text names the fitted
    ones.

    >>> from simgpu.hardware.nodes import load_node
    >>> modelled = TraceInfo("vgg16", 128, "H200 SXM", "float32", Origin.MODELLED, "simgpu zoo")
    >>> kernel_times(modelled, load_node("h200").gpu)
    "The time model's hopper was fitted to H100, not to H200 SXM."
    >>> kernel_times(modelled, GpuSpec("mine", memory=1))
    "of H200 SXM, not of the node's mine, which gives memory and links. The time model's hopper was fitted to H100..."
    """
    if info.device == NOT_RECORDED:
        return ""
    notes, of_node = [], gpu.is_called(info.device)
    if not of_node:
        notes.append(f"of {info.device}, not of the node's {gpu.name}, which gives memory and links")
    if info.origin is Origin.MODELLED:
        from simgpu.workloads.rescale.entry import shipped_gpu

        modelled = gpu if of_node and gpu.architecture else shipped_gpu(info.device)
        notes += [] if modelled is None else model_notes(modelled, info.product_formats)
    return ". ".join(notes)


def allocator_text(pool: str, settings: str | None = None) -> str:
    """A description of a run's pool. settings: of the caching allocator."""
    return {
        "counting": "allocator without fragmentation",
        "addressed": "allocator with addresses",
        "caching": f"PyTorch's caching allocator{f' ({settings})' if settings else ''}",
    }.get(pool, pool)


def context_text(metrics: Mapping[str, Any]) -> str:
    """A description of the memory that the CUDA context takes; empty for other allocators than PyTorch's.

    metrics: of a run, by key.

    >>> context_text({"device_context_bytes": 500 * 2**20}), context_text({"device_context_bytes": None})
    ('CUDA context 500 MiB, in addition to the budget', 'context memory not known, counted as 0')
    """
    if "device_context_bytes" not in metrics:
        return ""
    size = metrics["device_context_bytes"]
    if size is None:
        return "context memory not known, counted as 0"
    if size == 0:
        return "context memory not subtracted: the given budget is the allocator's"
    return f"CUDA context {format_bytes(size)}, in addition to the budget"


def other_memories_text(memories: Iterable[MemorySpec], links: Iterable[MemoryLink]) -> str:
    """A description of a node's memories and links besides those of every node; empty without any.

    >>> ssd = MemorySpec("ssd", "NVMe SSD", 10**9)
    >>> other_memories_text([ssd], [MemoryLink(("host", "ssd"), "PCIe", (18 * 10**8, 32 * 10**8))])
    'ssd 953.7 MiB; host to ssd 1.8 GB/s, ssd to host 3.2 GB/s'
    """
    texts = [each.name if each.capacity is None else f"{each.name} {format_bytes(each.capacity)}" for each in memories]
    for link in links:
        ways = zip((link.ends, link.ends[::-1]), link.bandwidths, strict=True)
        texts.append(", ".join(f"{src} to {dst} {format_bandwidth(rate)}" for (src, dst), rate in ways))
    return "; ".join(texts)


def on_epoch(trace: Trace, epoch: int) -> list[str]:
    """A note on the epoch that is used if the trace has no record of the run's epoch."""
    known = epochs_of(trace)
    if not known or known[0] <= epoch <= known[-1]:
        return []
    nearest = known[0] if epoch < known[0] else known[-1]
    return [f"the trace records epochs {known[0]} to {known[-1]}: epoch {nearest} is used in place of {epoch}"]


def on_output(trace: Trace) -> list[str]:
    """A note if the training loop held an output of the model that is a notable part of all feature maps.

    >>> from dataclasses import replace
    >>> from simgpu.trace.model import RELEASED_AT_END, OutputLife
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 5], [10, 10], [2**20, 2**20])
    >>> held = replace(trace, blocks=tuple(replace(block, release=RELEASED_AT_END) for block in trace.blocks))
    >>> on_output(replace(held, info=replace(held.info, output=OutputLife.HELD)))
    ["the trace's loop holds the model's output (1 MiB) through backward, which loss_fn(model(x), y) does not"]
    """
    if trace.info.output is not OutputLife.HELD:
        return []
    maps = [block for block in trace.blocks if block.kind is BlockKind.ACTIVATION and not block.persistent]
    output_bytes = sum(block.bytes for block in maps if block.release == RELEASED_AT_END)
    if output_bytes < _NOTABLE * sum(block.bytes for block in maps):
        return []
    loop = "which loss_fn(model(x), y) does not"
    return [f"the trace's loop holds the model's output ({format_bytes(output_bytes)}) through backward, {loop}"]


def on_exchanges(trace: Trace) -> list[str]:
    """A note if the trace is of one of several GPUs that share the model, whose kernels exchange data.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 5], [10, 10], [100, 100])
    >>> on_exchanges(replace(trace, kernels=(*trace.kernels[:-1], replace(trace.kernels[-1], op="all_reduce"))))
    ['the trace is of one of several GPUs: samples are those of all that share them; compute has 10 ns of exchanges']
    """
    exchanges = [kernel for kernel in trace.kernels if kernel.op in EXCHANGES]
    if not exchanges:
        return []
    times = [sum(k.duration_ns for k in exchanges if (k.op == RECEIVE) == is_wait) for is_wait in (False, True)]
    waits = f" and {format_time(times[1])} of waits for other stages" if times[1] else ""
    parts = f"compute has {format_time(times[0])} of exchanges{waits}"
    return [f"the trace is of one of several GPUs: samples are those of all that share them; {parts}"]


def on_compression(program: Program, graph: TaskGraph, node: NodeSpec) -> list[str]:
    """Copies that the DMA engine compresses, and sizes that are modelled."""
    notes, cdma = [], node.gpu.cdma
    changes = [change for change in program.transforms if isinstance(change, WithEncodings)]
    used = {encoding.codec for change in changes for encoding in change.chosen}
    if cdma is not None and _copies(program):
        used.add(cdma.codec)
        smaller = graph.copy_sizes != tuple(block.bytes for block in graph.blocks)
        what = (
            f"compresses copies ({cdma.codec})" if smaller else f"compresses nothing: no size in {cdma.codec} is known"
        )
        notes.append(f"the DMA engine of {node.name} {what}")
    if used:
        from simgpu.compression.codecs.costs import NodeCosts

        modelled = sorted(used & set(graph.costs.modelled_codecs)) if isinstance(graph.costs, NodeCosts) else []
        notes += [f"sizes in {codec} are modelled from sparsity, not measured" for codec in modelled]
    return notes


def on_compute(recorded: TaskGraph, ran: TaskGraph) -> list[str]:
    """A note on the compute time relative to ideal's, if a policy changed the GPU's own iteration.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))
    >>> on_compute(graph, replace(graph, durations=(5, 7, 10, 50)))
    ['compute takes 2.000 times that of ideal, which runs the whole batch by the recorded algorithms']
    """
    ideal, now = recorded.ideal_ns(), ran.ideal_ns()
    if now == ideal or not ideal or ran.compute_streams != recorded.compute_streams:
        return []
    what = "that of ideal, which runs the whole batch by the recorded algorithms"
    return [f"compute takes {now / ideal:.3f} times {what}"]


def on_endurance(program: Program, graph: TaskGraph, node: NodeSpec) -> list[str]:
    """What a step writes to memories that wear out, and how many such steps they last.

    graph: with the program's transforms.
    """
    notes = []
    for name, limit in [(each.name, each.endurance) for each in node.memories if each.endurance is not None]:
        written = sum(
            segment.repeat * sum(graph.copy_sizes[each.copied] for each in code if _writes(each, name))
            for segment in program.segments
            for code in segment.streams.values()
        )
        if written:
            size, steps = format_bytes(limit), limit // written
            notes.append(f"writes {format_bytes(written)} a step to {name}, whose {size} last {steps:,} steps")
    return notes


def on_host_memory(timeline: Timeline, node: NodeSpec) -> list[str]:
    """A note if what is on the host needs more than its memory, which no run waits for."""
    memory = node.host.memory
    needed = max((int(each.live.max(initial=0)) for each in timeline.shared_memories if each.memory == HOST), default=0)
    if memory is None or needed <= memory:
        return []
    return [f"the host would need {format_bytes(needed)}, more than its {format_bytes(memory)} of memory"]


def on_transforms(program: Program) -> list[str]:
    """A note where a policy counts every kernel as one that can run again."""
    if any(isinstance(transform, Functional) for transform in program.transforms):
        return ["every kernel counts as one that gives the same results again, and none changes its operands in place"]
    return []


def on_gpus(program: Program, node: NodeSpec) -> list[str]:
    """A note on the number of GPUs that run, if it is not all of the node's."""
    if program.gpus == node.gpus:
        return []
    if program.gpus == 1:
        return [f"one of the node's {node.gpus} GPUs runs, with its own link"]
    return [f"{program.gpus} of the node's {node.gpus} GPUs run"]


def on_exchange(graph: TaskGraph, exchange: Exchange) -> list[str]:
    """Notes on the exchange of gradients, and on weight updates that differ from one GPU's. graph: of one GPU."""
    notes = [NO_COLLECTIVES]
    _, end = updates_of(graph)
    if end == len(graph.kernels):
        notes.append("the trace has no optimizer: weights are updated by plain gradient descent")
    elif exchange is Exchange.HOST:
        spared = format_time(sum(graph.durations[end:]))
        what = f"the host's update replaces the recorded optimizer ({spared} on one GPU)"
        notes.append(f"{what}: the speedup may exceed the number of GPUs")
    if unexchanged := without_gradient(graph):
        more = f" and {len(unexchanged) - 1} more" if len(unexchanged) > 1 else ""
        name = graph.blocks[unexchanged[0]].id
        notes.append(f"weight '{name}'{more} has no known gradient: not exchanged, each GPU keeps its own")
    return notes


def _writes(instruction: Instruction, memory: str) -> TypeGuard[Copy]:
    return isinstance(instruction, Copy) and instruction.dst == memory


def _copies(program: Program) -> bool:
    return any(
        isinstance(i, Copy) and i.src == DEVICE
        for segment in program.segments
        for code in segment.streams.values()
        for i in code
    )
