"""``simgpu list scenarios``: lists the scenarios and studies that ship with simgpu."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, facts
from simgpu.experiments.scenarios.catalogue import shipped_scenarios, shipped_studies


@click.command()
def scenarios() -> None:
    """List the scenarios and studies that ship with simgpu.

    \b
    simgpu list scenarios
    simgpu run NAME     run a scenario: one trace under its policies
    simgpu study NAME   run a study: several traces and published numbers
    """
    screen = Screen()
    screen.print("scenarios: simgpu run NAME")
    screen.print(facts(shipped_scenarios().items()))
    screen.print()
    screen.print("studies: simgpu study NAME")
    screen.print(facts(shipped_studies().items()))
