"""The pytest plugin that comes with simgpu."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from simgpu.errors import MissingExtraError

if TYPE_CHECKING:
    from simgpu.testing.timing_regression import TimingRegression


@pytest.fixture
def timing_regression(request: pytest.FixtureRequest) -> TimingRegression:
    """Fails where simulated timings are not those on record; see `simgpu.testing`."""
    if find_spec("pytest_regressions") is None:
        missing = MissingExtraError("the fixture timing_regression", "pytest-regressions", "testing")
        pytest.fail(str(missing), pytrace=False)
    if request.config.getoption("regen_all", None) is None:
        pytest.fail("the fixture timing_regression needs the plugin regressions, which is switched off", pytrace=False)

    from simgpu.testing.timing_regression import TimingRegression

    return TimingRegression(request)
