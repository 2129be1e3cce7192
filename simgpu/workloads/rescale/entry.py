"""`at_batch` rescales a trace to another batch size: blocks grow with the batch, durations follow the time model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.entries import apportioned, entries_of, histograms, rows_of
from simgpu.trace.model import Access, Block, BlockKind, CompressedSize, Kernel, Origin, Phase, SavedTensor, Trace
from simgpu.workloads.rescale.kernels import Rescaled, Rescaler, scaled
from simgpu.workloads.timemodel.operation import Operation
from simgpu.workloads.timemodel.prices import WORKSPACE_LIMIT, Priced, Prices

_ENTRIES = "Histograms of compressed memory-entries are scaled in proportion to their blocks."


class _WorkOnly:
    """Replaces the time model of an unknown device: durations are in proportion to a kernel's work."""

    def duration_ns(self, operation: Operation) -> int:
        return operation.flops or operation.bytes

    def algorithms(self, operation: Operation) -> Sequence[Priced]:
        return ()


def at_batch(trace: Trace, batch: int, gpu: GpuSpec | None = None) -> Trace:
    """The same iteration with `batch` samples; the result's origin is modelled.

    gpu: its time model scales the durations. By default the shipped GPU with the device's name; if there is none,
    durations grow in proportion to each kernel's work.

    A convolution that ran its fastest recorded algorithm runs the fastest one at the new batch, with that one's
    workspace. Sparsity does not change. Histograms of 128-byte memory-entries are scaled to the new sizes of their
    blocks: compressed memory is profiled at a smaller batch than it runs (Buddy Compression, section 3.4). Measurements
    that hold only at the recorded batch are removed: start times, spreads, other compressed sizes.

    Raises `InputError` for a batch below 1, if the trace does not record which blocks kernels read, and if forward
    runs again after backward.

    >>> from simgpu.trace.chain import chain
    >>> doubled = at_batch(chain([5, 7], [10, 14], [100, 200]), 2)
    >>> [kernel.duration_ns for kernel in doubled.kernels], [block.bytes for block in doubled.blocks][:2]
    ([10, 14, 28, 20], [200, 400])
    """
    if type(batch) is not int or batch < 1:
        raise InputError.single(trace.name or "trace", "batch", f"{batch!r} is not a batch size", "give at least 1")
    if batch == trace.info.batch:
        return trace
    check_rescalable(trace)
    prices, description = _model_for(trace, gpu)
    rescaler = Rescaler(trace, batch, prices)
    result = {kernel.id: rescaler.kernel(kernel) for kernel in trace.kernels}
    notes = f"{trace.info.notes} Rescaled from batch {trace.info.batch} ({trace.info.origin}): {description}."
    before = trace.block_by_id
    recorded = {block.id: block for block in trace.blocks if block.kind is BlockKind.WORKSPACE}
    workspaces = {kernel.id: _workspaces(recorded, kernel, result[kernel.id]) for kernel in trace.kernels}
    blocks = _blocks(rescaler, {block.id: block for created in workspaces.values() for block in created})
    compressibility = rescaled_entries(trace.compressibility, blocks)
    notes = " ".join((notes, *_exceptions(rescaler), *([_ENTRIES] if compressibility else []))).strip()
    info = replace(trace.info, batch=batch, origin=Origin.MODELLED, notes=notes, framework_peak_bytes=None)
    return replace(
        trace,
        info=info,
        kernels=tuple(_kernel(recorded, kernel, result[kernel.id], workspaces[kernel.id]) for kernel in trace.kernels),
        blocks=blocks,
        algorithms=tuple(choice for rescaled in result.values() for choice in rescaled.choices),
        compressibility=compressibility,
        accesses=tuple(_access(rescaler, access, before[access.block]) for access in trace.accesses),
        saved=tuple(_saved(rescaler, tensor, before[tensor.block]) for tensor in trace.saved),
        modules=tuple(replace(call, input_types=()) for call in trace.modules),
    )


def check_rescalable(trace: Trace) -> None:
    """Raises `InputError` for a trace that has no other batch.

    It does not record what kernels read, or runs forward again after backward: which samples that has is not recorded.
    """
    if trace.blocks and not trace.records_reads:
        problem = "the recording does not state what kernels read, so the samples cannot be followed"
        remedy = "import it with its execution trace, or record it at that batch"
        raise InputError.single(trace.name or trace.info.model, "kernels.reads", problem, remedy)
    phases = [kernel.phase for kernel in trace.kernels]
    first = phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else len(phases)
    if Phase.FORWARD in phases[first:]:
        what = "forward runs again after backward, as for another micro-batch, so the step cannot be rescaled"
        raise InputError.single(trace.name or trace.info.model, "batch", what, "record it with the batch you want")


def _access(rescaler: Rescaler, access: Access, block: Block) -> Access:
    """The access with the same accesses per entry, starting at the same fraction of the block."""
    size = rescaler.size(block)
    last = max(entries_of(replace(block, bytes=size)) - 1, 0)
    first = min(scaled(access.first, size, block.bytes), last)
    return replace(access, entries=max(1, scaled(access.entries, size, block.bytes)), first=first)


def _saved(rescaler: Rescaler, tensor: SavedTensor, block: Block) -> SavedTensor:
    """The saved tensor at the same fraction of its block's bytes, which may exceed 1; its shape is not known."""
    return replace(tensor, bytes=scaled(tensor.bytes, rescaler.size(block), block.bytes), shape=None)


