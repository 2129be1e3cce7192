"""``simgpu compression codecs``: lists the codecs."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, table
from simgpu.compression.codecs.registry import codec_class, codec_names


@click.command()
def codecs() -> None:
    """List the codecs with a description and a source each.

    \b
    simgpu compression codecs
    """
    result = [codec_class(name) for name in codec_names()]
    rows = [(codec.name, codec.summary, codec.source) for codec in result]
    Screen().print(table(("codec", "description", "source"), rows, left=(0, 1, 2)))
