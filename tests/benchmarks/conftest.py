"""The figures that count, printed as a table at the end: ratios against bare SimPy in the same run, and their floors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

_ROWS: list[tuple[str, float, str]] = []

Report = Callable[[str, float, str], None]


@pytest.fixture
def report() -> Iterator[Report]:
    """Puts one line into the closing table: what was measured, the figure, and what is asked of it."""
    yield lambda what, figure, asked: _ROWS.append((what, figure, asked))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _ROWS:
        return
    terminalreporter.section("figures that count")
    for what, figure, asked in _ROWS:
        terminalreporter.write_line(f"{what:<58} {figure:>8.3f}   {asked}")