@cache
def shipped_gpu(device: str) -> GpuSpec | None:
    """The first shipped GPU with that device name and a known architecture; None if there is none."""
    from simgpu.hardware.nodes import gpu_called

    return gpu_called(device)


def _model_for(trace: Trace, gpu: GpuSpec | None) -> tuple[Prices, str]:
    """The time model to use, and its description."""
    from simgpu.workloads.timemodel.formats import model_notes
    from simgpu.workloads.timemodel.model import time_model

    gpu = gpu or shipped_gpu(trace.info.device)
    if gpu is None:
        return _WorkOnly(), f"no time model for {trace.info.device}, durations in proportion to each kernel's work"
    limit = trace.info.workspace_limit
    if limit is None:
        # Recorded workspaces above the default imply a higher limit, which applies at the new batch too.
        needed = max((choice.workspace_bytes for choice in trace.algorithms), default=0)
        limit = max(needed, WORKSPACE_LIMIT)
    description = " ".join(
        (f"durations by the time model of {gpu.name}.", *model_notes(gpu, trace.info.product_formats))
    )
    return time_model(gpu, workspace_limit=limit, task_limit=trace.info.task_limit), description.removesuffix(".")


def _exceptions(rescaler: Rescaler) -> list[str]:
    """Notes about blocks and kernels that were not rescaled by their shapes."""
    description = []
    if not any(block.kind in (BlockKind.INPUT, BlockKind.LABEL) for block in rescaler.trace.blocks):
        description.append(
            "Its inputs are not recorded: feature maps and gradients grow if the batch divides their size."
        )
    if unknown := len(rescaler.unknown):
        description.append(
            f"Convolutions and matrix products of unknown shape, rescaled by operations and bytes: {unknown}."
        )
    if bare := len(rescaler.without_blocks):
        description.append(f"Kernels whose blocks are not recorded, rescaled in proportion to the batch: {bare}.")
    return description


def _kernel(recorded: Mapping[str, Block], kernel: Kernel, rescaled: Rescaled, workspaces: Sequence[Block]) -> Kernel:
    outputs = [name for name in kernel.writes if name not in recorded]
    writes = (*outputs, *(block.id for block in workspaces))
    return replace(
        kernel,
        duration_ns=rescaled.duration_ns,
        writes=kernel.writes if set(writes) == set(kernel.writes) else writes,
        start_ns=None,
        iqr_ns=None,
        flops=rescaled.flops,
        dram_bytes=rescaled.dram_bytes,
    )


def _workspaces(recorded: Mapping[str, Block], kernel: Kernel, rescaled: Rescaled) -> list[Block]:
    """The kernel's workspaces at the new batch: empty if it needs none, a new one if it had none.

    recorded: all workspaces of the trace, by id.
    """
    own = [recorded[name] for name in kernel.writes if name in recorded]
    before = sum(block.bytes for block in own)
    if rescaled.workspace == before:
        return own
    if not rescaled.workspace:
        return []
    if not own:
        name = f"workspace:{kernel.id}"
        return [Block(name, rescaled.workspace, BlockKind.WORKSPACE, release=kernel.id, layer=kernel.layer)]
    return [replace(block, bytes=scaled(block.bytes, rescaled.workspace, before)) for block in own]


def _blocks(rescaler: Rescaler, workspaces: dict[str, Block]) -> tuple[Block, ...]:
    """All blocks in the trace's order; a new workspace follows that of the closest earlier kernel with one."""
    trace = rescaler.trace
    recorded = {block.id for block in trace.blocks}
    retained = [
        workspaces[block.id] if block.kind is BlockKind.WORKSPACE else _grown(rescaler, block)
        for block in trace.blocks
        if block.kind is not BlockKind.WORKSPACE or block.id in workspaces
    ]
    first = next((block.id for block in retained if block.kind is BlockKind.WORKSPACE), None)
    new: defaultdict[str | None, list[Block]] = defaultdict(list)
    before = None
    for block in workspaces.values():
        if block.id in recorded:
            before = block.id
        else:
            new[before].append(block)
    placed: list[Block] = []
    for block in retained:
        placed += new.pop(None, ()) if block.id == first else ()
        placed += (block, *new[block.id])
    return (*placed, *new[None])


def _grown(rescaler: Rescaler, block: Block) -> Block:
    shape, side = block.shape, rescaler.sides.get(block.id)
    if shape is not None and side is not None:
        length = shape[side] // rescaler.trace.info.batch * rescaler.batch
        shape = (*shape[:side], length, *shape[side + 1 :])
    return replace(block, bytes=rescaler.size(block), shape=shape)


def rescaled_entries(rows: Sequence[CompressedSize], blocks: Iterable[Block]) -> tuple[CompressedSize, ...]:
    """The histograms among the rows, scaled to the sizes that their blocks have now.

    blocks: those that there are now; histograms of others, and of blocks without bytes, are left out.

    >>> from simgpu.trace.model import BlockKind
    >>> rows = [CompressedSize("y", 0, "bpc", "plain", 128, size, entries) for size, entries in ((0, 3), (64, 1))]
    >>> [(row.bytes, row.entries) for row in rescaled_entries(rows, [Block("y", 1280, BlockKind.ACTIVATION)])]
    [(0, 8), (64, 2)]
    """
    now = {block.id: entries_of(block) for block in blocks if block.bytes}
    result: list[CompressedSize] = []
    for (name, epoch), histogram in histograms(rows).items():
        if name in now:
            parts = apportioned(list(histogram.values()), now[name])
            result += rows_of(name, epoch, dict(zip(histogram, parts, strict=True)))
    return tuple(result)
