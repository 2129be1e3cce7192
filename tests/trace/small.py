"""A small valid trace, its folder, and random valid traces for tests of traces on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from simgpu.trace.folder import write_trace
from simgpu.trace.model import (
    RELEASED_AT_END,
    Access,
    AccessOrder,
    AlgorithmChoice,
    Block,
    BlockKind,
    CompressedSize,
    Kernel,
    ModuleCall,
    Origin,
    OutputLife,
    Phase,
    SavedTensor,
    SparsitySample,
    Trace,
    TraceInfo,
)

SMALL = Trace(
    TraceInfo("tiny", 2, "a bench", "float32", Origin.MODELLED, "by hand", "2024-02-29", "two lines\nof notes"),
    kernels=(
        Kernel("k1", "conv2d", Phase.FORWARD, 100, ("x", "w"), ("y",), "L1", 0, 0, True, 5000, 700),
        Kernel("k2", "relu_", Phase.FORWARD, 20, ("y",), ("y",), "L1", 0, 100, True),
        Kernel("k3", "loss", Phase.FORWARD, 30, ("y", "s"), ("z",), None, 0, 120),
        Kernel("k4", "conv2d_backward", Phase.BACKWARD, 200, ("x", "y", "z"), ("g", "t"), "L1", 0, 150),
        Kernel("k5", "step", Phase.OPTIMIZER, 10, ("w", "g"), ("w",), None, 0, 350, False),
    ),
    blocks=(
        Block("x", 16, BlockKind.INPUT, persistent=True, release="k4", shape=(2, 2), dtype="float32"),
        Block("w", 8, BlockKind.WEIGHT, persistent=True, layer="L1"),
        Block("y", 64, BlockKind.ACTIVATION, release="k4", layer="L1", shape=(4, 4)),
        Block("s", 8, BlockKind.OTHER, host_write="k3", release="k3", shape=()),
        Block("z", 4, BlockKind.ACTIVATION, release="k5"),
        Block("g", 8, BlockKind.WEIGHT_GRADIENT, release=RELEASED_AT_END),
        Block("t", 32, BlockKind.WORKSPACE),
    ),
    algorithms=(AlgorithmChoice("k1", "implicit gemm", 150, 0), AlgorithmChoice("k1", "fft", 90, 4096)),
    sparsity=(SparsitySample("y", 0, 0.5), SparsitySample("y", 10, 0.62)),
    compressibility=(CompressedSize("y", 0, "bpc", "nchw", 32, 8, 2),),
    accesses=(
        Access("k4", "x", False, AccessOrder.RANDOM, 1, 9),
        Access("k4", "g", True, AccessOrder.STRIDED, 4, 1, 2),
    ),
    saved=(
        SavedTensor("x", 8, None, "k4", RELEASED_AT_END),
        SavedTensor("y", 64, "k2", "k4", "k3"),
        SavedTensor("y", 32, "k2", None, "k3"),
        SavedTensor("s", 16, "k3", "k4"),
    ),
    name="small",
)


def small_folder(parent: Path) -> Path:
    """The small trace written under `parent`."""
    folder = parent / "small"
    write_trace(SMALL, folder)
    return folder


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=6)
_NAMES = st.lists(_WORDS, min_size=1, max_size=2).map(" ".join)
_IDS = _WORDS.filter(lambda text: text != RELEASED_AT_END)
_COUNTS = st.integers(0, 2**63 - 1)


def _maybe(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Random valid traces: in-place writes, blocks written by kernels, workspaces, unknown and known releases."""
    kernel_ids = draw(st.lists(_IDS, min_size=1, max_size=6, unique=True))
    block_ids = draw(st.lists(_IDS, min_size=0, max_size=8, unique=True))
    blocks = [draw(_block(name, kernel_ids)) for name in block_ids]
    kernels = []
    starts = sorted(draw(st.lists(_COUNTS, min_size=len(kernel_ids), max_size=len(kernel_ids))))
    written: set[str] = set()
    for index, name in enumerate(kernel_ids):
        here = [b for b in blocks if b.host_write is None or kernel_ids.index(b.host_write) <= index]
        here = [b for b in here if b.release not in kernel_ids or kernel_ids.index(b.release) >= index]
        readable = [b.id for b in here if b.persistent or b.host_write is not None or b.id in written]
        writable = [b.id for b in here]
        reads = draw(st.lists(st.sampled_from(readable), unique=True)) if readable else []
        writes = draw(st.lists(st.sampled_from(writable), unique=True)) if writable else []
        written.update(writes)
        kernels.append(draw(_kernel(name, tuple(reads), tuple(writes), starts[index])))
    used = {name for kernel in kernels for name in (*kernel.reads, *kernel.writes)}
    blocks = [
        b if b.persistent or b.host_write is not None or b.id in used else replace(b, persistent=True) for b in blocks
    ]
    saved = draw(_saved(kernels, blocks))
    modules = draw(_modules(kernels, blocks, len(saved)))
    tables = draw(_tables(kernel_ids, block_ids))
    return Trace(draw(_infos()), tuple(kernels), tuple(blocks), *tables, saved=saved, modules=modules)


