"""``simgpu plan show``: what a plan does, and what it is predicted to cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from simgpu.cli.screen import Screen, facts, indented
from simgpu.torch.plan import Plan, read_plan
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from simgpu.plans.projections import Projection


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


def show_settings(plan: Plan, settings: Sequence[Projection], why_none: str, *, error: bool = False) -> None:
    """Print the settings of other frameworks, and what they cost against a plan; without any, why there are none.

    error: to stderr
    """
    rows = [] if settings else [("others", why_none)]
    for each in settings:
        if each.time_ns is None:
            cost = f"does not fit: its smallest peak is {format_bytes(each.peak)}"
        else:
            slower = each.time_ns / plan.predicted.step_ns - 1
            cost = f"{format_time(each.time_ns)} ({slower:+.1%} to the plan), peak {format_bytes(each.peak)}"
        rows += [(each.framework, each.setting), ("", cost), ("", f"cannot do: {each.lost}")]
    screen = Screen(error)
    screen.print()
    screen.print(facts(rows))
