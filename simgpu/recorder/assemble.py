"""Builds a trace from the notes of the recording passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

from simgpu.recorder.notes import AlgorithmNote, BlockNote, CallNote, KernelNote, SavedNote, Saves, ValueNote
from simgpu.trace.model import (
    RELEASED_AT_END,
    AlgorithmChoice,
    Block,
    CompressedSize,
    Kernel,
    ModuleCall,
    SavedTensor,
    SparsitySample,
    Trace,
    TraceInfo,
)


def assemble(
    info: TraceInfo,
    kernels: Sequence[KernelNote],
    blocks: Sequence[BlockNote],
    durations: Sequence[Sequence[int]],
    epochs: Sequence[Mapping[int, ValueNote]] = (),
    algorithms: Sequence[AlgorithmNote] = (),
    saves: Saves | None = None,
) -> Trace:
    """Returns the trace of the noted kernels and blocks.

    durations: nanoseconds of every operator call, per repetition; a kernel gets the median over the repetitions (the
    lower middle value if their number is even) and the `spread`.
    epochs: per epoch of a training run, from 0: the measured block values, by position in `blocks`; by default, the
    values of the recorded iteration count as epoch 0.
    algorithms: alternative convolution algorithms.
    saves: what autograd saved, and the calls of modules; their blocks are positions in `blocks`.
    """
    saves = saves or Saves()
    names = _block_names(blocks)
    ids = [f"k{place}" for place in range(len(kernels))]
    kernel_of = {kernel.call: ids[place] for place, kernel in enumerate(kernels)}
    times = [[repetition[kernel.call] for repetition in durations] for kernel in kernels]
    return Trace(
        info,
        tuple(
            Kernel(
                ids[place],
                kernel.op,
                kernel.phase,
                median_low(times[place]),
                tuple(names[number] for number in kernel.reads),
                tuple(names[number] for number in kernel.writes),
                kernel.layer,
                pure=kernel.pure,
                flops=kernel.flops,
                iqr_ns=spread(times[place]),
                source=kernel.source,
            )
            for place, kernel in enumerate(kernels)
        ),
        tuple(
            Block(
                names[number],
                block.bytes,
                block.kind,
                block.persistent,
                None if block.host_write is None else ids[block.host_write],
                RELEASED_AT_END if block.release is None else ids[block.release],
                block.layer,
                block.shape,
                block.dtype,
            )
            for number, block in enumerate(blocks)
        ),
        algorithms=tuple(
            AlgorithmChoice(kernel_of[note.call], note.algorithm, note.duration_ns, note.workspace_bytes)
            for note in algorithms
        ),
        sparsity=tuple(
            SparsitySample(names[number], epoch, seen.sparsity)
            for number, epoch, seen in _seen(blocks, epochs)
            if seen.sparsity is not None
        ),
        compressibility=tuple(
            CompressedSize(names[number], epoch, *row)
            for number, epoch, seen in _seen(blocks, epochs)
            for row in _sizes(blocks[number], seen)
        ),
        saved=tuple(_saved(note, note.block, names, ids) for note in saves.tensors if note.block is not None),
        modules=tuple(_called(note, names, ids) for note in saves.calls),
        name=info.model,
    )


def _seen(
    blocks: Sequence[BlockNote], epochs: Sequence[Mapping[int, ValueNote]]
) -> Iterator[tuple[int, int, ValueNote]]:
    """Yields (position of the block, epoch, measured values)."""
    for number, block in enumerate(blocks):
        recorded = {number: ValueNote(block.sparsity, block.sizes, block.entries)}
        for epoch, values in enumerate(epochs or [recorded]):
            if number in values:
                yield number, epoch, values[number]


def _sizes(block: BlockNote, seen: ValueNote) -> Iterator[tuple[str, str, int, int, int]]:
    """Yields (codec, layout, bytes before, bytes after, pieces), first for the block, then for its memory-entries."""
    for codec, layout, size in seen.sizes:
        yield codec, layout, block.bytes, size, 1
    yield from seen.entries


def _saved(note: SavedNote, number: int, names: Sequence[str], ids: Sequence[str]) -> SavedTensor:
    """Converts counts of kernels run so far to ids of the last kernel before, or the next kernel after."""
    before = None if note.before is None or note.before == len(ids) else ids[note.before]
    dropped = RELEASED_AT_END if note.dropped == "end" else None if note.dropped is None else ids[note.dropped]
    unused, freed = (RELEASED_AT_END if place is None else ids[place] for place in (note.unused, note.freed))
    after = ids[note.after - 1] if note.after else None
    return SavedTensor(
        names[number],
        note.bytes,
        after,
        before,
        dropped,
        unused,
        freed,
        note.layer,
        note.shape,
        note.dtype,
        note.is_reread,
    )


def _called(note: CallNote, names: Sequence[str], ids: Sequence[str]) -> ModuleCall:
    after, until = (ids[count - 1] if count else None for count in (note.after, note.until))
    inputs = tuple(names[number] for number in note.inputs)
    return ModuleCall(
        note.module, after, until, note.first, note.stop - note.first, inputs, note.types, note.is_compiled, note.kind
    )


def spread(times: Sequence[int]) -> int | None:
    """Returns the interquartile range of the durations in nanoseconds; None for a single duration.

    In n sorted durations, the first quartile is the one at position (n - 1) // 4 from the start, and the third
    quartile the one at the same position from the end. Up to four durations, this is the longest minus the shortest.

    >>> spread([50, 10, 20, 30, 40]), spread([7, 9]), spread([7])
    (20, 2, None)
    """
    if len(times) < 2:
        return None
    ordered, outside = sorted(times), (len(times) - 1) // 4
    return ordered[-1 - outside] - ordered[outside]


def _block_names(blocks: Sequence[BlockNote]) -> list[str]:
    """Returns a readable, unique id per block: its name, else its layer and the operator that created it."""
    taken: dict[str, int] = {}
    names = []
    for block in blocks:
        maker = block.maker.rpartition("::")[2] or ("constant" if block.persistent else "host")
        name = block.name or (f"{block.layer}:{maker}" if block.layer else maker)
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name}#{taken[name]}")
    return names
