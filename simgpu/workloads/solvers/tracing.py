"""Builds the trace of a solver's step: kernels and blocks at the reference size, compressibility from a small run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simgpu.hardware.nodes import load_node
from simgpu.trace.entries import Histogram, apportioned, rows_of
from simgpu.trace.model import (
    Access,
    AccessOrder,
    Block,
    BlockKind,
    CompressedSize,
    Kernel,
    Origin,
    Phase,
    Trace,
    TraceInfo,
)
from simgpu.units import format_bytes
from simgpu.version import __version__
from simgpu.workloads.solvers.solver import Solver
from simgpu.workloads.solvers.work import Array, KernelWork, Touch
from simgpu.workloads.timemodel.model import TimeModel, time_model
from simgpu.workloads.timemodel.operation import Operation

#: The node with the GPU for the durations: the one that the paper simulates (table 2), modelled on a P100.
NODE = "buddy-gpu"
#: Duration of an operation in double precision relative to single precision (NVIDIA, Pascal P100 white paper).
_DOUBLE = 2


def solver_trace(solver: Solver, profile: Sequence[Mapping[str, Histogram]]) -> Trace:
    """Returns the trace of one step of a solver at its reference size, modelled for `NODE`; its epochs are snapshots.

    profile: for each snapshot of a run of `solver`, the number of entries of each allocation by compressed size in
        bytes. They are scaled to the sizes of the reference's blocks by largest remainder.

    >>> from simgpu.workloads.solvers.catalogue import solver_of
    >>> trace = solver_trace(solver_of("cg"), [{"p": {128: 2, 64: 1}}])
    >>> [(kernel.op, kernel.flops) for kernel in trace.kernels][0], trace.block_by_id["p"].bytes
    (('sparse_product', 171000000), 12000000)
    >>> [(row.bytes, row.entries) for row in trace.compressibility]
    [(64, 31250), (128, 62500)]
    """
    reference = solver.reference()
    arrays, works = reference.arrays(), reference.work()
    model = time_model(load_node(NODE).gpu)
    names = [f"k{number}" for number in range(len(works))]
    return Trace(
        _info(solver, reference, len(profile), model.gpu.name),
        kernels=tuple(_kernel(name, work, model) for name, work in zip(names, works, strict=True)),
        blocks=tuple(_block(name, array) for name, array in arrays.items()),
        compressibility=tuple(_compressibility(arrays, profile)),
        accesses=tuple(
            Access(name, touch.array, touch.write, touch.order, touch.sectors, touch.visits, touch.stride, touch.first)
            for name, work in zip(names, works, strict=True)
            for touch in work.touches
            if not _is_usual(touch, arrays[touch.array])
        ),
        name=f"hpc-{solver.name}",
    )


def _kernel(name: str, work: KernelWork, model: TimeModel) -> Kernel:
    flops = work.flops * (_DOUBLE if work.double else 1)
    reads = tuple(touch.array for touch in work.touches if not touch.write)
    writes = tuple(touch.array for touch in work.touches if touch.write)
    return Kernel(
        name,
        work.op,
        Phase.FORWARD,
        model.duration_ns(Operation(work.kind, flops, work.dram_bytes, work.results)),
        reads,
        writes,
        pure=not set(reads) & set(writes),
        flops=work.flops,
        dram_bytes=work.dram_bytes,
    )


def _block(name: str, array: Array) -> Block:
    return Block(name, array.bytes, BlockKind.OTHER, persistent=True, shape=array.shape, dtype=array.dtype)


def _is_usual(touch: Touch, array: Array) -> bool:
    """Whether an access is the default of a trace, which need not be listed."""
    return touch == Touch(touch.array, touch.write, array.entries, AccessOrder.SEQUENTIAL)


def _compressibility(arrays: Mapping[str, Array], profile: Sequence[Mapping[str, Histogram]]) -> list[CompressedSize]:
    result: list[CompressedSize] = []
    for epoch, histograms in enumerate(profile):
        for name, histogram in histograms.items():
            parts = apportioned(list(histogram.values()), arrays[name].entries)
            result += rows_of(name, epoch, dict(zip(histogram, parts, strict=True)))
    return result


def _info(solver: Solver, reference: Solver, snapshots: int, device: str) -> TraceInfo:
    dtypes = {array.dtype for array in reference.arrays().values()}
    return TraceInfo(
        model=solver.name,
        batch=1,
        device=device,
        dtype="float64" if "float64" in dtypes else "float32",
        origin=Origin.MODELLED,
        tool=f"simgpu solver {__version__}",
        notes=_notes(solver, reference, snapshots),
    )


def _notes(solver: Solver, reference: Solver, snapshots: int) -> str:
    size, small = (format_bytes(each.bytes) for each in (reference, solver))
    return (
        f"One step: {solver.what}; of the kind of {solver.like} in Buddy Compression's table 1, none of whose code is "
        f"here. Blocks, flops, DRAM bytes and accesses are counted from the algorithm at {reference.scale} ({size}). "
        "Durations are modelled by simgpu's time model, double precision at half the rate of single. Compressibility "
        f"is measured: bit-plane compression of the arrays of a run at {solver.scale} ({small}), which really ran with "
        f"NumPy, at the ends of {snapshots} equal parts of its {solver.steps} steps (epochs 0 to {snapshots - 1}), and "
        "scaled to the blocks; that it is the same at the larger size is assumed."
    )
