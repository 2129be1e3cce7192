"""``simgpu sweep``: run a scenario at many points, in local processes or on a Dask cluster."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from time import monotonic

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, INTERRUPTED, OUT_OF_MEMORY, fail, show_error, wrapped
from simgpu.cli.screen import WIDTH, Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import scenario_keys, scenarios
from simgpu.errors import InputError, MissingExtraError
from simgpu.experiments.measures import OOM
from simgpu.experiments.outputs import folder_name
from simgpu.experiments.scenarios.load_sweep import load_sweep
from simgpu.experiments.scenarios.sweep import Sweep
from simgpu.experiments.sweep.costs import COST_HEADINGS, check_baselines, cost_rows
from simgpu.experiments.sweep.folder import CSV, PARQUET, REPORT, has_parquet
from simgpu.experiments.sweep.labels import numeric_path
from simgpu.experiments.sweep.metric import check_metric
from simgpu.experiments.sweep.point import ERROR, OK
from simgpu.experiments.sweep.point import OUT_OF_MEMORY as ROW_OOM
from simgpu.experiments.sweep.run import SweepResult, run_sweep
from simgpu.experiments.sweep.spread import MEASURES, SEED, SPREAD_HEADINGS, seed_spreads, spread_rows
from simgpu.experiments.sweep.table import HEADINGS, SHOWN, failures, shown_rows
from simgpu.io.atomic import atomic_file
from simgpu.policies.common.placing import bar

#: Number of failure reasons to print.
_REASONS = 5
_GAP = 2
#: Rates are averaged over the last minute: number of samples, and seconds between them.
_MOMENTS, _APART_S = 120, 0.5


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=scenario_keys,
    help='Change a value in the scenario, its node or its sweep, e.g. iterations=5 or "sweep.grid.seed=[1, 2]". '
    "null removes a key from the grid. Repeatable.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes. Default: one per core."
)
@click.option(
    "--dask",
    "address",
    metavar="ADDRESS",
    help="Run the points on the Dask cluster with this scheduler address.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results. Default: results/NAME-sweep.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw the metric over a varied number, a line per policy, into this PDF, SVG or PNG file.",
)
@click.option(
    "--latex",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the metric of points and policies as a LaTeX table (booktabs) into this .tex file.",
)
@click.option(
    "--metric",
    metavar="COLUMN",
    default="iteration_ns",
    show_default=True,
    help="Numeric column of the results for --figure and --latex, e.g. slowdown.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="POLICY",
    help="Show what policies cost over this one at the same point, and from which value on at most 1%; also as the "
    "figure. Repeatable: a policy is compared with the one of its name, else with the first.",
)
@click.option("--over", metavar="PATH", help="Varied path on the x axis of --figure. Default: the first with numbers.")
@click.option("--restart", is_flag=True, help="Delete existing results first, even those of another sweep.")
@quiet_option
def sweep(
    scenario: str,
    settings: tuple[str, ...],
    jobs: int | None,
    address: str | None,
    output: Path | None,
    figure: Path | None,
    latex: Path | None,
    metric: str,
    over: str | None,
    baselines: tuple[str, ...],
    restart: bool,
    quiet: bool,
) -> None:
    """Run SCENARIO (a shipped name or a YAML file) at each point of its 'sweep' block.

    Finished points are stored in the results folder. After Ctrl-C, a crash or a power failure, the same command
    resumes. Points run again if they ended in an error, or if simgpu's code or its libraries have changed.

    At the end, results.csv and results.parquet contain one row per point and policy, with all parameters and metrics.
    The files are byte-identical for any number of processes, and for a cluster.

    A sweep that varies the seed also shows mean, standard deviation, minimum and maximum over the seeds.

    Exit code 3: every point ran out of simulated memory. Exit code 2: no point has a result, for other reasons.

    \b
    simgpu sweep memory-sweep
    simgpu sweep memory-sweep --set "sweep.grid.budget=[20 MiB, 30 MiB]" -o two
    simgpu sweep memory-sweep --set "sweep.grid.budget=[30%, 60%, 100%]" \\
        --figure times.pdf --latex times.tex
    simgpu sweep offload-by-length --baseline none --baseline checkpoint \\
        --over trace.length --figure costs.png
    simgpu sweep my-study.yaml --jobs 16
    simgpu sweep my-study.yaml --dask tcp://10.0.0.1:8786
    """
    if jobs is not None and address is not None:
        raise click.UsageError("--jobs and --dask exclude each other: leave out one of them.")
    loaded = load_sweep(scenario, parse_settings(settings))
    papers = PaperFiles.checked(loaded, figure, latex, metric, over, baselines)
    folder = output if output is not None else default_folder(loaded.name)
    count = Count()
    try:
        with progress(quiet) as say:
            result = run_sweep(
                loaded,
                folder=folder,
                jobs=min(jobs or cores(), loaded.count),
                dask=address,
                restart=restart,
                progress=lambda done, total: say(count.text(done, total)),
            )
    except (KeyboardInterrupt, SystemExit) as stop:
        click.echo(f"stopped after {count.done} of {loaded.count} points; run the same command to resume", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    screen = Screen()
    show_sweep(screen, result, folder)
    if baselines:
        screen.print()
        screen.print(table(COST_HEADINGS, cost_rows(result.costs(baselines, over)), left=(0, 1)))
    if result.counts[OK]:
        with progress(quiet) as say:
            say("drawing")
            written = papers.write(result)
        if written:
            screen.print(facts([("written", ", ".join(map(str, written)))]))
    _end(result, folder)


@dataclass(frozen=True)
class PaperFiles:
    """The files for a paper that a sweep also writes. over: the path on the figure's x axis, None without a figure."""

    figure: Path | None
    latex: Path | None
    metric: str
    over: str | None
    baselines: tuple[str, ...] = ()

    @classmethod
    def checked(
        cls,
        swept: Sweep,
        figure: Path | None,
        latex: Path | None,
        metric: str,
        over: str | None,
        baselines: tuple[str, ...] = (),
    ) -> PaperFiles:
        """The files of these options. Raises `InputError` before anything runs, for a file that cannot be written."""
        if over is not None and figure is None and not baselines:
            raise click.UsageError("--over needs --figure, whose x axis it names.")
        check_baselines(swept, baselines)
        with _metric_option():
            check_metric(swept, metric)
        for option, path in (("--figure", figure), ("--latex", latex)):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError.single(path, "", f"{option}: there is no folder {path.parent}", "create it")
        if latex is not None and latex.suffix.lower() != ".tex":
            raise InputError.single(latex, "", f"'{latex.suffix}' is no LaTeX file", "end the name in .tex")
        if figure is None:
            return cls(None, latex, metric, None)
        from simgpu.analysis.plots import figure_format  # loads matplotlib

        figure_format(figure)
        return cls(figure, latex, metric, numeric_path(swept, over).path, baselines)

    def write(self, result: SweepResult) -> list[Path]:
        """Writes them, each atomically, and returns those written."""
        written = []
        with _metric_option():  # which may have no number in any of the runs
            if self.figure is not None:
                from simgpu.analysis.plots import save_figure

                of_costs = self.baselines and result.plot_costs(self.baselines, self.over)
                save_figure(of_costs or result.plot(self.metric, self.over or ""), self.figure)
                written.append(self.figure)
            if self.latex is not None:
                text = result.latex(self.metric)
                with atomic_file(self.latex) as part:
                    part.write_text(text, encoding="utf-8")
                written.append(self.latex)
        return written