@st.composite
def _saved(draw: st.DrawFn, kernels: list[Kernel], blocks: list[Block]) -> tuple[SavedTensor, ...]:
    """Saved tensors that are packed, unpacked and released in order, after their block exists."""
    ids = [kernel.id for kernel in kernels]
    there = {b.id: -1 for b in blocks if b.persistent or b.host_write is not None}
    for index, kernel in enumerate(kernels):
        for name in kernel.writes:
            there.setdefault(name, index)
    saved = []
    for name in draw(st.lists(st.sampled_from(list(there)), unique=True)) if there else []:
        after = draw(st.integers(there[name], len(ids) - 1))
        dropped = draw(st.sampled_from([None, RELEASED_AT_END, *ids[max(after, 0) :]]))
        for _ in range(draw(st.integers(1, 2))):
            before = draw(st.sampled_from([None, *ids[after + 1 :]]))
            first = max(after, 0 if before is None else ids.index(before) - 1, 0)
            unused, freed = (draw(st.sampled_from([None, RELEASED_AT_END, *ids[first:]])) for _ in range(2))
            shape = draw(_maybe(st.lists(_COUNTS, max_size=4).map(tuple)))
            texts = draw(_maybe(_NAMES)), shape, draw(_maybe(_NAMES))
            packed = ids[after] if after >= 0 else None
            ends = before, dropped, unused, freed
            saved.append(SavedTensor(name, draw(_COUNTS), packed, *ends, *texts, draw(st.booleans())))
    return tuple(saved)


@st.composite
def _modules(draw: st.DrawFn, kernels: list[Kernel], blocks: list[Block], saved: int) -> tuple[ModuleCall, ...]:
    """Calls of modules in order."""
    places = [None, *(kernel.id for kernel in kernels)]
    calls = []
    for _ in range(draw(st.integers(0, 3))):
        after, until = sorted(draw(st.lists(st.integers(0, len(kernels)), min_size=2, max_size=2)))
        first, stop = sorted(draw(st.lists(st.integers(0, saved), min_size=2, max_size=2)))
        inputs = tuple(draw(st.lists(st.sampled_from([b.id for b in blocks]), unique=True))) if blocks else ()
        types = ("float32:2x3",) * len(inputs)
        tensors = first, stop - first, inputs, types
        calls.append(ModuleCall(draw(_NAMES), places[after], places[until], *tensors, draw(st.booleans())))
    return tuple(calls)


@st.composite
def _block(draw: st.DrawFn, name: str, kernel_ids: list[str]) -> Block:
    born = draw(_maybe(st.integers(0, len(kernel_ids) - 1)))
    release = draw(_maybe(st.integers(born or 0, len(kernel_ids))))
    kinds = [kind for kind in BlockKind if kind is not BlockKind.WORKSPACE]
    return Block(
        name,
        draw(_COUNTS),
        draw(st.sampled_from(kinds)),
        persistent=born is None and draw(st.booleans()),
        host_write=None if born is None else kernel_ids[born],
        release=None if release is None else [*kernel_ids, RELEASED_AT_END][release],
        layer=draw(_maybe(_NAMES)),
        shape=draw(_maybe(st.lists(_COUNTS, max_size=4).map(tuple))),
        dtype=draw(_maybe(_NAMES)),
    )


@st.composite
def _kernel(draw: st.DrawFn, name: str, reads: tuple[str, ...], writes: tuple[str, ...], start: int) -> Kernel:
    return Kernel(
        name,
        draw(_NAMES),
        draw(st.sampled_from(Phase)),
        draw(_COUNTS),
        reads,
        writes,
        layer=draw(_maybe(_NAMES)),
        stream=draw(st.integers(0, 3)),
        start_ns=draw(st.sampled_from([None, start])),
        pure=draw(_maybe(st.booleans())),
        flops=draw(_maybe(_COUNTS)),
        dram_bytes=draw(_maybe(_COUNTS)),
    )


@st.composite
def _infos(draw: st.DrawFn) -> TraceInfo:
    return TraceInfo(
        draw(_NAMES),
        draw(st.integers(1, 2**40)),
        draw(_NAMES),
        draw(_NAMES),
        draw(st.sampled_from(Origin)),
        draw(_NAMES),
        draw(st.sampled_from(["", "2024-02-29", "1999-12-31"])),
        draw(st.text(st.characters(codec="utf-8"), max_size=20)),
        output=draw(_maybe(st.sampled_from(OutputLife))),
        compute=draw(st.sampled_from(["", "float32", "bfloat16 and float32 (autocast)"])),
    )


@st.composite
def _tables(draw: st.DrawFn, kernel_ids: list[str], block_ids: list[str]) -> tuple:
    algorithms = st.builds(AlgorithmChoice, st.sampled_from(kernel_ids), _NAMES, _COUNTS, _COUNTS)
    choices = draw(st.lists(algorithms, max_size=3, unique_by=lambda row: (row.kernel, row.algorithm)))
    if not block_ids:
        return tuple(choices), (), ()
    samples = st.builds(SparsitySample, st.sampled_from(block_ids), _COUNTS, st.floats(0, 1))
    sizes = st.builds(
        CompressedSize,
        st.sampled_from(block_ids),
        _COUNTS,
        _NAMES,
        _NAMES,
        st.integers(1, 2**40),
        _COUNTS,
        st.integers(1, 2**40),
    )
    return (
        tuple(choices),
        tuple(draw(st.lists(samples, max_size=3, unique_by=lambda row: (row.block, row.epoch)))),
        tuple(
            draw(
                st.lists(
                    sizes,
                    max_size=3,
                    unique_by=lambda row: (row.block, row.epoch, row.codec, row.layout, row.entry_bytes, row.bytes),
                )
            )
        ),
    )
