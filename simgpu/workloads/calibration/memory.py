"""Peaks of device memory: recorded ones beside those of the zoo's modelled iteration of the same network and batch.

Nothing is fitted to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.calibration.recordings import Recording
from simgpu.workloads.calibration.samples import Skipped
from simgpu.workloads.catalogue import NETWORKS
from simgpu.workloads.modelled import build_trace


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Two peaks, bytes. counted: where the recorded one is from, the framework's own count or recorded lifetimes."""

    recording: Recording
    recorded: int
    modelled: int
    counted: str

    @property
    def error(self) -> float:
        """Modelled over recorded, less one: positive where the model needs too much."""
        return self.modelled / self.recorded - 1


def compare_memory(recording: Recording, trace: Trace) -> MemoryRow | Skipped:
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


def _skipped(recording: Recording, why: str) -> Skipped:
    return Skipped(f"{recording.name}: memory", why)
