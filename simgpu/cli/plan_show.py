"""``simgpu plan show``: what a plan does, and what it is predicted to cost."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.screen import Screen, facts, indented
from simgpu.torch.plan import Plan, read_plan


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="PLAN")
def show(file: Path) -> None:
    """Show what the plan in file PLAN does, and what it is predicted to cost.

    \b
    simgpu plan show plan.json
    """
    show_plan(read_plan(file))


def show_plan(plan: Plan) -> None:
    """Print a plan."""
    from simgpu.plans.summary import facts as facts_of
    from simgpu.plans.summary import summary

    screen = Screen()
    screen.print(facts(facts_of(plan)))
    screen.print()
    for line in summary(plan):
        screen.print(indented(Text(line)))
