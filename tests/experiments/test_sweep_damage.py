"""A valid SQLite database with content not written by a sweep gives one message, never a traceback."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.experiments.sweep.run import run_sweep
from tests.experiments.sweeps import small_sweep

POINTS = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sweep") / "out"
    run_sweep(small_sweep(POINTS, policies=["none"]), folder=home)
    return home


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("update decided set what = '[]'", "the fingerprint of its points is incomplete"),
        ("update decided set what = '5'", "the fingerprint of its points is incomplete"),
        ("update decided set what = json_set(what, '$.policies', 3)", "the fingerprint of its points is incomplete"),
        (
            "update decided set what = json_set(what, '$.policies.none', 3)",
            "the fingerprint of its points is incomplete",
        ),
        ("update decided set what = json_set(what, '$.libraries', 'x')", "the fingerprint of its points is incomplete"),
        ("update points set rows = '[5]'", "its rows are not a table"),
        ("""update points set rows = '[{"batch": 3}]'""", "a row has no outcome"),
        ("update points set rows = json_set(rows, '$[0].outcome', 5)", "a row has no outcome"),
        ("update points set rows = json_set(rows, '$[0].gpus', 'x')", "its gpus is 'x'"),
        ("update points set rows = json_set(rows, '$[0].parameters', 5)", "its parameters is 5"),
        ("update points set rows = json_set(rows, '$[0].iteration_ns', 'x')", "its iteration_ns is 'x'"),
        ("update points set rows = json_set(rows, '$[0].iteration_ns', json('[1]'))", r"its iteration_ns is \[1\]"),
        ("update points set point = point + 1000", f"the sweep has {POINTS} points"),
        ("update points set point = -1 - point", f"the sweep has {POINTS} points"),
        ("update about set value = '[]' where key = 'swept'", "the identity of its sweep is incomplete"),
        ("update about set value = json_set(value, '$.axes', 3)", "the identity of its sweep is incomplete"),
    ],
)
def test_files_that_no_sweep_wrote_are_reported_as_damage(
    finished: Path, change: str, what: str, tmp_path: Path
) -> None:
    home = tmp_path / "out"
    shutil.copytree(finished, home)
    with sqlite3.connect(home / "points.sqlite") as database:
        database.execute(change)
    database.close()
    with pytest.raises(InputError, match=rf"points\.sqlite: .*is damaged: {what}.*; remove it"):
        run_sweep(small_sweep(POINTS, policies=["none"]), folder=home)
