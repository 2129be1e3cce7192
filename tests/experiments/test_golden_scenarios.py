"""Every shipped scenario gives the results on record: times, bytes, and counts of instructions and spans.

After a wanted change, write them anew with ``pytest tests/experiments/test_golden_scenarios.py --regen-all`` and say
in the commit why they changed.
"""

from __future__ import annotations

from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from simgpu.errors import OutOfMemoryError
from simgpu.experiments.compare import Run, compare
from simgpu.scenario.catalogue import shipped_scenarios
from simgpu.scenario.load import load_scenario

PINNED = (
    "iteration_ns",
    "compute_ns",
    "stalled_copy_out_ns",
    "stalled_copy_in_ns",
    "stalled_memory_ns",
    "bytes_out",
    "bytes_in",
    "device_peak_bytes",
    "device_peak_used_bytes",
    "host_peak_bytes",
)


@pytest.mark.parametrize("name", shipped_scenarios())
def test_results_are_those_on_record(name: str, data_regression: DataRegressionFixture) -> None:
    comparison = compare(load_scenario(name))
    data_regression.check({run.label: _on_record(run) for run in comparison})


def _on_record(run: Run) -> dict[str, Any]:
    if isinstance(run.outcome, OutOfMemoryError):
        error = run.outcome
        facts = ("waiting", "space", "requested", "free", "largest_hole", "at_ns")
        return {"out_of_memory": {fact: getattr(error, fact) for fact in facts}}
    result = run.outcome
    metrics = {row.key: row.value for row in result.metrics.rows()}
    return {
        "steady": result.steady,
        "retired_instructions": result.retired,
        "spans": len(result.timeline),
        **{key: metrics[key] for key in PINNED},
    }
