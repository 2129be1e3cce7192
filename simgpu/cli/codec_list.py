"""``simgpu compression codecs``: the codecs, what each does, and where it is from."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, table
from simgpu.compression.codecs.registry import codec_class, codec_names


@click.command()
def codecs() -> None:
    """List the codecs with what they do and where they are described.

    \b
    simgpu compression codecs
    """
    result = [codec_class(name) for name in codec_names()]
    rows = [(codec.name, codec.summary, codec.source) for codec in result]
    Screen().print(table(("codec", "what", "source"), rows, left=(0, 1, 2)))
