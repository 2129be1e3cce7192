"""The folder of a sweep's results: whether it can be resumed, and the files of a finished sweep.

points.sqlite                   finished points, as they finish; a stopped sweep resumes from it
results.csv, results.parquet    one row per point and policy, once all points are finished
sweep.json                      the swept values, and the number of rows by outcome
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
from simgpu.experiments.sweep.fingerprint import differences
from simgpu.experiments.sweep.store import FILE, Store, identity_fault, is_store
from simgpu.experiments.sweep.table import columns_of, table_rows, write_csv, write_parquet
from simgpu.io.atomic import atomic_file, unwritable
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

CSV, PARQUET, REPORT = "results.csv", "results.parquet", "sweep.json"
SCHEMA = "simgpu.sweep/2"

#: Keys of notes in the database.
_SWEPT, WRITTEN = "swept", "written"


def identity(sweep: Sweep) -> dict[str, Any]:
    """What identifies a sweep, as plain data; the code that runs it is part of each point's fingerprint."""
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
    """The store of a folder: empty in a new folder or with `restart`, else with the finished points of this sweep.

    Raises `InputError` where the folder cannot be made, is in use, or holds something else, also another sweep.
    """
    if folder is None:
        return Store(None)
    check_folder(folder, lambda there: "" if is_store(there) else "files that are not from a sweep of simgpu")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    store = Store(folder)
    try:
        _prepare(store, identity(sweep), folder, restart)
        store.require_points(sweep.count)
    except BaseException:
        store.close()
        raise
    return store


def _prepare(store: Store, swept: Mapping[str, Any], folder: Path, restart: bool) -> None:
    """Empties the store for a restart; otherwise refuses one of another sweep."""
    for left in folder.glob(".*.part"):  # of a process that was killed; no other uses them
        if left.name.startswith((f".{CSV}.", f".{PARQUET}.", f".{REPORT}.")):
            left.unlink(missing_ok=True)
    known = store.about().get(_SWEPT)
    if known is not None and not restart and (fault := identity_fault(known)):
        raise store.damaged(fault)
    if known is not None and known != swept and not restart:
        text = "; ".join(_differences(known, swept))
        remedy = "choose another folder with -o, or replace what is there with --restart"
        raise InputError.single(folder, "", f"holds the results of another sweep: {text}", remedy)
    if restart or known is None:
        for name in (REPORT, PARQUET, CSV):
            (folder / name).unlink(missing_ok=True)
        store.clear()
        store.note({_SWEPT: swept})


def _differences(known: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two sweeps, as texts."""
    texts = []
    if known["simgpu"] != now["simgpu"]:
        texts.append(f"of simgpu {known['simgpu']}, this is {now['simgpu']}")
    for what, word in (("scenario", "the scenario's"), ("overrides", "the override of")):
        keys = [key for key in {**known[what], **now[what]} if known[what].get(key) != now[what].get(key)]
        texts += [f"{word} {', '.join(keys)} {'differs' if len(keys) == 1 else 'differ'}"] if keys else []
    if known["axes"] != now["axes"]:
        texts.append("the sweep's axes differ")
    inputs = {name: (known["inputs"].get(name), now["inputs"].get(name)) for name in now["inputs"]}
    texts += [f"the files of {name} differ" for name, (then, here) in inputs.items() if then not in (None, here)]
    return texts or ["it reads other files"]


def select_reusable(store: Store, now: Mapping[str, Any]) -> list[str]:
    """Marks the stored points that can be reused; returns a line for each reason why others cannot.

    now: the fingerprint of the sweep, from `simgpu.experiments.sweep.fingerprint`.
    """
    current = []
    refused: Counter[str] = Counter()
    for number, then, count in store.fingerprints():
        if why := differences(then, now):
            refused["; ".join(why)] += count
        elif number is not None:
            current.append(number)
    store.set_current(current)
    return [f"{count} stored point{'s' * (count > 1)} not reused: {why}" for why, count in refused.items()]


def write_results(sweep: Sweep, store: Store, counts: Mapping[str, int], now: Mapping[str, Any]) -> None:
    """Writes the tables and the report of a finished sweep, each atomically, unless they are up to date."""
    folder = store.folder
    if folder is None:
        return
    files = [CSV, *([PARQUET] if has_parquet() else []), REPORT]
    if store.about().get(WRITTEN) == files and all((folder / name).is_file() for name in files):
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
        "decided_by": dict(now),
    }
    with atomic_file(folder / REPORT) as part:
        part.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    store.note({WRITTEN: files})


def close_unfinished(store: Store) -> None:
    """Closes the store of a failed run; removes a folder without any finished point."""
    empty = store.folder is not None and not any(True for _ in store.rows())
    store.close()
    if store.folder is not None and empty:
        (store.folder / FILE).unlink(missing_ok=True)
        with suppress(OSError):  # it holds other files too
            store.folder.rmdir()


def has_parquet() -> bool:
    """Whether Parquet can be written."""
    return find_spec("pyarrow") is not None
