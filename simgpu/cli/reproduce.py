"""``simgpu reproduce``: what papers claim, beside what is simulated here.

Does not live here: running and judging claims (`simgpu.reproduction`), or their texts (`simgpu.reproduction.tables`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.text import Text

from simgpu import __version__
from simgpu.cli.group import INTERRUPTED
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.sweep import Count, cores
from simgpu.reproduction.claims import select
from simgpu.reproduction.outcome import ClaimOutcome, Reproduction
from simgpu.reproduction.reproduce import Run
from simgpu.reproduction.tables import HEADINGS, SUMMARY_HEADINGS, claim_rows, summary_rows

FOLDER = Path("results", "reproduce")


@click.command()
@click.argument("what", nargs=-1)
@click.option("--quick", is_flag=True, help="Only the claims that take seconds together.")
@click.option("--why", is_flag=True, help="Of what is off, also run the experiments on its causes.")
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
    jobs: int | None,
    output: Path,
    restart: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate the claims of papers, WHAT of them, and show both numbers.

    WHAT is a paper (cswap, home, cdma, modnn, buddy), a claim, or the beginning of its id; without: all of them.

    \b
    simgpu reproduce --quick
    simgpu reproduce cdma.gain
    simgpu reproduce buddy --why
    """
    run = Run(select(what, quick=quick), output, restart)
    count = Count(of="runs", last="telling them")
    try:
        with progress(quiet) as say:
            found = run.outcome(
                causes=why, jobs=jobs or cores(), progress=lambda done, total: say(count.text(done, total))
            )
    except (KeyboardInterrupt, SystemExit) as stop:
        click.echo(f"stopped after {count.done} runs; the same command goes on", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **found.to_dict()}, indent=2, allow_nan=False))
    else:
        show(Screen(), found)


def show(screen: Screen, found: Reproduction) -> None:
    """The claims of each paper, and the summary."""
    for paper in dict.fromkeys(outcome.claim.paper for outcome in found.claims):
        outcomes = [outcome for outcome in found.claims if outcome.claim.paper is paper]
        screen.print(Text(f"{paper.name} ({paper.source})", style="bold"))
        rows = [row for outcome in outcomes for row in claim_rows(outcome)]
        screen.print(table(HEADINGS, rows, left=(0, 4)))
        for outcome in outcomes:
            _show_why(screen, outcome)
        screen.print()
    screen.print(table(SUMMARY_HEADINGS, summary_rows(found)))


def _show_why(screen: Screen, outcome: ClaimOutcome) -> None:
    for experiment in outcome.experiments:
        screen.print(Text(f"\n{outcome.claim.id}: {experiment.assumption.says}"))
        for step in experiment.steps:
            rows = [
                (name or step.label, str(part.simulated), f"{part.judged.verdict} {part.judged.told}")
                for name, part in step.parts.items()
            ]
            screen.print(Text(f"  {step.label}", style="dim"))
            screen.print(facts((row[0], f"{row[1]}  {row[2]}") for row in rows))
