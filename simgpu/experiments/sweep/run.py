"""A sweep, run from where it stands to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.analysis.tables import table_html, table_text
from simgpu.errors import InputError
from simgpu.experiments.processes import in_processes, in_this_process
from simgpu.experiments.sweep.cluster import on_cluster
from simgpu.experiments.sweep.deciding import deciding, of_point
from simgpu.experiments.sweep.folder import abandon, forget_results, not_reused, open_store, write_results
from simgpu.experiments.sweep.point import OUTCOMES, PointRows, died, run_point
from simgpu.experiments.sweep.store import Store, stored
from simgpu.experiments.sweep.table import HEADINGS, SHOWN, columns_of, frame_of, shown_rows, table_rows
from simgpu.graph.replicate import NO_COLLECTIVES

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

    from simgpu.experiments.scenarios.sweep import Sweep

#: Told how many points are finished, and of how many.
Progress = Callable[[int, int], None]
_EDITED = "code that decides results was edited while the sweep ran: the same call runs its points again"
#: Runs points, and gives each as it finishes.
Engine = Callable[[Iterable[int]], Generator[PointRows, None, None]]


@dataclass(frozen=True, repr=False)
class SweepResult:
    """All points of a sweep. Prints as a table of the first rows.

    counts: rows by outcome: ``ok``, ``out of memory``, ``refused`` and ``error``. folder: where they are kept, None
    where they are in memory. ran: how many points ran this time. notes: which stored points were not reused and why,
    whether code was edited while the sweep ran, and by what several GPUs exchange gradients.
    """

    sweep: Sweep
    counts: dict[str, int]
    folder: Path | None
    ran: int
    notes: tuple[str, ...]
    _kept: Callable[[], Iterator[tuple[int, list[dict[str, Any]]]]]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping a point and policy, in order, by column; columns without a value are left out."""
        return table_rows(self.sweep, self._kept())

    def frame(self) -> pd.DataFrame:
        """One row a point and policy.

        Columns: ``point``; what varies, by its path; every parameter in base units; ``policy`` (its label),
        ``policy_name``, ``parameters`` (JSON); ``outcome`` and ``message``; the numbers of the run (see `Metrics`); and
        where they come from. What a row does not have is missing.
        """
        return frame_of(columns_of(self.sweep, self._kept()), self.rows())

    @property
    def caption(self) -> str:
        """How many points there are, and what became of their rows."""
        told = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        return f"{self.sweep.name}: {self.sweep.count} points; {told}"

    def _shown(self) -> list[tuple[str, ...]]:
        return shown_rows(self.sweep, self.rows())

    def __repr__(self) -> str:
        more = sum(self.counts.values()) - SHOWN
        below = f"\n{more} more rows: frame() has them" if more > 0 else ""
        return "\n".join([self.caption, *self.notes, f"{table_text(HEADINGS, self._shown())}{below}"])

    def _repr_html_(self) -> str:
        return table_html(HEADINGS, self._shown(), self.caption)


def run_sweep(
    sweep: Sweep,
    *,
    folder: str | Path | None = None,
    jobs: int = 1,
    dask: str | Client | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Runs the points of a sweep that have yet to run; the results are the same whoever runs them.

    folder: where finished points are kept, and the tables once all are; the same call goes on where an earlier one
    stopped. Points that ended in an error, or lacked a package, run again, and so do those whose code or libraries have
    changed since: that of simgpu, or of an outside policy that they use. Without a folder nothing is written. jobs:
    processes on this machine, 1 for none but this one. dask: the address of a cluster's scheduler, or a client of it,
    in their place. restart: forget what the folder has. progress: told how many points are finished, of how many.

    Raises `InputError` for a folder that holds something else or is in use, and for a cluster that cannot be used;
    `MissingExtraError` for a cluster without distributed. What is wrong with single points stands in their rows.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> result = run_sweep(load_sweep("memory-sweep", {"sweep.grid.budget": ["32 MiB"], "iterations": 1}))
    >>> result.counts
    {'ok': 4, 'out of memory': 4, 'refused': 0, 'error': 0}
    """
    if type(jobs) is not int or jobs < 1:
        what = f"{jobs!r} is not a whole number of at least 1"
        raise InputError.single("", "argument jobs", what, "give how many processes run points")

    def engine(points: Iterable[int]) -> Generator[PointRows, None, None]:
        if dask is not None:
            return on_cluster(sweep, points, dask)
        if jobs == 1:
            return in_this_process(sweep, points, run_point)
        return in_processes(sweep, points, jobs, run_point, died)

    return carry_out(sweep, engine, folder=folder, restart=restart, progress=progress)


def carry_out(
    sweep: Sweep,
    engine: Engine,
    *,
    folder: str | Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """What `run_sweep` does, whoever runs the points."""
    home = None if folder is None else Path(folder)
    decided = deciding(sweep)
    store = open_store(sweep, home, restart)
    try:
        notes = not_reused(store, decided)
        try:
            ran = _finish(sweep, store, engine, progress, decided)
        finally:
            if deciding(sweep) != decided:
                store.forget_decided()
                notes.append(_EDITED)
        counted = Counter(row["outcome"] for _, rows in store.rows() for row in rows)
        counts = {outcome: counted[outcome] for outcome in OUTCOMES}
        if any(row.get("gpus", 1) > 1 for _, rows in store.rows() for row in rows):
            notes.append(NO_COLLECTIVES)
        write_results(sweep, store, counts, decided)
    except BaseException:
        abandon(store)
        raise
    if home is None:
        return SweepResult(sweep, counts, None, ran, tuple(notes), store.rows)
    store.close()
    kept = home.absolute()
    return SweepResult(sweep, counts, kept, ran, tuple(notes), lambda: stored(kept))


def _finish(sweep: Sweep, store: Store, engine: Engine, progress: Progress | None, decided: Mapping[str, Any]) -> int:
    """Runs what has yet to run, and keeps each point before the next; how many there were."""
    done, total = store.finished(), sweep.count
    if progress:
        progress(done, total)
    if done == total:
        return 0
    forget_results(store)
    ran = 0
    with closing(engine(store.pending(total))) as finished:
        for point in finished:
            store.keep(point, of_point(decided, point))
            ran += 1
            if progress:
                progress(done + ran, total)
    return ran
