"""Parametrized tests over both sets: some values run in the default set, the others with ``-m slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *default: Any) -> list[Any]:
    """All values for `pytest.mark.parametrize`, marked as slow unless they are among the `default` ones."""
    every = list(values)
    unknown = [each for each in default if each not in every]
    assert not unknown, f"no such values: {unknown}"
    return [each if each in default else pytest.param(each, marks=pytest.mark.slow) for each in every]


def slow_rows_except(rows: Iterable[tuple[Any, ...]], *default: tuple[Any, ...]) -> list[Any]:
    """As `slow_except`, for several parameters at once."""
    every = list(rows)
    marks = [() if each in default else (pytest.mark.slow,) for each in every]
    assert all(each in every for each in default), f"no such values among {every}"
    return [pytest.param(*each, marks=chosen) for each, chosen in zip(every, marks, strict=True)]
