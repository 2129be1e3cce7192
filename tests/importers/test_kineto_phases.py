"""Phases of kernels in PyTorch profiles with incomplete information."""

from __future__ import annotations

from simgpu.importers import ImportOptions, import_trace
from simgpu.trace.model import Phase
from tests.importers.kineto_files import small_run


def test_phases_of_a_profile_without_sequence_numbers(tmp_path):
    profile, _ = small_run(with_memory=False)
    for event in profile.events:
        event.get("args", {}).pop("Fwd thread id", None)
        event.get("args", {}).pop("Sequence number", None)
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    phases = [kernel.phase for kernel in trace.kernels]
    assert phases == [Phase.FORWARD] * 3 + [Phase.BACKWARD, Phase.OPTIMIZER]
    assert [kernel.layer for kernel in trace.kernels] == ["Linear_0"] * 3 + [None, None]


def test_kernels_without_operators_have_no_phase_and_a_note(tmp_path):
    """A profile of the GPU alone; an annotation of the optimizer still counts, one of the user's does not."""
    profile, _ = small_run(with_memory=False)
    profile.events = [event for event in profile.events if event["cat"] != "cpu_op"]
    profile.mark("my own part", 10, 10)
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), ImportOptions(batch=8))
    assert [kernel.phase for kernel in trace.kernels] == [Phase.FORWARD] * 4 + [Phase.OPTIMIZER]
    said = "Kernels whose phase is not recorded: 4; they count as forward; record with ProfilerActivity.CPU to record"
    assert said in trace.info.notes


def test_a_kernel_without_an_operator_among_others_is_counted(tmp_path):
    profile, _ = small_run(with_memory=False)
    profile.kernel(95, 300, 3, name="mine")
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert "Kernels whose phase is not recorded: 1; they count as forward." in trace.info.notes
    plain, _ = import_trace(small_run()[0].write(tmp_path / "plain.json"))
    assert "phase is not recorded" not in plain.info.notes
