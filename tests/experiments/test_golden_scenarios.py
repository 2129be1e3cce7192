"""Every shipped scenario matches its golden timings on both engines: every metric, count and timeline event.

After an intended change, regenerate them with ``pytest tests/experiments/test_golden_scenarios.py --regen-all`` and say
in the commit why they changed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.experiments.scenarios.catalogue import shipped_scenarios
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.machine.compiled_engine import Engine
from simgpu.testing.timing_regression import TimingRegression


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("name", shipped_scenarios())
def test_timings_match_the_golden_ones(name: str, engine: Engine, timing_regression: TimingRegression) -> None:
    timing_regression.check(replace(load_scenario(name), engine=engine), basename=name)
