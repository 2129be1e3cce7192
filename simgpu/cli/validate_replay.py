"""``simgpu validate replay``: a simulated program's instructions on a real device."""

from __future__ import annotations

import click


@click.command()
def replay() -> None:
    """Issue a simulated program's instructions on a real device. Not there yet.

    \b
    simgpu validate replay
    """
    raise click.ClickException("simgpu validate replay is not there yet")