@contextmanager
def _metric_option() -> Iterator[None]:
    """Ends the program with the errors of a metric, whose long lists of columns are wrapped."""
    try:
        yield
    except InputError as error:
        named = [replace(each, place="--metric") for each in error.problems]
        fail([wrapped(str(each)) for each in named], BAD_INPUT)


def default_folder(name: str) -> Path:
    """The folder of a sweep's results.

    >>> default_folder("my study").as_posix(), default_folder("memory-sweep").as_posix()
    ('results/my-study-sweep', 'results/memory-sweep')
    """
    return Path("results", f"{folder_name(name).removesuffix('-sweep')}-sweep")


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Count:
    """Formats the progress of a sweep or other work in many parts."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, of: str = "points", last: str = "writing the tables"
    ) -> None:
        self.done = 0
        self._of, self._last = of, last
        self._clock = clock
        self._moments: deque[tuple[float, int]] = deque(maxlen=_MOMENTS)

    def text(self, done: int, total: int) -> str:
        """Progress bar, finished and total points, rate, and remaining time.

        >>> times = iter([0.0, 10.0])
        >>> count = Count(lambda: next(times))
        >>> count.text(0, 300), count.text(100, 300)
        ('points ──────────────────── 0 of 300', 'points ━━━━━━━───────────── 100 of 300, 10/s, 20 s left')
        """
        self.done = done
        now = self._clock()
        if not self._moments or now - self._moments[-1][0] >= _APART_S:
            self._moments.append((now, done))
        since, before = self._moments[0]
        text = f"{self._of} {bar(done / total if total else 1)} {done} of {total}"
        if done == total:
            return f"{text}, {self._last}"
        if done == before or now <= since:
            return text
        rate = (done - before) / (now - since)
        return f"{text}, {rate:.3g}/s, {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    """Formats a duration in a readable unit.

    >>> _duration(20), _duration(200), _duration(20_000), _duration(200_000)
    ('20 s', '3 min', '5.6 h', '2.3 days')
    """
    for unit, size, limit, form in (("s", 1, 120, ".0f"), ("min", 60, 7200, ".0f"), ("h", 3600, 172_800, ".1f")):
        if seconds < limit:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds / 86_400:.1f} days"


def show_sweep(screen: Screen, result: SweepResult, folder: Path) -> None:
    """Prints a summary of the sweep, its rows if there are few, and the written files."""
    swept = result.sweep
    screen.print(Text(swept.name, style="bold"))
    screen.print(facts(_facts(swept)))
    screen.print()
    if sum(result.counts.values()) <= SHOWN:
        rows = shown_rows(swept, result.rows())
        screen.print(Text(", ".join(swept.paths), style="bold"))
        _show_lines(screen, HEADINGS[1:], rows)
        if any(row[2].endswith("*") for row in rows):
            screen.print("* unsteady: the last two iterations differ; run more iterations")
        screen.print()
    if SEED in swept.paths:
        _show_spread(screen, result)
    for note in result.notes:
        screen.print(note)
    files = [CSV, PARQUET, REPORT] if has_parquet() else [CSV, REPORT]
    outcomes = ", ".join(
        f"{count} {OOM if outcome == ROW_OOM else outcome}" for outcome, count in result.counts.items() if count
    )
    again = "" if result.ran == swept.count else f", {result.ran} of them run in this call"
    screen.print(
        facts([("points", f"{swept.count}{again}"), ("rows", outcomes), ("written", f"{folder}: {', '.join(files)}")])
    )
    if not has_parquet():
        screen.print(f"no {PARQUET}: {MissingExtraError('writing Parquet', 'pyarrow', 'parquet')}")


def _show_spread(screen: Screen, result: SweepResult) -> None:
    """Prints the spread of the step time and of the peak over several seeds, if there are few rows."""
    spreads = seed_spreads(result.sweep, result.rows())
    if all(each.seeds == 1 for each in spreads):
        return
    if len(spreads) > SHOWN:
        screen.print("the spread over the seeds has too many rows to show: see SweepResult.seed_spread() in Python\n")
        return
    others = [path for path in result.sweep.paths if path != SEED]
    for measure, (title, _) in MEASURES.items():
        paths = f"{', '.join(others)}: " if others else ""
        screen.print(Text(f"{paths}{title} over the seeds", style="bold"))
        _show_lines(screen, SPREAD_HEADINGS, spread_rows(spreads, measure))
        screen.print()


def _show_lines(screen: Screen, headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    for line, strong in _lines(headings, rows):
        screen.print(Text(line, style="bold" if strong else ""))


def _facts(swept: Sweep) -> Iterator[tuple[str, str]]:
    if swept.description:
        yield "about", swept.description
    for axis in swept.axes:
        yield "varies", f"{', '.join(axis.paths)}: {len(axis.steps)}"


def _lines(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, bool]]:
    """Table lines: one per point, followed by one per policy; each with whether it is a heading.

    rows: the text of their point, which may be empty, and a cell under each heading
    """
    cells = [row[1:] for row in rows]
    widths = [max(map(len, column)) + _GAP for column in zip(headings, *cells, strict=True)]
    free = WIDTH - sum(widths[1:]) - _GAP
    width = max((len(label) for label, *_ in (headings, *cells) if len(label) <= free), default=free)

    def line(label: str, *numbers: str) -> str:
        first = f"{'':{_GAP}}{label}"
        below = f"{first}\n{'':{width + _GAP}}" if len(label) > width else first.ljust(width + _GAP)
        return below + "".join(text.rjust(wide) for text, wide in zip(numbers, widths[1:], strict=True))

    yield line(*headings), True
    for point, policies in groupby(rows, key=lambda row: row[0]):
        if point:
            yield point, False
        for row in policies:
            yield line(*row[1:]), False


def _end(result: SweepResult, folder: Path) -> None:
    """Reports why rows have no result; exits with a failure when none has."""
    reasons = failures(result.rows())
    for message, count in list(reasons.items())[:_REASONS]:
        rows = f"{count} rows" if count > 1 else "1 row"
        click.echo(f"\n{wrapped(f'{rows} {message}', before=0)}", err=True)
    if len(reasons) > _REASONS:
        click.echo(f"\n{len(reasons) - _REASONS} more reasons: see column message of {folder / CSV}", err=True)
    if result.counts[ERROR]:
        click.echo("\nrun the same command to repeat the points that ended in an error", err=True)
    if not result.counts[OK]:
        fits = not result.counts[ERROR] and result.counts[ROW_OOM]
        show_error("every point ran out of simulated memory" if fits else "no point has a result")
        sys.exit(OUT_OF_MEMORY if fits else BAD_INPUT)
