"""Every shipped scenario matches its golden timings: every metric, count and timeline event.

After an intended change, regenerate them with ``pytest tests/experiments/test_golden_scenarios.py --regen-all`` and say
in the commit why they changed.
"""

from __future__ import annotations

import pytest

from simgpu.experiments.scenarios.catalogue import shipped_scenarios
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.testing.timing_regression import TimingRegression


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_scenarios())
def test_timings_match_the_golden_ones(name: str, timing_regression: TimingRegression) -> None:
    timing_regression.check(load_scenario(name), basename=name)
