"""Every shipped scenario gives the timings on record: every metric, every count, and every event of every timeline.

After a wanted change, write them anew with ``pytest tests/experiments/test_golden_scenarios.py --regen-all`` and say
in the commit why they changed.
"""

from __future__ import annotations

import pytest

from simgpu.experiments.scenarios.catalogue import shipped_scenarios
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.testing.timing_regression import TimingRegression


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_scenarios())
def test_timings_are_those_on_record(name: str, timing_regression: TimingRegression) -> None:
    timing_regression.check(load_scenario(name), basename=name)
