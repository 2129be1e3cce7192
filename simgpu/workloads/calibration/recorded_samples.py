"""Samples from recordings of real iterations, read by the importers from a folder that the user names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from simgpu.hardware.nodes import load_node
from simgpu.importers import import_trace
from simgpu.trace.model import Block, Kernel, Phase, Trace
from simgpu.workloads.calibration.dtr_operations import dtr_operations
from simgpu.workloads.calibration.g10_operations import g10_operations
from simgpu.workloads.calibration.recordings import Recording
from simgpu.workloads.calibration.samples import Sample, Skipped, counted
from simgpu.workloads.calibration.zoo_operations import operations_by_phase
from simgpu.workloads.timemodel.operation import Operation

#: From a kernel and its blocks to what it computes; None where that cannot be told.
Reader = Callable[[Kernel, dict[str, Block], int], tuple[Operation, ...] | None]
_READERS: dict[str, Reader] = {"dtr": dtr_operations, "g10": g10_operations}
#: Part of a recording's time that its translated operators must take to stand for the iteration.
_ENOUGH = 0.9
#: Sorts of operators in a recording of PyTorch and in the zoo, by a word in their names.
_SORTS = (("conv", "convolutions"), ("relu", "relu"), ("threshold", "relu"), ("pool", "pooling"))


def recorded_samples(folder: Path, recordings: Iterable[Recording]) -> Iterator[Sample | Skipped]:
    """Samples from these recordings in a folder; see `recorded_traces`."""
    for found in recorded_traces(folder, recordings):
        yield from [found] if isinstance(found, Skipped) else samples_of(*found)


def recorded_traces(folder: Path, recordings: Iterable[Recording]) -> Iterator[tuple[Recording, Trace] | Skipped]:
    """These recordings in a folder, one after another; one that is not there is skipped, and told by its path.

    A recording's importer raises `InputError` for a damaged file.
    """
    for recording in recordings:
        path = folder / recording.path
        if path.exists():
            yield recording, import_trace(path)[0]
        else:
            yield Skipped(recording.name, f"{path} is not there")


def samples_of(recording: Recording, trace: Trace) -> Iterator[Sample | Skipped]:
    """What a recording tells of durations."""
    reader = _READERS.get(recording.operators)
    yield from _of_zoo(recording, trace) if reader is None else _of_operators(recording, trace, reader)


def _of_zoo(recording: Recording, trace: Trace) -> Iterator[Sample]:
    """A recording of a network that the zoo has: phases, and sorts of kernels within them."""
    modelled = operations_by_phase(recording.network, recording.batch, adam=recording.optimizer == "adam")
    everything = [operation for phase in Phase for _, operation in modelled[phase]]
    yield _sample(recording, "iteration", everything, sum(kernel.duration_ns for kernel in trace.kernels))
    if not all(kernel.writes for kernel in trace.kernels):  # a profile without operators: phases are not told apart
        return
    for phase in Phase:
        measured: defaultdict[str, int] = defaultdict(int)
        for kernel in trace.kernels:
            if kernel.phase is phase:
                measured[_sort(kernel.op)] += kernel.duration_ns
        operations = defaultdict(list)
        for op, operation in modelled[phase]:
            operations[_sort(op)].append(operation)
        whole = [operation for _, operation in modelled[phase]]
        yield _sample(recording, phase.value, whole, sum(measured.values()))
        for sort in sorted(measured.keys() & operations.keys()):
            yield _sample(
                recording, f"{phase.value}: {sort}", operations[sort], measured[sort], part_of=sum(measured.values())
            )


def _sort(op: str) -> str:
    return next((sort for word, sort in _SORTS if word in op.lower()), "linear and others")


def _of_operators(recording: Recording, trace: Trace, reader: Reader) -> Iterator[Sample | Skipped]:
    """A recording whose operators are translated one by one: those that can be, together and by sort."""
    blocks = {block.id: block for block in trace.blocks}
    timing = min((kernel.duration_ns for kernel in trace.kernels), default=0)
    measured: defaultdict[str, int] = defaultdict(int)
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for kernel in trace.kernels:
        found = reader(kernel, blocks, recording.batch)
        if found is not None:
            # The shortest operator of a log is nearly nothing but what timing costs: it is in all of them.
            measured[kernel.op] += kernel.duration_ns - timing
            operations[kernel.op] += found
    told = [operation for each in operations.values() for operation in each]
    total = sum(kernel.duration_ns - timing for kernel in trace.kernels)
    known = sum(measured.values())
    share = known / total if total else 0.0
    covered = share >= _ENOUGH
    measures = "iteration" if covered else f"operators told, {share:.0%} of the time"
    if not covered:
        why = f"what its operators compute is told for {share:.0%} of its time only; those are compared one by one"
        yield Skipped(f"{recording.name}: iteration", why)
    yield _sample(recording, measures, told, known, part_of=None if covered else known)
    for op in sorted(measured):
        yield _sample(recording, op, operations[op], measured[op], part_of=known)


def _sample(
    recording: Recording, measures: str, operations: list[Operation], ns: int, *, part_of: int | None = None
) -> Sample:
    """A whole phase or iteration, or a sort of kernels that is a part of so many nanoseconds."""
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
        whole=part_of is None,
        weight=1.0 if part_of is None else ns / part_of,
        tf32=recording.tf32,
    )
