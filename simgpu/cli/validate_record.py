"""``simgpu validate record``: measure this machine, and run models on it under four ways to manage memory."""

from __future__ import annotations

import click


@click.command()
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write.")
def record(output: str) -> None:
    """Measure this machine and run models on it under four methods. Not there yet.

    \b
    simgpu validate record -o my-gpu
    """
    raise click.ClickException("simgpu validate record is not there yet")
