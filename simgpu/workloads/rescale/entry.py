"""A trace at another batch size: blocks grow with the batch, durations follow the time model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.entries import entries_of
from simgpu.trace.entries import rescaled as rescaled_entries
from simgpu.trace.model import Access, Block, BlockKind, Kernel, Origin, SavedTensor, Trace
from simgpu.workloads.rescale.kernels import Rescaled, Rescaler, scaled
from simgpu.workloads.timemodel.operation import Operation
from simgpu.workloads.timemodel.prices import Priced, Prices

_ENTRIES = "How many memory-entries have which compressed size is as at the batch before, in proportion."


class _WorkOnly:
    """Stands in where the device has no time model: a kernel takes as long as it has work."""

    def duration_ns(self, operation: Operation) -> int:
        return operation.flops or operation.bytes

    def algorithms(self, operation: Operation) -> Sequence[Priced]:
        return ()


def at_batch(trace: Trace, batch: int, gpu: GpuSpec | None = None) -> Trace:
    """The same iteration with another number of samples, marked modelled.

    gpu: whose time model tells how durations change; left out, the shipped GPU that the device's name is of, and where
    there is none, durations grow in proportion to each kernel's work.
    A convolution that ran by the fastest of its recorded algorithms runs by the fastest at the new batch, in the
    workspace of that. Sparsity is kept, and so are histograms of memory-entries of 128 bytes, scaled to the new sizes
    of their blocks: compressed memory is profiled at a smaller batch than it runs (Buddy Compression, section 3.4).
    What was measured at the recorded batch alone is left out: starts, spreads, other compressed sizes. Raises
    `InputError` for a batch below 1, and where it is not known what kernels read.

    >>> from simgpu.trace.chain import chain
    >>> doubled = at_batch(chain([5, 7], [10, 14], [100, 200]), 2)
    >>> [kernel.duration_ns for kernel in doubled.kernels], [block.bytes for block in doubled.blocks][:2]
    ([10, 14, 28, 20], [200, 400])
    """
    if type(batch) is not int or batch < 1:
        raise InputError.single(trace.name or "trace", "batch", f"{batch!r} is not a batch size", "give at least 1")
    if batch == trace.info.batch:
        return trace
    if trace.blocks and not trace.records_reads:
        what = "the recording does not tell what kernels read, so nobody can follow the samples through it"
        remedy = "import it with its execution trace, or record it at that batch"
        raise InputError.single(trace.name or trace.info.model, "kernels.reads", what, remedy)
    prices, description = _model_for(trace, gpu)
    rescaler = Rescaler(trace, batch, prices)
    result = {kernel.id: rescaler.kernel(kernel) for kernel in trace.kernels}
    notes = f"{trace.info.notes} Rescaled from batch {trace.info.batch} ({trace.info.origin}): {description}."
    had = {block.id: block for block in trace.blocks if block.kind is BlockKind.WORKSPACE}
    workspaces = {kernel.id: _workspaces(had, kernel, result[kernel.id]) for kernel in trace.kernels}
    blocks = _blocks(rescaler, {block.id: block for created in workspaces.values() for block in created})
    compressibility = rescaled_entries(trace.compressibility, blocks)
    notes = " ".join((notes, *_exceptions(rescaler), *([_ENTRIES] if compressibility else []))).strip()
    info = replace(trace.info, batch=batch, origin=Origin.MODELLED, notes=notes, framework_peak_bytes=None)
    return replace(
        trace,
        info=info,
        kernels=tuple(_kernel(had, kernel, result[kernel.id], workspaces[kernel.id]) for kernel in trace.kernels),
        blocks=blocks,
        algorithms=tuple(choice for rescaled in result.values() for choice in rescaled.choices),
        compressibility=compressibility,
        accesses=tuple(_visited(rescaler, access, trace.block_by_id[access.block]) for access in trace.accesses),
        saved=tuple(_saved(rescaler, tensor, trace.block_by_id[tensor.block]) for tensor in trace.saved),
    )


def _visited(rescaler: Rescaler, access: Access, block: Block) -> Access:
    """As many visits to each entry as there were, from the same share of the block on."""
    size = rescaler.size(block)
    last = max(entries_of(replace(block, bytes=size)) - 1, 0)
    first = min(scaled(access.first, size, block.bytes), last)
    return replace(access, entries=max(1, scaled(access.entries, size, block.bytes)), first=first)


def _saved(rescaler: Rescaler, tensor: SavedTensor, block: Block) -> SavedTensor:
    """The same share of its block, which it may also repeat."""
    return replace(tensor, bytes=scaled(tensor.bytes, rescaler.size(block), block.bytes))


@cache
def shipped_gpu(device: str) -> GpuSpec | None:
    """The first shipped GPU with that name of which the time model knows enough."""
    from simgpu.hardware.nodes import load_node, node_names

    shipped = (load_node(name).gpu for name in node_names())
    return next((result for result in shipped if result.is_called(device) and result.architecture), None)


def _model_for(trace: Trace, gpu: GpuSpec | None) -> tuple[Prices, str]:
    """The time model to use, and what it is in words."""
    from simgpu.workloads.timemodel.formats import model_notes
    from simgpu.workloads.timemodel.model import WORKSPACE_LIMIT, time_model

    gpu = gpu or shipped_gpu(trace.info.device)
    if gpu is None:
        return _WorkOnly(), f"no time model for {trace.info.device}, durations in proportion to each kernel's work"
    limit = trace.info.workspace_limit
    if limit is None:
        # A trace whose convolutions may need more was made under a higher limit, which holds at the new batch too.
        needed = max((choice.workspace_bytes for choice in trace.algorithms), default=0)
        limit = max(needed, WORKSPACE_LIMIT)
    description = " ".join(
        (f"durations by the time model of {gpu.name}.", *model_notes(gpu, trace.info.product_formats))
    )
    return time_model(gpu, workspace_limit=limit), description.removesuffix(".")


def _exceptions(rescaler: Rescaler) -> list[str]:
    """What was not done by shapes, in sentences."""
    description = []
    if not any(block.kind in (BlockKind.INPUT, BlockKind.LABEL) for block in rescaler.trace.blocks):
        description.append(
            "Its inputs are not told: feature maps and gradients grow where the batch divides their size."
        )
    if unknown := len(rescaler.unknown):
        description.append(
            f"Convolutions and matrix products of unknown shape, by operations and bytes alone: {unknown}."
        )
    if bare := len(rescaler.without_blocks):
        description.append(f"Kernels whose blocks are not recorded, in proportion to the batch: {bare}.")
    return description


def _kernel(had: Mapping[str, Block], kernel: Kernel, rescaled: Rescaled, workspaces: Sequence[Block]) -> Kernel:
    retained = [name for name in kernel.writes if name not in had]
    writes = (*retained, *(block.id for block in workspaces))
    return replace(
        kernel,
        duration_ns=rescaled.duration_ns,
        writes=kernel.writes if set(writes) == set(kernel.writes) else writes,
        start_ns=None,
        iqr_ns=None,
        flops=rescaled.flops,
        dram_bytes=rescaled.dram_bytes,
    )


def _workspaces(had: Mapping[str, Block], kernel: Kernel, rescaled: Rescaled) -> list[Block]:
    """The kernel's workspaces at the new batch; none where it needs none then, a new one where it had none.

    had: all workspaces of the trace, by id.
    """
    own = [had[name] for name in kernel.writes if name in had]
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
    """All blocks in the trace's order; a new workspace stands behind that of the last kernel before that had one."""
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
