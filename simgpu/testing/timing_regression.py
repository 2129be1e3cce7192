"""The fixture `timing_regression`: compares results with those stored next to the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_regressions.common import perform_regression_check

from simgpu.errors import InputError
from simgpu.experiments.regression.difference import TimingDifference, compare_timings
from simgpu.experiments.regression.store import TIMINGS, read_timings, write_timings
from simgpu.experiments.regression.text import difference_text
from simgpu.experiments.regression.timings import Timings, timings_of
from simgpu.experiments.regression.tolerances import parse_tolerances, read_tolerances

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.simulation.result import Result


class TimingRegression:
    """The value of the fixture."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._home: Path = request.getfixturevalue("original_datadir")
        self._names: set[str | None] = set()

    def check(
        self,
        ran: Result | Comparison | Scenario,
        *,
        tolerances: Mapping[str, str | float] | None = None,
        basename: str | None = None,
    ) -> None:
        """Fails the test unless timings are as stored, or none are stored yet; see `simgpu.testing`.

        ran: a result or a comparison, or a scenario, all policies of which are run. tolerances: by metric, such as
        ``{"iteration_ns": "1%"}``; they go before those of ``tolerances.yaml`` in the folder of stored timings.
        basename: what the stored timings are called, by default as the test; of several checks in one test, each needs
        a name of its own.

        Raises `AssertionError` with all that differs, and `InputError` for bad tolerances, a name that an earlier check
        of the test has, or what cannot be run.
        """
        __tracebackhide__ = True
        self._take(basename)
        allowed = (*read_tolerances(self._home), *parse_tolerances(tolerances or {}))
        now = timings_of(ran)
        obtained_folder = self._request.getfixturevalue("tmp_path") / "now"

        def differing(obtained: Path, expected: Path) -> None:
            __tracebackhide__ = True
            try:
                difference = compare_timings(read_timings(expected.parent), now, allowed)
            except InputError as error:
                raise AssertionError(str(error)) from None
            if difference.counts:
                raise AssertionError(_message(difference, obtained.parent, expected.parent))

        def store(path: Path) -> None:
            if not path.is_relative_to(obtained_folder) and not _same(path.parent, now):
                write_timings(now, path.parent)

        def store_obtained(path: Path) -> list[str]:
            if path.is_relative_to(obtained_folder):
                write_timings(now, path.parent)
            return []

        # Stored timings are a folder, read in place; a lazy data directory would copy only the one file.
        datadir: Any = self._home
        perform_regression_check(
            datadir=datadir,
            original_datadir=self._home,
            request=self._request,
            check_fn=differing,
            dump_fn=store,
            dump_aux_fn=store_obtained,
            extension=f"/{TIMINGS}",
            basename=basename,
            obtained_filename=obtained_folder / (basename or "timings") / TIMINGS,
        )

    def _take(self, basename: str | None) -> None:
        """A second check of the same name would be compared with, or replace, what the first one stored."""
        if basename in self._names:
            called = "by the test's name" if basename is None else repr(basename)
            what = f"two checks of one test are called {called}"
            raise InputError.single("", "basename", what, "give each a name of its own")
        self._names.add(basename)


def _same(folder: Path, now: Timings) -> bool:
    """Whether a folder holds equal timings, of any version of simgpu."""
    try:
        return compare_timings(read_timings(folder), now).empty
    except InputError:
        return False


def _message(difference: TimingDifference, now: Path, stored: Path) -> str:
    places = f"stored: {stored}\nnow: {now}"
    return (
        f"timings of {difference.name} differ\n{difference_text(difference)}\n{places}\n--force-regen stores them anew"
    )
