"""Builds samples from recorded iterations, which the importers read from a folder chosen by the user.

A DTR log has no shapes. The shape of a convolution follows from its three sizes and the batch: for square images, a
result side equal to the input side divided by the stride, and R x R filters, the sizes determine the product and the
quotient of the two channel counts; only one of the common R and strides gives whole numbers. Blocks are storages, so an
operator on views may list more bytes than it accesses: a sum is counted by its result. The prototype that wrote the
logs copies a tensor before an in-place change: such an operator counts as a copy and the change.

From a G10 recording, only kernels of vendor libraries are used. Excluded are G10's own kernels for the input gradient
of a linear layer (1.5 TFLOP/s, while the forward product of that size reaches 13.5), for softmax and for sums over
rows, and kernels whose tensors the graph lists as broadcast, or merged over layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from math import gcd, isqrt
from pathlib import Path

from simgpu.hardware.nodes import load_node
from simgpu.importers import import_trace
from simgpu.trace.model import NOT_RECORDED, Block, Kernel, Origin, Phase, Trace, TraceInfo
from simgpu.workloads.calibration.recordings import CalibrationRecording
from simgpu.workloads.calibration.samples import Sample, Skipped, counted
from simgpu.workloads.catalogue import build
from simgpu.workloads.lowering.entry import lower, operations_of
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape, Operation, OperationKind

_PRODUCTS = {"Linear_Forward": Direction.FORWARD, "Linear_Backward_Weight": Direction.BACKWARD_WEIGHTS}
_ELEMENTWISE = (
    "Multiply_Backward",
    "Multiply_Forward",
    "Add_Forward",
    "Subtract_Forward",
    "Power_Forward",
    "Apply_Grad",
)


def g10_operations(kernel: Kernel, blocks: dict[str, Block], batch: int) -> tuple[Operation, ...] | None:
    """The operations of one kernel; None if it is not a kernel of a vendor library."""
    reads, writes = ([blocks[name].bytes for name in names] for names in (kernel.reads, kernel.writes))
    moved, results = sum(reads) + sum(writes), sum(writes) // _ITEM
    if kernel.op in _PRODUCTS and len(reads) == 2:
        shape = _product(reads[0] // _ITEM, reads[1] // _ITEM, results)
        if shape is None:
            return None
        return (Operation(OperationKind.GEMM, 2 * shape.macs, moved, results, _PRODUCTS[kernel.op], gemm=shape),)
    if kernel.op in _ELEMENTWISE and len(set(reads) | set(writes)) == 1 and reads[0] >= 1 << 20:
        return (Operation(OperationKind.ELEMENTWISE, results, moved, results),)
    return None


def _product(first: int, second: int, result: int) -> GemmShape | None:
    """The product of two matrices, from the number of values of both and of the result; None if there is none.

    >>> _product(768 * 2304, 32768 * 768, 32768 * 2304)
    GemmShape(m=2304, n=32768, k=768, count=1, aligned=True)
    """
    sides = [
        isqrt(a * b // c) for a, b, c in ((first, result, second), (second, result, first), (first, second, result))
    ]
    m, n, k = sides
    return GemmShape(m, n, k) if (m * k, n * k, m * n) == (first, second, result) else None


_ITEM = 4
#: Filter side and stride, most common first.
_FILTERS = ((3, 1), (1, 1), (3, 2), (1, 2), (7, 2), (5, 1), (2, 1), (2, 2))
_KINDS = {
    "relu": OperationKind.ELEMENTWISE,
    "relu_": OperationKind.ELEMENTWISE,
    "add": OperationKind.ELEMENTWISE,
    "add_": OperationKind.ELEMENTWISE,
    "threshold_backward": OperationKind.ELEMENTWISE,
    "cudnn_batch_norm": OperationKind.NORMALIZATION,
    "cudnn_batch_norm_backward": OperationKind.NORMALIZATION,
    "max_pool2d_with_indices": OperationKind.POOLING,
    "max_pool2d_with_indices_backward": OperationKind.POOLING,
    "avg_pool2d": OperationKind.POOLING,
    "avg_pool2d_backward": OperationKind.POOLING,
    "sum_dim_IntList": OperationKind.REDUCTION,
    "_cat": OperationKind.COPY,
    "constant_pad_nd": OperationKind.COPY,
    "slice_backward": OperationKind.COPY,
}


def dtr_operations(kernel: Kernel, blocks: dict[str, Block], batch: int) -> tuple[Operation, ...] | None:
    """The operations of one logged operator; None if its name and sizes do not determine them."""
    reads, writes = ([blocks[name].bytes for name in names] for names in (kernel.reads, kernel.writes))
    if kernel.op == "cudnn_convolution" and len(reads) >= 2:
        return _convolution(reads[0], writes[0], reads[1], batch, (Direction.FORWARD,))
    if kernel.op == "cudnn_convolution_backward" and len(reads) >= 3:
        data, weights = Direction.BACKWARD_DATA, Direction.BACKWARD_WEIGHTS
        wanted = (data, weights) if len(writes) > 1 else (weights,)
        return _convolution(reads[0], reads[1], reads[2], batch, wanted)
    if kernel.op not in _KINDS:
        return None
    if kernel.op in ("add", "slice_backward") and sum(writes) < 4096:
        return ()  # counters and other scalars
    direction = Direction.BACKWARD_DATA if "backward" in kernel.op else Direction.FORWARD
    results = sum(writes) // _ITEM
    moved = 3 * sum(writes) if kernel.op == "add" else sum(reads) + sum(writes)
    operation = Operation(_KINDS[kernel.op], results, moved, results, direction)
    if set(kernel.reads) & set(kernel.writes):
        return (Operation(OperationKind.COPY, 0, 2 * sum(writes), results), operation)
    return (operation,)


def _convolution(
    source: int, result: int, weights: int, batch: int, directions: tuple[Direction, ...]
) -> tuple[Operation, ...] | None:
    shape = _shape(source // _ITEM, result // _ITEM, weights // _ITEM, batch)
    if shape is None:
        return None
    return tuple(
        Operation(
            OperationKind.CONVOLUTION,
            2 * shape.macs,
            source + result + weights,
            (weights if direction is Direction.BACKWARD_WEIGHTS else result) // _ITEM,
            direction,
            convolution=shape,
        )
        for direction in directions
    )


def _shape(source: int, result: int, weights: int, batch: int) -> ConvolutionShape | None:
    """The shape of a convolution, from the number of values of its tensors; None if no shape fits.

    >>> _shape(56 * 16 * 224**2, 56 * 16 * 224**2, 16 * 16 * 9, 56).out_size
    (224, 224)
    """
    for (side, stride), padded in product(_FILTERS, (True, False)):
        padding = side // 2 if padded else 0
        for channels in _channels(source, weights, batch, side):
            rest = source // (batch * channels)
            height = isqrt(rest)
            if height * height != rest or height + 2 * padding < side:
                continue
            outputs = weights // (channels * side * side)
            shape = ConvolutionShape(
                batch, channels, (height, height), outputs, (side, side), (stride, stride), (padding, padding)
            )
            if batch * outputs * shape.out_size[0] * shape.out_size[1] == result:
                return shape
    return None


def _channels(source: int, weights: int, batch: int, side: int) -> list[int]:
    """Input channel counts that divide both the filters and the input, in ascending order.

    >>> _channels(2 * 12 * 5**2, 8 * 12 * 9, 2, 3)
    [1, 2, 3, 4, 6, 12]
    """
    if weights % (side * side) or source % batch:
        return []
    common = gcd(weights // (side * side), source // batch)
    small = [count for count in range(1, isqrt(common) + 1) if common % count == 0]
    large = [common // count for count in reversed(small) if count * count != common]
    return small + large


#: Returns the operations of a kernel, from the kernel, its blocks and the batch; None if they cannot be determined.
Reader = Callable[[Kernel, dict[str, Block], int], tuple[Operation, ...] | None]
_READERS: dict[str, Reader] = {"dtr": dtr_operations, "g10": g10_operations}
#: Fraction of a recording's time that its translated operators must cover to represent the iteration.
_ENOUGH = 0.9
#: Types of operators in a recording of PyTorch and in the zoo, by a word in their names.
_SORTS = (("conv", "convolutions"), ("relu", "relu"), ("threshold", "relu"), ("pool", "pooling"))


def recorded_samples(folder: Path, recordings: Iterable[CalibrationRecording]) -> Iterator[Sample | Skipped]:
    """Yields samples from recordings in a folder; see `recorded_traces`."""
    for result in recorded_traces(folder, recordings):
        yield from [result] if isinstance(result, Skipped) else samples_of(*result)


def recorded_traces(
    folder: Path, recordings: Iterable[CalibrationRecording]
) -> Iterator[tuple[CalibrationRecording, Trace] | Skipped]:
    """Yields the traces of recordings in a folder; for a missing recording, yields `Skipped` with its path.

    Raises `InputError` for a damaged file.
    """
    for recording in recordings:
        path = folder / recording.path
        if path.exists():
            yield recording, import_trace(path)[0]
        else:
            yield Skipped(recording.name, f"no such file or folder: {path}")


def samples_of(recording: CalibrationRecording, trace: Trace) -> Iterator[Sample | Skipped]:
    """Yields the samples of a recording."""
    reader = _READERS.get(recording.operators)
    yield from _of_zoo(recording, trace) if reader is None else _of_operators(recording, trace, reader)


def _of_zoo(recording: CalibrationRecording, trace: Trace) -> Iterator[Sample]:
    """Samples of a recording of a zoo network: the iteration, its phases, and the types of kernels within them."""
    modelled = operations_by_phase(recording.network, recording.batch, adam=recording.optimizer == "adam")
    everything = [operation for phase in Phase for _, operation in modelled[phase]]
    yield _sample(recording, "iteration", everything, sum(kernel.duration_ns for kernel in trace.kernels))
    if not all(kernel.writes for kernel in trace.kernels):  # a profile without operators does not distinguish phases
        return
    for phase in Phase:
        measured: defaultdict[str, int] = defaultdict(int)
        for kernel in trace.kernels:
            if kernel.phase is phase:
                measured[_sort(kernel.op)] += kernel.duration_ns
        operations = defaultdict(list)
        for op, operation in modelled[phase]:
            operations[_sort(op)].append(operation)
        total = [operation for _, operation in modelled[phase]]
        yield _sample(recording, phase.value, total, sum(measured.values()))
        for sort in sorted(measured.keys() & operations.keys()):
            yield _sample(
                recording, f"{phase.value}: {sort}", operations[sort], measured[sort], part_of=sum(measured.values())
            )


def _sort(op: str) -> str:
    return next((sort for word, sort in _SORTS if word in op.lower()), "linear and others")


def _of_operators(recording: CalibrationRecording, trace: Trace, reader: Reader) -> Iterator[Sample | Skipped]:
    """Samples of a recording whose operators are translated one by one: all translated operators, and each type."""
    blocks = {block.id: block for block in trace.blocks}
    timing = min((kernel.duration_ns for kernel in trace.kernels), default=0)
    measured: defaultdict[str, int] = defaultdict(int)
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for kernel in trace.kernels:
        result = reader(kernel, blocks, recording.batch)
        if result is not None:
            # The shortest operator of a log is almost only timing overhead, which every operator includes.
            measured[kernel.op] += kernel.duration_ns - timing
            operations[kernel.op] += result
    description = [operation for each in operations.values() for operation in each]
    total = sum(kernel.duration_ns - timing for kernel in trace.kernels)
    known = sum(measured.values())
    share = known / total if total else 0.0
    covered = share >= _ENOUGH
    measures = "iteration" if covered else f"known operators, {share:.0%} of the time"
    if not covered:
        why = f"only operators with {share:.0%} of the time can be translated; these are compared one by one"
        yield Skipped(f"{recording.name}: iteration", why)
    yield _sample(recording, measures, description, known, part_of=None if covered else known)
    for op in sorted(measured):
        yield _sample(recording, op, operations[op], measured[op], part_of=known)


def _sample(
    recording: CalibrationRecording, measures: str, operations: list[Operation], ns: int, *, part_of: int | None = None
) -> Sample:
    """Builds a sample of a phase or iteration; or of one type of kernels, which is part of `part_of` ns."""
    return Sample(
        recording.gpu,
        load_node(recording.gpu).gpu,
        recording.network,
        recording.batch,
        measures,
        counted(operations),
        ns,
        recording.use,
        f"recording {recording.path}",
        full=part_of is None,
        weight=1.0 if part_of is None else ns / part_of,
        tf32=recording.tf32,
    )


class _Free:
    """Zero prices, for a lowering that is only used for its phases."""

    def duration_ns(self, operation: Operation) -> int:
        return 0

    def algorithms(self, operation: Operation) -> tuple[()]:
        return ()


@cache
def operations_by_phase(
    name: str, batch: int, variant: tuple[tuple[str, bool | int | float | str], ...] = (), *, adam: bool = False
) -> Mapping[Phase, tuple[tuple[str, Operation], ...]]:
    """The operations of one iteration of a zoo network with their operators' names, by phase.

    >>> len(operations_by_phase("vgg16", 8)[Phase.FORWARD])
    40
    """
    network = build(name, None, **dict(variant))
    optimizer = Optimizer.ADAM if adam else Optimizer.SGD
    info = TraceInfo(name, batch, NOT_RECORDED, "float32", Origin.MODELLED, "the model zoo")
    trace = lower(network, batch=batch, prices=_Free(), info=info, optimizer=optimizer)
    result: dict[Phase, list[tuple[str, Operation]]] = {phase: [] for phase in Phase}
    for kernel, (_, op, operation) in zip(trace.kernels, operations_of(network, batch, optimizer), strict=True):
        result[kernel.phase].append((op, operation))
    return {phase: tuple(kernels) for phase, kernels in result.items()}
