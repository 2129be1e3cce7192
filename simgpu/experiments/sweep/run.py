"""`run_sweep` runs the points of a sweep that have no stored result, and returns the results of all points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.analysis.tables import table_html, table_text
from simgpu.experiments.processes import Progress, check_jobs, in_jobs
from simgpu.experiments.sweep.cluster import on_cluster
from simgpu.experiments.sweep.costs import CostCurve, cost_curves, plot_costs
from simgpu.experiments.sweep.fingerprint import fingerprint, fingerprint_of_point
from simgpu.experiments.sweep.folder import WRITTEN, close_unfinished, open_store, select_reusable, write_results
from simgpu.experiments.sweep.labels import numeric_path
from simgpu.experiments.sweep.latex import latex_table
from simgpu.experiments.sweep.point import OUTCOMES, PointRows, died, run_point
from simgpu.experiments.sweep.spread import seed_spreads
from simgpu.experiments.sweep.store import Store, stored
from simgpu.experiments.sweep.table import HEADINGS, SHOWN, columns_of, frame_of, shown_rows, table_rows
from simgpu.graph.replicate import NO_COLLECTIVES, NOT_EXCHANGED, Exchange

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.sweep import Sweep

_EDITED = "code that affects results was edited while the sweep ran: the same call runs its points again"
#: Runs points and yields each as it finishes.
PointRunner = Callable[[Iterable[int]], Generator[PointRows, None, None]]


@dataclass(frozen=True, repr=False)
class SweepResult:
    """All points of a sweep. Prints as a table of the first rows.

    counts: number of rows by outcome: ``ok``, ``out of memory``, ``refused`` and ``error``
    folder: folder of the stored results; None if they are in memory
    ran: number of points that ran in this call
    notes: stored points that were not reused and why, edits of the code during the sweep, and how several GPUs
    exchange gradients
    """

    sweep: Sweep
    counts: dict[str, int]
    folder: Path | None
    ran: int
    notes: tuple[str, ...]
    _stored: Callable[[], Iterator[tuple[int, list[dict[str, Any]]]]]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping per point and policy, in order, by column; columns without a value are omitted."""
        return table_rows(self.sweep, self._stored())

    def frame(self) -> pd.DataFrame:
        """One row per point and policy.

        Columns: ``point``; the varied values by path; every setting in base units; ``policy`` (its label),
        ``policy_name``, ``parameters`` (JSON); ``outcome`` and ``message``; the numbers of the run (see `Metrics`); and
        provenance.
        """
        return frame_of(columns_of(self.sweep, self._stored()), self.rows())

    def seed_spread(self) -> pd.DataFrame:
        """The spread over the seeds: one row per policy and combination of the other varied values.

        Columns: these values by path, ``policy``, ``seeds`` and ``ok`` (how many ran, and have a result), then
        ``_mean``, ``_std`` (of a sample), ``_min`` and ``_max`` of ``iteration_ns`` and ``device_peak_bytes``. A policy
        that draws no random numbers has a deviation of 0. Raises `InputError` for a sweep that does not vary the seed.

        >>> from simgpu.experiments.scenarios.load_sweep import make_sweep
        >>> values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "iterations": 1}
        >>> result = run_sweep(make_sweep({**values, "sweep": {"grid": {"seed": [0, 1]}}}, "an example"))
        >>> result.seed_spread()[["policy", "seeds", "iteration_ns_mean", "iteration_ns_std"]].values.tolist()
        [['none', 2, 110130863.0, 0.0]]
        """
        import pandas as pd

        return pd.DataFrame([each.row for each in seed_spreads(self.sweep, self.rows())])

    def plot(
        self, y: str = "samples_per_s", x: str = "budget_bytes", *, references: Mapping[str, Any] | None = None
    ) -> Figure:
        """A matplotlib figure of a measure over a varied number, one line per policy and per value of the other axes.

        Several seeds are one line: their mean, with the standard deviation as error bars.

        y: a column of `frame`, such as ``slowdown``
        x: a varied path with numbers, such as ``budget``, or a column, such as ``d2h_bytes_per_s``
        references: as for `simgpu.analysis.curves.plot_curves`, in the units of the figure
        """
        from simgpu.experiments.sweep.charts import measure_over

        return measure_over(self.sweep, self.frame(), y, x, references or {})

    def latex(self, metric: str = "iteration_ns") -> str:
        """A LaTeX table of a metric, in the style of booktabs: one row per point, one column per policy.

        Several seeds are one row: their mean and standard deviation. metric: a column of `frame` with numbers.

        >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
        >>> changes = {"sweep.grid.budget": ["52 MiB"], "sweep.zip": [], "policies": ["none", "vdnn"]}
        >>> print(run_sweep(load_sweep("memory-sweep", changes)).latex("slowdown"))
        % memory-sweep: slowdown; recorded on CPU (AMD EPYC), 2026-11-21; needs \\usepackage{booktabs}
        \\begin{tabular}{lrr}
        \\toprule
        & \\multicolumn{2}{c}{slowdown} \\\\
        \\cmidrule(lr){2-3}
        budget & none & vdnn \\\\
        \\midrule
        52 MiB & 1.000 & 1.405 \\\\
        \\bottomrule
        \\end{tabular}
        <BLANKLINE>
        """
        return latex_table(self.sweep, self.rows(), metric)

    def front(self) -> pd.DataFrame:
        """The rows of `frame` on the Pareto front: no other run has more throughput and no higher peak memory."""
        from simgpu.experiments.sweep.charts import pareto_front

        return pareto_front(self.frame())

    def plot_front(self) -> Figure:
        """A matplotlib figure of throughput vs. peak memory of every run, and the Pareto front."""
        from simgpu.experiments.sweep.charts import throughput_against_memory

        return throughput_against_memory(self.sweep, self.frame())

    def costs(self, baselines: Sequence[str], over: str | None = None) -> list[CostCurve]:
        """What each policy costs over a baseline at the same point, along a varied number (`cost_curves`).

        over: the path of that number; by default the first with numbers.
        """
        return cost_curves(self.sweep, self.frame(), baselines, numeric_path(self.sweep, over))

    def plot_costs(self, baselines: Sequence[str], over: str | None = None) -> Figure:
        """A matplotlib figure of these costs on logarithmic axes."""
        return plot_costs(self.sweep, self.frame(), baselines, over)

    @property
    def caption(self) -> str:
        """The number of points, and the number of rows by outcome."""
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        return f"{self.sweep.name}: {self.sweep.count} points; {outcomes}"

    def _shown(self) -> list[tuple[str, ...]]:
        return shown_rows(self.sweep, self.rows())

    def __repr__(self) -> str:
        more = sum(self.counts.values()) - SHOWN
        below = f"\n{more} more rows: see frame()" if more > 0 else ""
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
    """Run the points of a sweep that have no stored result. The results do not depend on where points run.

    folder: folder for finished points, and for the tables of a finished sweep; nothing is written without one
    jobs: number of worker processes on this machine; 1 runs points in this process
    dask: the address of a cluster's scheduler, or a client, in place of `jobs`
    restart: discard the stored results of the folder
    progress: called with the number of finished points and the total

    The same call resumes a stopped sweep. Points that ended in an error, or lacked a package, run again, and so do
    points whose code or libraries have changed since: those of simgpu, or of an outside policy that they use.

    Raises `InputError` for a folder that holds something else or is in use, and for a cluster that cannot be used;
    `MissingExtraError` for a cluster without distributed. Errors of single points are in their rows.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> result = run_sweep(load_sweep("memory-sweep", {"sweep.grid.budget": ["32 MiB"], "iterations": 1}))
    >>> result.counts
    {'ok': 4, 'out of memory': 4, 'refused': 0, 'error': 0}
    """
    check_jobs(jobs)

    def run_pending(points: Iterable[int]) -> Generator[PointRows, None, None]:
        if dask is not None:
            return on_cluster(sweep, points, dask)
        return in_jobs(sweep, points, jobs, run_point, died)

    return run_points(sweep, run_pending, folder=folder, restart=restart, progress=progress)


