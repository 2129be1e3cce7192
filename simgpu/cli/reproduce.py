"""``simgpu reproduce``: what papers claim, beside what is simulated here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.group import BAD_INPUT, INTERRUPTED, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.suggestions import RECORDINGS, claims
from simgpu.cli.sweep import Count, cores
from simgpu.errors import InputError
from simgpu.papers.claims import select
from simgpu.papers.lines import FITTED, Line, claim_lines, experiment_lines, says_lines, table_lines
from simgpu.papers.outcome import ClaimOutcome, Experiment, Reproduction
from simgpu.papers.page.writing import check_target, write_page
from simgpu.papers.recordings import HEADINGS as RECORDING_HEADINGS
from simgpu.papers.recordings import MANAGED_HEADINGS, Recordings
from simgpu.papers.reproduce import Run
from simgpu.papers.tables import summary
from simgpu.papers.verdicts import Verdict
from simgpu.version import __version__

#: What to know of the summary, and where to go from it.
_HINTS = (
    f"{FITTED} or fitted: something was fitted to the claim; all others are predicted. What holds or is broken is a "
    "rule or a bound: most are of the design, which is built so and checked to be.",
    "simgpu reproduce ID tells a claim in full: what it states, where the number here comes from, and why it is off.",
)
FOLDER = Path("results", "reproduce")
_COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.CLOSE: "green",
    Verdict.NEAR: "yellow",
    Verdict.OFF: "red",
    Verdict.BROKEN: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.CANNOT: "dim",
}


@click.command()
@click.argument("what", nargs=-1, shell_complete=claims)
@click.option("--quick", is_flag=True, help="Only the claims that take seconds together.")
@click.option("--explain", "why", is_flag=True, help="Where off by over 10%, also run experiments on why.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all of it as a page, with causes and figures, which take longer.",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also compare the recordings in this folder.",
)
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; default: a core each.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=FOLDER, metavar="DIR", help="Keep finished work here."
)
@click.option("--restart", is_flag=True, help="Forget the work that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def reproduce(
    what: tuple[str, ...],
    quick: bool,
    why: bool,
    html: Path | None,
    recordings: Path | None,
    jobs: int | None,
    output: Path,
    restart: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate the claims of papers, WHAT of them, and show both numbers.

    WHAT is a paper (cswap, home, cdma, modnn, buddy), a claim, or the beginning of its id; or `recordings`, of which
    those that ship with simgpu are compared with their simulation. Without: all of them, or with --quick all quick
    claims. A single claim is told in full. Finished work is kept: after Ctrl-C the same command goes on where it
    stopped. Ends with 2 when a claim could not be run.

    \b
    simgpu reproduce --quick
    simgpu reproduce cdma.gain
    simgpu reproduce buddy --explain
    simgpu reproduce --html papers.html
    simgpu reproduce recordings --recordings my/recordings
    """
    words = [word for word in what if word != RECORDINGS]
    chosen = select(words, quick=quick) if words or not what else ()
    recorded = recordings or RECORDINGS in what or not (what or quick)
    if not chosen and words:
        raise InputError.single("", "", "none of these claims is among the quick ones", "leave out --quick")
    if html is not None:
        check_target(html)
    if find_spec("numba") is None and any(claim.paper.key == "home" for claim in chosen) and not quiet:
        click.echo("without the extra fast (numba) claims of HOME take very long", err=True)
    run = Run(chosen, output, restart)
    count = Count(of="runs", last="telling them")
    try:
        with progress(quiet) as say:
            result = run.outcome(
                causes=why or html is not None or len(chosen) == 1,
                figures=html is not None,
                recordings=recorded,
                jobs=jobs or cores(),
                progress=lambda done, total: say(count.text(done, total)),
            )
            if html is not None:
                say("writing the page")
                write_page(run, result, html)
    except (KeyboardInterrupt, SystemExit) as stop:
        click.echo(f"stopped after {count.done} runs; the same command goes on", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **result.to_dict()}, indent=2, allow_nan=False))
    else:
        show(Screen(), result)
        if html is not None:
            click.echo(f"\nwritten to {html}")
    _end(result)


