"""The folder of a sweep's results: what it is of, whether it may be gone on with, and the files of a finished one.

points.sqlite                   finished points, as they finish; what a stopped sweep goes on from
results.csv, results.parquet    one row a point and policy, once all points are finished
sweep.json                      what was swept, and what became of it
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError
from simgpu.experiments.outputs import check_folder
from simgpu.experiments.sweep.damage import identity_fault
from simgpu.experiments.sweep.deciding import reasons
from simgpu.experiments.sweep.store import FILE, Store, is_store
from simgpu.experiments.sweep.table import columns_of, table_rows, write_csv, write_parquet
from simgpu.io.atomic import atomic_file, unwritable
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

CSV, PARQUET, REPORT = "results.csv", "results.parquet", "sweep.json"
SCHEMA = "simgpu.sweep/1"

#: Keys of what is noted in the database.
_SWEPT, _WRITTEN = "swept", "written"


def identity(sweep: Sweep) -> dict[str, Any]:
    """All that makes it this sweep and no other, as plain data; the code that runs it is each point's own matter."""
    swept = {
        "simgpu": __version__,
        "scenario": dict(sweep.document.values),
        "overrides": dict(sweep.overrides),
        "axes": [{"paths": axis.paths, "steps": list(axis.steps)} for axis in sweep.axes],
        "inputs": sweep.inputs(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(swept, default=str))
    return plain


def open_store(sweep: Sweep, folder: Path | None, restart: bool) -> Store:
    """The points that a folder has of this sweep, none in a new one or when it is to begin anew.

    Raises `InputError` where the folder cannot be made, is in use, or holds something else, also another sweep.
    """
    if folder is None:
        return Store(None)
    check_folder(folder, lambda found: "" if is_store(found) else "files that are not from a sweep of simgpu")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    store = Store(folder)
    try:
        _make_fit(store, identity(sweep), folder, restart)
        store.require_points(sweep.count)
    except BaseException:
        store.close()
        raise
    return store


def _make_fit(store: Store, swept: Mapping[str, Any], folder: Path, restart: bool) -> None:
    """Empties the store if that is asked for; else refuses one of another sweep."""
    for left in folder.glob(".*.part"):  # of a process that was killed while it wrote; nobody else is here now
        if left.name.startswith((f".{CSV}.", f".{PARQUET}.", f".{REPORT}.")):
            left.unlink(missing_ok=True)
    known = store.about().get(_SWEPT)
    if known is not None and not restart and (fault := identity_fault(known)):
        raise store.damaged(fault)
    if known is not None and known != swept and not restart:
        told = "; ".join(_differences(known, swept))
        remedy = "choose another folder with -o, or replace what is there with --restart"
        raise InputError.single(folder, "", f"holds the results of another sweep: {told}", remedy)
    if restart or known is None:
        for name in (REPORT, PARQUET, CSV):
            (folder / name).unlink(missing_ok=True)
        store.clear()
        store.note({_SWEPT: swept})


def _differences(known: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In what two sweeps differ, in words."""
    told = []
    if known["simgpu"] != now["simgpu"]:
        told.append(f"of simgpu {known['simgpu']}, this is {now['simgpu']}")
    for what, word in (("scenario", "the scenario's"), ("overrides", "the override of")):
        keys = [key for key in {**known[what], **now[what]} if known[what].get(key) != now[what].get(key)]
        told += [f"{word} {', '.join(keys)} {'differs' if len(keys) == 1 else 'differ'}"] if keys else []
    if known["axes"] != now["axes"]:
        told.append("the sweep's axes differ")
    inputs = {name: (known["inputs"].get(name), now["inputs"].get(name)) for name in now["inputs"]}
    told += [f"the files of {name} differ" for name, (then, here) in inputs.items() if then not in (None, here)]
    return told or ["it reads other files"]


def not_reused(store: Store, decided: Mapping[str, Any]) -> list[str]:
    """Has the store reuse only points that were decided by what is the case now; a line for the others and each cause.

    decided: all that decides the sweep's results now, as `simgpu.experiments.sweep.deciding` has it.
    """
    current = []
    refused: Counter[str] = Counter()
    for number, then, count in store.decided():
        if why := reasons(then, decided):
            refused["; ".join(why)] += count
        elif number is not None:
            current.append(number)
    store.set_current(current)
    return [f"{count} stored point{'s' * (count > 1)} not reused: {why}" for why, count in refused.items()]


def write_results(sweep: Sweep, store: Store, counts: Mapping[str, int], decided: Mapping[str, Any]) -> None:
    """Writes the tables and the report of a finished sweep, unless they are there; each appears whole or not at all."""
    folder = store.folder
    if folder is None:
        return
    files = [CSV, *([PARQUET] if has_parquet() else []), REPORT]
    if store.about().get(_WRITTEN) == files and all((folder / name).is_file() for name in files):
        return
    columns = columns_of(sweep, store.rows())
    write_csv(columns, table_rows(sweep, store.rows()), folder / CSV)
    if PARQUET in files:
        write_parquet(columns, table_rows(sweep, store.rows()), folder / PARQUET)
    report = {
        "schema": SCHEMA,
        "name": sweep.name,
        "description": sweep.description,
        "points": sweep.count,
        "rows": sum(counts.values()),
        "outcomes": dict(counts),
        **store.about()[_SWEPT],
        "decided_by": dict(decided),
    }
    with atomic_file(folder / REPORT) as part:
        part.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    store.note({_WRITTEN: files})


def forget_results(store: Store) -> None:
    """Notes that the tables, if there are any, are of points that run again."""
    store.note({_WRITTEN: None})


def abandon(store: Store) -> None:
    """Closes the store; a folder in which no point was ever finished goes."""
    empty = store.folder is not None and not any(True for _ in store.rows())
    store.close()
    if store.folder is not None and empty:
        (store.folder / FILE).unlink(missing_ok=True)
        with suppress(OSError):  # something else lies there too
            store.folder.rmdir()


def has_parquet() -> bool:
    """Whether Parquet can be written."""
    return find_spec("pyarrow") is not None