def run_points(
    sweep: Sweep,
    run_pending: PointRunner,
    *,
    folder: str | Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Like `run_sweep`, with any function that runs points."""
    path = None if folder is None else Path(folder)
    now = fingerprint(sweep)
    store = open_store(sweep, path, restart)
    try:
        notes = select_reusable(store, now)
        try:
            ran = _finish(sweep, store, run_pending, progress, now)
        finally:
            if fingerprint(sweep) != now:
                store.invalidate_current()
                notes.append(_EDITED)
        counted = Counter(row["outcome"] for _, rows in store.rows() for row in rows)
        counts = {outcome: counted[outcome] for outcome in OUTCOMES}
        exchanges = {row.get("exchange") for _, rows in store.rows() for row in rows if row.get("gpus", 1) > 1}
        notes += [NOT_EXCHANGED] if Exchange.NONE in exchanges else []
        notes += [NO_COLLECTIVES] if exchanges - {Exchange.NONE} else []
        write_results(sweep, store, counts, now)
    except BaseException:
        close_unfinished(store)
        raise
    if path is None:
        return SweepResult(sweep, counts, None, ran, tuple(notes), store.rows)
    store.close()
    stored_in = path.absolute()
    return SweepResult(sweep, counts, stored_in, ran, tuple(notes), lambda: stored(stored_in))


def _finish(
    sweep: Sweep, store: Store, run_pending: PointRunner, progress: Progress | None, now: Mapping[str, Any]
) -> int:
    """Run the pending points and store each before the next. Returns the number of points that ran."""
    done, total = store.finished(), sweep.count
    if progress:
        progress(done, total)
    if done == total:
        return 0
    store.note({WRITTEN: None})  # existing tables are out of date
    ran = 0
    with closing(run_pending(store.pending(total))) as finished:
        for point in finished:
            store.save(point, fingerprint_of_point(now, point))
            ran += 1
            if progress:
                progress(done + ran, total)
    return ran
