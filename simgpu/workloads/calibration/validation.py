"""Compares modelled times and memory peaks with measured ones; the model is not fitted to the peaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.calibration.published import load_published
from simgpu.workloads.calibration.published_samples import published_samples
from simgpu.workloads.calibration.recorded_samples import recorded_traces, samples_of
from simgpu.workloads.calibration.recordings import CalibrationRecording, load_recordings, require_folder
from simgpu.workloads.calibration.samples import Sample, SampleUse, Skipped
from simgpu.workloads.catalogue import NETWORKS
from simgpu.workloads.modelled import build_trace


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One measured and modelled duration."""

    sample: Sample
    modelled_ns: int

    @property
    def error(self) -> float:
        """Modelled over measured time, minus one: positive if the modelled time is too long."""
        return self.modelled_ns / self.sample.measured_ns - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of several rows.

    count: number of rows. mean: mean absolute error. bias: mean signed error. worst: row with the largest error.
    """

    count: int
    mean: float
    bias: float
    worst: ValidationRow


@dataclass(frozen=True, slots=True)
class TimeModelValidation:
    """The comparison of all measurements.

    rows: compared measurements, ordered by GPU and network.
    skipped: measurements that could not be compared.
    memory: memory peaks, in the order of the list of recordings.
    """

    rows: tuple[ValidationRow, ...]
    skipped: tuple[Skipped, ...]
    memory: tuple[MemoryRow, ...] = ()

    def summary(self, use: SampleUse, *, gpu: str | None = None, network: str | None = None) -> ErrorSummary | None:
        """Errors of the phases and iterations with one use, without those of single types of kernels; None if none.

        gpu, network: restrict the summary to one GPU or network.
        """
        return summary_of(
            row
            for row in self.rows
            if row.sample.use is use and gpu in (None, row.sample.gpu) and network in (None, row.sample.network)
        )

    def gpus(self) -> tuple[str, ...]:
        """The GPUs of the rows, in row order."""
        return tuple(dict.fromkeys(row.sample.gpu for row in self.rows))

    def networks(self) -> tuple[str, ...]:
        """The networks of the rows, sorted by name."""
        return tuple(sorted({row.sample.network for row in self.rows}))

    def unmeasured(self) -> tuple[str, ...]:
        """The zoo's networks without a compared phase or iteration, sorted by name."""
        return tuple(sorted(NETWORKS.keys() - {row.sample.network for row in self.rows if row.sample.full}))


def summary_of(rows: Iterable[ValidationRow]) -> ErrorSummary | None:
    """Errors of rows, without those of single types of kernels; None if no rows are left."""
    full = [row for row in rows if row.sample.full]
    if not full:
        return None
    mean = sum(abs(row.error) for row in full) / len(full)
    bias = sum(row.error for row in full) / len(full)
    return ErrorSummary(len(full), mean, bias, max(full, key=lambda row: abs(row.error)))


def validate(recordings: Path | None = None) -> TimeModelValidation:
    """Compares the time model with the published figures and, if a folder is given, with the recordings in it.

    `TimeModelValidation.skipped` lists recordings that are missing from the folder. Raises `InputError` if the folder
    does not exist or a recording is damaged.
    """
    if recordings is not None:
        require_folder(recordings)
    result = list(_compared(recordings))
    rows = [ValidationRow(sample, sample.modelled_ns()) for sample in result if isinstance(sample, Sample)]
    rows.sort(key=lambda row: (row.sample.gpu, row.sample.network, row.sample.batch))
    memory = tuple(each for each in result if isinstance(each, MemoryRow))
    return TimeModelValidation(tuple(rows), tuple(sample for sample in result if isinstance(sample, Skipped)), memory)


def _compared(recordings: Path | None) -> Iterator[Sample | MemoryRow | Skipped]:
    yield from published_samples(load_published())
    if recordings is not None:
        listed = load_recordings()
        for each in recorded_traces(recordings, listed.recordings):
            if isinstance(each, Skipped):
                yield each
            else:
                yield from samples_of(*each)
                yield compare_memory(*each)
        for recording in listed.not_compared:
            yield Skipped(recording.path, recording.why)


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Recorded and modelled peak memory, bytes.

    counted: origin of the recorded peak: "framework" for the framework's own count, "lifetimes" for recorded lifetimes.
    """

    recording: CalibrationRecording
    recorded: int
    modelled: int
    counted: str

    @property
    def error(self) -> float:
        """Modelled over recorded peak, minus one: positive if the modelled peak is too large."""
        return self.modelled / self.recorded - 1


def compare_memory(recording: CalibrationRecording, trace: Trace) -> MemoryRow | Skipped:
    """Compares the peak memory of a recording, `trace`, with that of the modelled network from the zoo."""
    stats = trace_stats(trace)
    if trace.info.framework_peak_bytes is not None:
        recorded, counted = trace.info.framework_peak_bytes, "framework"
    elif stats.peak_recorded is not None:
        recorded, counted = stats.peak_recorded.bytes, "lifetimes"
    else:
        return _skipped(recording, "neither lifetimes nor a peak are recorded")
    if recording.network not in NETWORKS:
        return _skipped(recording, "the zoo has no network of that name")
    modelled = build_trace(
        recording.network,
        batch=recording.batch,
        gpu=load_node(recording.gpu).gpu,
        input=recording.input,
        optimizer=recording.optimizer,
    )
    peak = trace_stats(modelled).peak_recorded
    assert peak is not None, "the zoo gives every block its lifetime"
    return MemoryRow(recording, recorded, peak.bytes, counted)


def _skipped(recording: CalibrationRecording, why: str) -> Skipped:
    return Skipped(f"{recording.name}: memory", why)
