"""What every test relies on, wherever it is run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("noisy", deadline=None)
settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Asks for what takes minutes."""
    told = "run all claims of papers, not only the quick ones; finished work is kept in this folder"
    parser.addoption("--every-claim", metavar="DIR", help=told)


@pytest.fixture(autouse=True, scope="session")
def _terminal() -> Iterator[None]:
    """80 columns without colour, whatever the terminal is like in which the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "dumb")
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
            patch.delenv(name, raising=False)
        yield