def show(screen: Screen, reproduction: Reproduction) -> None:
    """The claims of each paper, recordings, and the summary; of a single claim everything."""
    if len(reproduction.claims) == 1:
        _show_claim(screen, reproduction.claims[0])
    elif reproduction.claims:
        _show_claims(screen, reproduction)
    if reproduction.recordings is not None:
        if len(reproduction.claims) == 1:
            screen.print()
        _show_recordings(screen, reproduction.recordings)
    if len(reproduction.claims) > 1:
        if reproduction.recordings is not None:
            screen.print()
        _show_summary(screen, reproduction)


def _show_claims(screen: Screen, reproduction: Reproduction) -> None:
    for paper in dict.fromkeys(outcome.claim.paper for outcome in reproduction.claims):
        outcomes = [outcome for outcome in reproduction.claims if outcome.claim.paper is paper]
        screen.print(Text(f"{paper.name} ({paper.source})", style="bold"))
        _print(screen, claim_lines(outcomes, screen.width))
        _show_why(screen, outcomes)
        screen.print()


def _show_summary(screen: Screen, reproduction: Reproduction) -> None:
    screen.print(Text("Summary", style="bold"))
    headings, rows, below = summary(reproduction)
    screen.print(table(headings, rows, unbroken=(0,)))
    screen.print()
    for text in (below, *_HINTS):
        screen.print(text if text is below else Text(text, style="dim"))


def _show_claim(screen: Screen, outcome: ClaimOutcome) -> None:
    claim, section = outcome.claim, outcome.claim.section
    screen.print(Text(claim.id, style="bold"))
    rows = [
        ("states", section.states),
        ("paper", f"{claim.paper.name}, {section.where} ({claim.paper.source})"),
        *(("here", source) for source in outcome.sources),
        ("fit", section.fit or "nothing was fitted to it"),
        ("inferred", "the paper does not state it outright" if section.inferred else ""),
        ("verdict", str(outcome.verdict)),
    ]
    screen.print(facts((name, text) for name, text in rows if text))
    screen.print()
    _print(screen, claim_lines([outcome], screen.width, every=True))
    _show_why(screen, [outcome])


def _show_recordings(screen: Screen, recordings: Recordings) -> None:
    screen.print(Text("Recordings, and the same iterations simulated", style="bold"))
    _print(screen, table_lines(RECORDING_HEADINGS, recordings.rows(), screen.width))
    if managed := recordings.managed_rows():
        screen.print()
        _print(screen, table_lines(MANAGED_HEADINGS, managed, screen.width))
    screen.print()
    for remark in recordings.remarks():
        screen.print(Text(remark, style="dim"))


def _show_why(screen: Screen, outcomes: Iterable[ClaimOutcome]) -> None:
    """Each assumption once, and below it a table of each claim that it may move."""
    causes: dict[str, list[tuple[ClaimOutcome, Experiment]]] = {}
    for outcome in outcomes:
        for experiment in outcome.experiments:
            causes.setdefault(experiment.name, []).append((outcome, experiment))
    for name, moved in causes.items():
        screen.print()
        screen.print(Text(f"why: {name}", style="bold"))
        _print(screen, says_lines(moved[0][1], screen.width))
        for outcome, experiment in moved:
            screen.print()
            _print(screen, experiment_lines(outcome, experiment, screen.width))


def _print(screen: Screen, lines: Iterable[Line]) -> None:
    for line in lines:
        style = "bold" if line.heading else "dim" if line.said else ""
        text = Text(line.text, style=style)
        text.append(line.ending, style=_COLOURS[line.verdict] if line.verdict else style)
        screen.print(text)


def _end(reproduction: Reproduction) -> None:
    """Tells which claims and recordings could not be run, and for which reasons; the exit code says so."""
    reasons: dict[str, dict[str, None]] = {}
    for outcome in reproduction.claims:
        steps = [
            part for experiment in outcome.experiments for step in experiment.steps for part in step.parts.values()
        ]
        for part in (*outcome.parts, *steps):
            if part.judged.verdict is Verdict.FAILED:
                reasons.setdefault(part.judged.told, {})[outcome.claim.id] = None
    for row in reproduction.recordings.failed if reproduction.recordings else ():
        reasons.setdefault(row.why, {})[row.name] = None
    for why, ids in reasons.items():
        problem = f"could not be run: {', '.join(ids)}: {why}"
        click.echo(f"\n{wrapped(problem, before=0)}", err=True)
    if reasons:
        sys.exit(BAD_INPUT)
