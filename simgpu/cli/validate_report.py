"""``simgpu validate report``: what was measured, beside its simulation."""

from __future__ import annotations

import click


@click.command()
@click.argument("recording", required=False)
def report(recording: str | None) -> None:
    """Compare RECORDING with its simulation. Not there yet.

    \b
    simgpu validate report
    """
    raise click.ClickException("simgpu validate report is not there yet")
