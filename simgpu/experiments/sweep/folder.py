"""The folder of a sweep's results: checks whether the sweep can be resumed, and writes the files of a finished one.

points.sqlite                   finished points, saved as they finish; a stopped sweep resumes from it
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
from simgpu.simulation.config import WITHOUT_EFFECT
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

CSV, PARQUET, REPORT = "results.csv", "results.parquet", "sweep.json"
SCHEMA = "simgpu.sweep/2"

#: Keys of the store's notes.
_SWEPT, WRITTEN = "swept", "written"


def identity(sweep: Sweep) -> dict[str, Any]:
    """The identity of a sweep as plain data, without settings that change no result.

    The code that runs it is part of each point's fingerprint.
    """
    scenario, overrides = (
        {key: value for key, value in settings.items() if key not in WITHOUT_EFFECT}
        for settings in (sweep.document.values, sweep.overrides)
    )
    swept = {
        "simgpu": __version__,
        "scenario": scenario,
        "overrides": overrides,
        "axes": [{"paths": axis.paths, "steps": list(axis.steps)} for axis in sweep.axes],
        "inputs": sweep.inputs(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(swept, default=str))
    return plain


def open_store(sweep: Sweep, folder: Path | None, restart: bool) -> Store:
    """The store of a folder: empty in a new folder or with `restart`, else with the finished points of this sweep.

    Raises `InputError` if the folder cannot be created, is in use, or holds another sweep or other files.
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
    """Empty the store for a restart; otherwise raise `InputError` if it belongs to another sweep."""
    for partial in folder.glob(".*.part"):  # files of a killed process
        if partial.name.startswith((f".{CSV}.", f".{PARQUET}.", f".{REPORT}.")):
            partial.unlink(missing_ok=True)
    known = store.about().get(_SWEPT)
    if known is not None and not restart and (fault := identity_fault(known)):
        raise store.damaged(fault)
    if known is not None and known != swept and not restart:
        text = "; ".join(_differences(known, swept))
        remedy = "choose another folder with -o, or replace its contents with --restart"
        raise InputError.single(folder, "", f"contains the results of another sweep: {text}", remedy)
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
    for part, name in (("scenario", "the scenario's"), ("overrides", "the override of")):
        keys = [key for key in {**known[part], **now[part]} if known[part].get(key) != now[part].get(key)]
        texts += [f"{name} {', '.join(keys)} {'differs' if len(keys) == 1 else 'differ'}"] if keys else []
    if known["axes"] != now["axes"]:
        texts.append("the sweep's axes differ")
    inputs = {name: (known["inputs"].get(name), now["inputs"].get(name)) for name in now["inputs"]}
    texts += [f"the files of {name} differ" for name, (then, here) in inputs.items() if then not in (None, here)]
    return texts or ["its input files differ"]


def select_reusable(store: Store, now: Mapping[str, Any]) -> list[str]:
    """Mark the stored points that can be reused. Returns a line for each reason why others cannot.

    now: the current fingerprint of the sweep (`simgpu.experiments.sweep.fingerprint`)
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
    """Write the tables and the report of a finished sweep, each atomically, unless they are up to date."""
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
    """Close the store of a failed run, and remove its folder if no point has finished."""
    empty = store.folder is not None and not any(True for _ in store.rows())
    store.close()
    if store.folder is not None and empty:
        (store.folder / FILE).unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds other files
            store.folder.rmdir()


def has_parquet() -> bool:
    """Whether Parquet files can be written."""
    return find_spec("pyarrow") is not None
