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

#: Explanation of the summary, and the next command.
_HINTS = (
    f"{FITTED} or fitted: a parameter was fitted to the claim; all other results are predictions. Compared: numbers, "
    "orders and bounds. Rules: how many of a design's rules hold; pytest -m rule runs their tests. Inputs cannot fail "
    "and are not counted.",
    "simgpu reproduce ID shows all details of a claim: its statement, the source of the simulated value, and causes "
    "of the error.",
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
    Verdict.INPUT: "dim",
}


@click.command()
@click.argument("what", nargs=-1, shell_complete=claims)
@click.option("--quick", is_flag=True, help="Run only quick claims; all together take seconds.")
@click.option(
    "--explain", "why", is_flag=True, help="For claims with an error above 10%, also run experiments to find the cause."
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write an HTML page with causes and figures (takes longer).",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also compare the recordings in this folder with their simulation.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes. Default: one per core."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=FOLDER,
    show_default=True,
    metavar="DIR",
    help="Folder to cache finished runs in.",
)
@click.option("--restart", is_flag=True, help="Delete the cached runs first.")
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
    """Compare the claims of papers with simulation; for design rules, list the tests that check them.

    WHAT is a paper (cswap, home, cdma, modnn, buddy), the id of a claim or the beginning of it, or `recordings`, which
    compares the shipped recordings with their simulation. Default: all of these, or with --quick all quick claims. A
    single claim is shown with all details.

    Finished runs are cached: after Ctrl-C, the same command resumes. Exit code 2: a claim could not be run.

    \b
    simgpu reproduce --quick
    simgpu reproduce cdma.gain
    simgpu reproduce buddy --explain
    simgpu reproduce --html papers.html
    simgpu reproduce recordings --recordings my/recordings
    """
    claim_ids = [name for name in what if name != RECORDINGS]
    chosen = select(claim_ids, quick=quick) if claim_ids or not what else ()
    recorded = recordings or RECORDINGS in what or not (what or quick)
    if not chosen and claim_ids:
        raise InputError.single("", "", f"none of these claims is quick: {', '.join(claim_ids)}", "leave out --quick")
    if html is not None:
        check_target(html)
    if find_spec("numba") is None and any(claim.paper.key == "home" for claim in chosen) and not quiet:
        click.echo("claims of HOME take very long without numba; use a version of Python that numba supports", err=True)
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
        click.echo(f"stopped after {count.done} runs; run the same command to resume", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **reproduction.to_dict()}, indent=2, allow_nan=False))
    else:
        show(Screen(), reproduction)
        if html is not None:
            click.echo(f"\nwritten to {html}")
    _end(reproduction)


def show(screen: Screen, reproduction: Reproduction) -> None:
    """Prints the claims and rules of each paper, the recordings and the summary; for a single claim, all details."""
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
        if rules := [rule for rule in reproduction.rules if rule.paper is paper]:
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
    _show_facts(screen, rule, (), "broken" if rule.broken else "verified by tests")
    _print(screen, rule_lines([rule], screen.width, every=True))


def _show_facts(screen: Screen, claim: Claim, sources: Iterable[str], verdict: str) -> None:
    section = claim.section
    rows = [
        ("states", section.states),
        ("paper", f"{claim.paper.name}, {section.where} ({claim.paper.source})"),
        *(("here", source) for source in sources),
        ("fit", section.fit or "no parameter was fitted to it"),
        ("inferred", "the paper does not state it explicitly" if section.inferred else ""),
        ("verdict", verdict),
    ]
    screen.print(Text(claim.id, style="bold"))
    screen.print(facts((name, text) for name, text in rows if text))
    screen.print()


def _show_recordings(screen: Screen, recordings: Recordings) -> None:
    screen.print(Text("Recordings compared with simulation", style="bold"))
    _print(screen, table_lines(RECORDING_HEADINGS, recordings.rows(), screen.width))
    if managed := recordings.managed_rows():
        screen.print()
        _print(screen, table_lines(MANAGED_HEADINGS, managed, screen.width))
    screen.print()
    for note in recordings.notes():
        screen.print(Text(note, style="dim"))


def _show_why(screen: Screen, outcomes: Iterable[ClaimOutcome]) -> None:
    """Prints each assumption once, with a table per claim below it."""
    causes: dict[str, list[tuple[ClaimOutcome, Experiment]]] = {}
    for outcome in outcomes:
        for experiment in outcome.experiments:
            causes.setdefault(experiment.name, []).append((outcome, experiment))
    for name, experiments in causes.items():
        screen.print()
        screen.print(Text(f"why: {name}", style="bold"))
        _print(screen, says_lines(experiments[0][1], screen.width))
        for outcome, experiment in experiments:
            screen.print()
            _print(screen, experiment_lines(outcome, experiment, screen.width))


def _print(screen: Screen, lines: Iterable[Line]) -> None:
    for line in lines:
        style = "bold" if line.heading else "dim" if line.note else ""
        text = Text(line.text, style=style)
        text.append(line.ending, style=_COLOURS[line.verdict] if line.verdict else style)
        # The lines are already wrapped; test ids must not be broken.
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
        message = f"could not run {', '.join(ids)}: {why}"
        click.echo(f"\n{wrapped(message, before=0)}", err=True)
    if reasons:
        sys.exit(BAD_INPUT)
