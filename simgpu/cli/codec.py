"""``simgpu codec``: the compressors, and what they make of an array."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "list": ("simgpu.cli.codec_list:list_", "List the codecs."),
    "tune": ("simgpu.cli.codec_tune:tune", "Find launch settings of a codec on a GPU."),
    "times": ("simgpu.cli.codec_times:times", "Compare predictions of codec times on a GPU."),
    "measure": ("simgpu.cli.codec_measure:measure_", "Compress an array; print sizes and ratios."),
}


@click.group(cls=LazyGroup, commands_elsewhere=_COMMANDS)
def codec() -> None:
    """Lossless compressors for feature maps: what they make of an array, and their times on a GPU.

    \b
    simgpu codec list
    simgpu codec measure relu1.npy
    """
