"""A framework without a memory policy: recorded lifetimes, no compression, tensors saved by autograd."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.graph.saved import Saved, SavedTensors, autograd_ends
from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.graph.transforms import Uncompressed, uncompressed
from simgpu.policies.base import require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower, require_reads
from simgpu.program.placement import Placement
from simgpu.trace.model import BlockKind


def framework(graph: TaskGraph, policy: str) -> tuple[TaskGraph, tuple[Transform, ...]]:
    """The graph of a framework without compressed memory, and the transforms that build it.

    Raises `InputError` where a framework policy cannot be modelled: for a trace with several compute streams, for a
    trace without the reads of its kernels, and for data parallelism.
    """
    require_one_stream(graph, policy)
    require_reads(graph)
    if graph.exchanged:
        what = f"{policy} does what PyTorch does on one GPU, not on several that train together"
        raise InputError.single(graph.trace.name, "policy", what, "run it on one GPU")
    if graph.compressed is None:
        return graph, ()
    return uncompressed(graph), (Uncompressed(),)


def saved_note(saved: SavedTensors) -> tuple[str, ...]:
    """A note where the trace does not record the tensors that autograd saved."""
    if saved.recorded:
        return ()
    return ("tensors that autograd saves: derived from what backward reads, since the trace does not record them",)


def moments_of_saving(
    graph: TaskGraph, tensors: Sequence[Saved]
) -> tuple[defaultdict[int, list[int]], defaultdict[int, list[int]]]:
    """The numbers of the tensors saved just before each kernel, at the begin of a round, and just after each kernel."""
    starts = {part.first for part in graph.rounds}
    before: defaultdict[int, list[int]] = defaultdict(list)
    after: defaultdict[int, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        if tensor.after + 1 in starts:
            before[tensor.after + 1].append(number)
        else:
            after[tensor.after].append(number)
    return before, after


def releases_after_offload(
    graph: TaskGraph, tensors: Sequence[Saved], read: Sequence[Sequence[int]]
) -> list[int | None]:
    """The kernel after which each block is released.

    A block whose saved tensors were offloaded is released when the framework has dropped it, its tensors are saved, and
    its last use other than by the readers of the copies is over; all others as recorded. read: for each tensor, the
    kernels that read its copy in place of its block.
    """
    releases = list(graph.recorded_releases)
    copy_readers: defaultdict[int, set[int]] = defaultdict(set)
    for tensor, kernels in zip(tensors, read, strict=True):
        copy_readers[tensor.block].update(kernels)
    until: dict[int, int] = {}
    for each in tensors:
        if each.dropped is not None:
            until[each.block] = max(until.get(each.block, 0), each.after, each.dropped)
    for b, earliest in until.items():
        releases[b] = max((k for k in graph.uses[b] if k not in copy_readers[b]), default=earliest)
        releases[b] = max(releases[b] or 0, earliest)
    return releases


def releases_with_savers(
    graph: TaskGraph, tensors: Sequence[Saved], left: Mapping[int, int], read: Mapping[int, Sequence[int]]
) -> list[int | None]:
    """The kernel after which each block is released, where only some of its saved tensors are offloaded.

    left, read: by number of each offloaded tensor, the kernel after which it leaves the device, and the kernels that
    read its copy. A block that an operator saves whose tensor stays is held until autograd frees that one.
    """
    numbers = list(left)
    copied = [tensors[n]._replace(after=left[n]) for n in numbers]
    releases = releases_after_offload(graph, copied, [read[n] for n in numbers])
    blocks = {tensor.block for tensor in copied}
    for n, end in enumerate(autograd_ends(graph, tensors)):
        b = tensors[n].block
        release = releases[b]
        if n not in left and b in blocks and release is not None:
            releases[b] = max(release, end)
    return releases


def is_activation(graph: TaskGraph, tensor: Saved) -> bool:
    """Whether a saved tensor is no parameter or buffer and not changed in place later, which PyTorch refuses."""
    block = graph.blocks[tensor.block]
    is_changed = any(k > tensor.after and tensor.block in graph.writes[k] for k in graph.uses[tensor.block])
    is_held = block.persistent and block.kind not in (BlockKind.INPUT, BlockKind.LABEL)
    return not (is_changed or is_held)


def plain_framework(graph: TaskGraph) -> Program:
    """The recorded iteration as it was: everything resident over its recorded lifetime, nothing compressed.

    >>> from simgpu.trace.chain import chain
    >>> plain_framework(TaskGraph.of(chain([5], [7], [100]))).transforms
    ()
    """
    program = lower(uncompressed(graph), Placement(), recorded_lifetimes=True)
    if graph.compressed is None:
        return program
    return replace(program, transforms=(Uncompressed(), *program.transforms))
