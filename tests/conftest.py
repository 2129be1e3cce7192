"""What every test relies on, wherever it is run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("noisy", deadline=None, max_examples=40)
settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Asks for what takes minutes."""
    told = "run all claims of papers, not only the quick ones; finished work is kept in this folder"
    parser.addoption("--every-claim", metavar="DIR", help=told)
    parser.addoption(
        "--examples", type=int, default=1, metavar="N", help="random tests try N times as many examples (default: 1)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test is in one set at most, and random tests try as many examples as requested."""
    both = [item.nodeid for item in items if {"slow", "exhaustive"} <= {mark.name for mark in item.iter_markers()}]
    if both:
        raise pytest.UsageError(f"marked both slow and exhaustive: {', '.join(both)}; remove one of the marks")
    factor = config.getoption("--examples")
    if factor != 1:
        for test in {item.function for item in items if isinstance(item, pytest.Function)}:
            # Hypothesis has no other place for the settings of a test that is already decorated.
            own = getattr(test, "_hypothesis_internal_use_settings", None)
            if own is not None:
                test._hypothesis_internal_use_settings = settings(own, max_examples=factor * own.max_examples)


@pytest.fixture(autouse=True, scope="session")
def _terminal() -> Iterator[None]:
    """80 columns without colour, whatever the terminal is like in which the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "dumb")
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
            patch.delenv(name, raising=False)
        yield
