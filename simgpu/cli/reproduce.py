"""``simgpu reproduce``: claims of papers compared with simulation."""

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
from simgpu.papers.claims import Claim, select
from simgpu.papers.lines import Line, table_lines
from simgpu.papers.outcome import FITTED, ClaimOutcome, Experiment, claim_lines, experiment_lines, says_lines
from simgpu.papers.page.page import check_target, write_page
from simgpu.papers.recordings import HEADINGS as RECORDING_HEADINGS
from simgpu.papers.recordings import MANAGED_HEADINGS, Recordings
from simgpu.papers.reproduce import Run
from simgpu.papers.reproduction import Reproduction, rule_lines, summary
from simgpu.papers.verdicts import Verdict
from simgpu.version import __version__

#: What to know of the summary, and where to go from it.
_HINTS = (
    f"{FITTED} or fitted: something was fitted to the claim; all others are predictions. Compared: numbers, orders and "
    "bounds. Rules: how many of a design's rules hold; pytest -m rule runs their tests.",
    "simgpu reproduce ID shows a claim in full: what it states, the source of its number here, and why it is off.",
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
@click.option("--explain", "why", is_flag=True, help="For claims off by over 10%, also run experiments on why.")
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
    "-o", "--output", type=click.Path(path_type=Path), default=FOLDER, metavar="DIR", help="Cache finished work here."
)
@click.option("--restart", is_flag=True, help="Delete the cached work.")
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
    """Simulate the claims of papers, and show both numbers; for rules, the tests that hold them.

    WHAT is a paper (cswap, home, cdma, modnn, buddy), a claim, or the beginning of its id; or `recordings`: the
    recordings that ship with simgpu are compared with their simulation. Without: all of them, or with --quick all quick
    claims. A single claim is shown in full. Finished work is cached: after Ctrl-C the same command goes on where it
    stopped. Exits with 2 when a claim could not be run.

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
    count = Count(of="runs", last="collecting")
    try:
        with progress(quiet) as say:
            reproduction = run.outcome(
                causes=why or html is not None or len(chosen) == 1,
                figures=html is not None,
                recordings=recorded,
                jobs=jobs or cores(),
                progress=lambda done, total: say(count.text(done, total)),
            )
            if html is not None:
                say("writing the page")
                write_page(run, reproduction, html)
    except (KeyboardInterrupt, SystemExit) as stop:
        click.echo(f"stopped after {count.done} runs; the same command goes on", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **reproduction.to_dict()}, indent=2, allow_nan=False))
    else:
        show(Screen(), reproduction)
        if html is not None:
            click.echo(f"\nwritten to {html}")
    _end(reproduction)


def show(screen: Screen, reproduction: Reproduction) -> None:
    """The claims and rules of each paper, recordings, and the summary; for a single claim all details."""
    claims = len(reproduction.claims) + len(reproduction.rules)
    if claims == 1:
        for outcome in reproduction.claims:
            _show_claim(screen, outcome)
        for rule in reproduction.rules:
            _show_rule(screen, rule)
    elif claims:
        _show_claims(screen, reproduction)
    if reproduction.recordings is not None:
        if claims == 1:
            screen.print()
        _show_recordings(screen, reproduction.recordings)
    if claims > 1:
        if reproduction.recordings is not None:
            screen.print()
        _show_summary(screen, reproduction)


def _show_claims(screen: Screen, reproduction: Reproduction) -> None:
    for paper in reproduction.papers:
        outcomes = [outcome for outcome in reproduction.claims if outcome.claim.paper is paper]
        screen.print(Text(f"{paper.name} ({paper.source})", style="bold"))
        if outcomes:
            _print(screen, claim_lines(outcomes, screen.width))
            _show_why(screen, outcomes)
            screen.print()
        if rules := reproduction.rules_of(paper.key):
            _print(screen, rule_lines(rules, screen.width))
            screen.print()


def _show_summary(screen: Screen, reproduction: Reproduction) -> None:
    screen.print(Text("Summary", style="bold"))
    headings, rows, below = summary(reproduction)
    screen.print(table(headings, rows, unbroken=(0,)))
    screen.print()
    for text in (below, *_HINTS):
        screen.print(text if text is below else Text(text, style="dim"))


def _show_claim(screen: Screen, outcome: ClaimOutcome) -> None:
    _show_facts(screen, outcome.claim, outcome.sources, str(outcome.verdict))
    _print(screen, claim_lines([outcome], screen.width, every=True))
    _show_why(screen, [outcome])


def _show_rule(screen: Screen, rule: Claim) -> None:
    _show_facts(screen, rule, (), "broken" if rule.broken else "held by tests")
    _print(screen, rule_lines([rule], screen.width, every=True))


def _show_facts(screen: Screen, claim: Claim, sources: Iterable[str], verdict: str) -> None:
    section = claim.section
    rows = [
        ("states", section.states),
        ("paper", f"{claim.paper.name}, {section.where} ({claim.paper.source})"),
        *(("here", source) for source in sources),
        ("fit", section.fit or "nothing was fitted to it"),
        ("inferred", "the paper does not state it outright" if section.inferred else ""),
        ("verdict", verdict),
    ]
    screen.print(Text(claim.id, style="bold"))
    screen.print(facts((name, text) for name, text in rows if text))
    screen.print()


def _show_recordings(screen: Screen, recordings: Recordings) -> None:
    screen.print(Text("Recordings, and the same iterations simulated", style="bold"))
    _print(screen, table_lines(RECORDING_HEADINGS, recordings.rows(), screen.width))
    if managed := recordings.managed_rows():
        screen.print()
        _print(screen, table_lines(MANAGED_HEADINGS, managed, screen.width))
    screen.print()
    for note in recordings.notes():
        screen.print(Text(note, style="dim"))


def _show_why(screen: Screen, outcomes: Iterable[ClaimOutcome]) -> None:
    """Each assumption once, and below it a table per claim."""
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
        style = "bold" if line.heading else "dim" if line.note else ""
        text = Text(line.text, style=style)
        text.append(line.ending, style=_COLOURS[line.verdict] if line.verdict else style)
        # The lines are wrapped; the id of a test stays in one piece.
        screen.print(text, wrap=False)


def _end(reproduction: Reproduction) -> None:
    """Print which claims and recordings could not be run, and why; then exit with an error."""
    reasons: dict[str, dict[str, None]] = {}
    for outcome in reproduction.claims:
        steps = [
            part for experiment in outcome.experiments for step in experiment.steps for part in step.parts.values()
        ]
        for part in (*outcome.parts, *steps):
            if part.judged.verdict is Verdict.FAILED:
                reasons.setdefault(part.judged.detail, {})[outcome.claim.id] = None
    for row in reproduction.recordings.failed if reproduction.recordings else ():
        reasons.setdefault(row.why, {})[row.name] = None
    for why, ids in reasons.items():
        message = f"could not be run: {', '.join(ids)}: {why}"
        click.echo(f"\n{wrapped(message, before=0)}", err=True)
    if reasons:
        sys.exit(BAD_INPUT)
