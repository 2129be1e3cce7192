"""Fixtures: the recordings next to the repository, compared once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.workloads.calibration.validation import TimeModelValidation, validate


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder with the recordings that `recordings.yaml` lists."""
    folder = Path(__file__).parents[4] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the recordings are not next to the repository (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def compared(recordings: Path) -> TimeModelValidation:
    """The time model compared with the published figures and the recordings."""
    return validate(recordings)
