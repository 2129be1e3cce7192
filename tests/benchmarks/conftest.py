"""The figures that count, as a table at the end: ratios against bare SimPy in one run, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

_ROWS: list[tuple[str, float, str, bool | None]] = []

#: What was measured, the figure, what is asked of it, and whether the figure meets that (None where nothing is asked).
Report = Callable[[str, float, str, bool | None], None]


@pytest.fixture
def report() -> Iterator[Report]:
    """Puts one line into the closing table."""
    yield lambda what, figure, requested, met: _ROWS.append((what, figure, requested, met))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _ROWS:
        return
    terminalreporter.section("figures that count")
    for what, figure, requested, met in _ROWS:
        verdict = {True: "", False: "   MISSED", None: ""}[met]
        terminalreporter.write_line(f"{what:<62} {figure:>8.3f}   {requested}{verdict}")
