"""The fixture `timing_regression`: results against those that are stored beside the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_regressions.common import perform_regression_check

from simgpu.errors import InputError
from simgpu.experiments.regression.difference import TimingDifference, compare_timings
from simgpu.experiments.regression.store import TIMINGS, read_timings, write_timings
from simgpu.experiments.regression.timings import Timings, timings_of
from simgpu.experiments.regression.tolerances import parse_tolerances, read_tolerances
from simgpu.experiments.regression.words import difference_text

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.simulation.result import Result


class TimingRegression:
    """What the fixture gives to a test."""

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
        stays = self._request.getfixturevalue("tmp_path") / "now"

        def differing(obtained: Path, expected: Path) -> None:
            __tracebackhide__ = True
            try:
                difference = compare_timings(read_timings(expected.parent), now, allowed)
            except InputError as error:
                raise AssertionError(str(error)) from None
            if difference.counts:
                raise AssertionError(_told(difference, obtained.parent, expected.parent))

        def store(path: Path) -> None:
            if not path.is_relative_to(stays) and not _same(path.parent, now):
                write_timings(now, path.parent)

        def keep_beside(path: Path) -> list[str]:
            if path.is_relative_to(stays):
                write_timings(now, path.parent)
            return []

        # What is stored is a folder and read in place; a lazy data directory would copy the one file alone.
        datadir: Any = self._home
        perform_regression_check(
            datadir=datadir,
            original_datadir=self._home,
            request=self._request,
            check_fn=differing,
            dump_fn=store,
            dump_aux_fn=keep_beside,
            extension=f"/{TIMINGS}",
            basename=basename,
            obtained_filename=stays / (basename or "timings") / TIMINGS,
        )

    def _take(self, basename: str | None) -> None:
        """A second check of the same name would be held to what the first one stored, or store over it."""
        if basename in self._names:
            called = "by the test's name" if basename is None else repr(basename)
            what = f"two checks of one test are called {called}"
            raise InputError.single("", "basename", what, "give each a name of its own")
        self._names.add(basename)


def _same(folder: Path, now: Timings) -> bool:
    """Whether a folder holds just that, whichever simgpu wrote it."""
    try:
        return compare_timings(read_timings(folder), now).empty
    except InputError:
        return False


def _told(difference: TimingDifference, now: Path, stored: Path) -> str:
    places = f"stored: {stored}\nnow: {now}"
    return (
        f"timings of {difference.name} differ\n{difference_text(difference)}\n{places}\n--force-regen stores them anew"
    )
