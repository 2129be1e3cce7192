"""The recordings that ship, and what the README says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.validation.comparison import compare_recording
from simgpu.validation.folder import load_recording, shipped_recordings
from simgpu.validation.measured import Method
from tests.cli.cli_helpers import simgpu

pytestmark = pytest.mark.slow

#: Recordings from before there was a method `plan`.
OLDER = ("cpu-small",)
README = Path(__file__).parents[2] / "simgpu" / "validation" / "README.md"


def test_a_recording_ships() -> None:
    assert shipped_recordings()


@pytest.mark.parametrize("name", shipped_recordings())
def test_shipped_recordings_have_every_method_20_steps_and_their_machine(name: str) -> None:
    recording = load_recording(name)
    assert recording.machine.device and recording.machine.date and recording.machine.versions["pytorch"]
    assert len({case.model for case in recording.cases}) == 3 and len(recording.cases) == 6
    for case in recording.cases:
        assert [*case.runs] == [method for method in Method if method is not Method.PLAN or name not in OLDER]
        assert all(len(run.step_ns) >= 20 and run.spans for run in case.runs.values())
        assert case.trace.saved


def test_cpu_counterparts_have_the_measured_bytes_and_order() -> None:
    """What a GPU is found to do otherwise ships as it was found."""
    for case in compare_recording("cpu-small").cases:
        for run in case.runs:
            assert run.simulated is not None
            assert run.simulated[2:] == run.measured[2:], (case.name, run.method)
            assert run.timelines is not None and run.timelines.is_same_order, (case.name, run.method)


@pytest.mark.parametrize("name", shipped_recordings())
def test_the_readme_shows_what_the_report_prints(name: str) -> None:
    lines = simgpu("validate", "report", name, "-q").stdout.splitlines()
    table = lines.index(next(line for line in lines if line.split()[:3] == ["step", "time", "measured"]))
    summary = lines.index(next(line for line in lines if line.startswith("step time       mean")))
    readme = README.read_text(encoding="utf-8")
    for first in (table, summary):
        assert "\n".join(lines[first : lines.index("", first)]) in readme
