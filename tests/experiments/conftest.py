"""Fixtures for tests of sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from simgpu.experiments.sweep import fingerprint
from simgpu.io.codestate import own_code


@pytest.fixture(autouse=True, scope="package")
def _code_is_read_once() -> Iterator[None]:
    """Each sweep asks twice for the digest of all of simgpu's files, and these do not change here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "own_code", cache(own_code))
        yield
