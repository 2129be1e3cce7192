"""Modelled times and memory peaks compared with measured ones; nothing is fitted to the peaks."""

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
    """One measurement and what the model says."""

    sample: Sample
    modelled_ns: int

    @property
    def error(self) -> float:
        """Modelled over measured, less one: positive where the model is too slow."""
        return self.modelled_ns / self.sample.measured_ns - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of some rows: how many, the mean of their sizes, their mean with sign, and the row with the largest."""

    count: int
    mean: float
    bias: float
    worst: ValidationRow


@dataclass(frozen=True, slots=True)
class TimeModelValidation:
    """All measurements that could be compared, by GPU and network, and those that could not.

    memory: peaks, in the order of the list of recordings.
    """

    rows: tuple[ValidationRow, ...]
    skipped: tuple[Skipped, ...]
    memory: tuple[MemoryRow, ...] = ()

    def summary(self, use: SampleUse, *, gpu: str | None = None, network: str | None = None) -> ErrorSummary | None:
        """Of the phases and iterations (sorts of kernels do not count) of one use; on one GPU, of one network or all.

        None where there are none.
        """
        return summary_of(
            row
            for row in self.rows
            if row.sample.use is use and gpu in (None, row.sample.gpu) and network in (None, row.sample.network)
        )

    def gpus(self) -> tuple[str, ...]:
        """The GPUs of the rows, in their order."""
        return tuple(dict.fromkeys(row.sample.gpu for row in self.rows))

    def networks(self) -> tuple[str, ...]:
        """The networks of the rows, by name."""
        return tuple(sorted({row.sample.network for row in self.rows}))

    def unmeasured(self) -> tuple[str, ...]:
        """The zoo's networks of which no phase and no iteration was compared, by name."""
        return tuple(sorted(NETWORKS.keys() - {row.sample.network for row in self.rows if row.sample.full}))


def summary_of(rows: Iterable[ValidationRow]) -> ErrorSummary | None:
    """How far off these rows are, those of sorts of kernels left out."""
    full = [row for row in rows if row.sample.full]
    if not full:
        return None
    mean = sum(abs(row.error) for row in full) / len(full)
    bias = sum(row.error for row in full) / len(full)
    return ErrorSummary(len(full), mean, bias, max(full, key=lambda row: abs(row.error)))


def validate(recordings: Path | None = None) -> TimeModelValidation:
    """Compares the time model to the published figures and, where a folder is given, to the recordings in it.

    Recordings that should be in the folder and are not are told in `TimeModelValidation.skipped`. Raises `InputError`
    where the folder is not there or a recording in it is damaged.
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
        for left in listed.not_compared:
            yield Skipped(left.path, left.why)


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Two peaks, bytes. counted: where the recorded one is from, the framework's own count or recorded lifetimes."""

    recording: CalibrationRecording
    recorded: int
    modelled: int
    counted: str

    @property
    def error(self) -> float:
        """Modelled over recorded, less one: positive where the model needs too much."""
        return self.modelled / self.recorded - 1


def compare_memory(recording: CalibrationRecording, trace: Trace) -> MemoryRow | Skipped:
    """The peaks of one recording, `trace`, and of its network as the zoo models it."""
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
