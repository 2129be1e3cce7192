"""Recorded memory peaks compared with modelled ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.calibration.recordings import CalibrationRecording
from simgpu.workloads.calibration.samples import SampleUse, Skipped
from simgpu.workloads.calibration.validation import MemoryRow, TimeModelValidation, compare_memory
from simgpu.workloads.modelled import build_trace

RECORDING = CalibrationRecording(
    path="a", gpu="v100", network="resnet20", batch=8, use=SampleUse.HELD_OUT, operators="dtr", source="none",
    input="imagenet", optimizer="adam",
)  # fmt: skip


@pytest.fixture(scope="module")
def modelled() -> Trace:
    return build_trace("resnet20", batch=8, gpu=load_node("v100").gpu, input="imagenet", optimizer="adam")


def test_a_recording_equal_to_its_model_has_no_memory_error(modelled: Trace) -> None:
    peak = trace_stats(modelled).peak_recorded
    assert peak is not None
    result = compare_memory(RECORDING, modelled)
    assert result == MemoryRow(RECORDING, peak.bytes, peak.bytes, "lifetimes")
    assert result.error == 0


def test_the_memory_counter_of_the_framework_has_priority_over_lifetimes(modelled: Trace) -> None:
    counted = replace(modelled, info=replace(modelled.info, framework_peak_bytes=10**9))
    result = compare_memory(RECORDING, counted)
    assert isinstance(result, MemoryRow)
    assert (result.recorded, result.counted) == (10**9, "framework")
    assert result.error == result.modelled / 10**9 - 1


def test_a_recording_that_cannot_be_compared_has_a_reason(modelled: Trace) -> None:
    untold = replace(modelled, blocks=tuple(replace(block, release=None) for block in modelled.blocks))
    why = "neither lifetimes nor a peak are recorded"
    assert compare_memory(RECORDING, untold) == Skipped("v100 resnet20 b8: memory", why)
    other = RECORDING.model_copy(update={"network": "mine"})
    assert compare_memory(other, modelled) == Skipped("v100 mine b8: memory", "the zoo has no network of that name")


@pytest.mark.slow
def test_recorded_peaks_are_compared_by_their_published_counter(compared: TimeModelValidation) -> None:
    """The description of the data states the peaks of the logs; the profiler counted the other peak."""
    result = {row.recording.network: row for row in compared.memory}
    recorded = {network: row.recorded for network, row in result.items()}
    assert recorded == {
        "vgg13": 39343881216,
        "densenet121": 11020749360,
        "resnet32": 10061179152,
        "unet": 8415764640,
    }
    # Of these two the form is the zoo's own; the other two are known to be other networks, and say so.
    assert abs(result["vgg13"].error) < 0.10
    assert abs(result["densenet121"].error) < 0.10
    assert "ReLU" in result["resnet32"].recording.differs
    assert "another U-Net" in result["unet"].recording.differs
