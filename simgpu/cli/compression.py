"""``simgpu compression``: compressors, their times on a GPU, and compressed memory."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "codecs": ("simgpu.cli.codec_list:codecs", "List the codecs."),
    "measure": ("simgpu.cli.codec_measure:measure_", "Compress an array; print sizes and ratios."),
    "tune": ("simgpu.cli.codec_tune:tune", "Find launch settings of a codec on a GPU."),
    "times": ("simgpu.cli.codec_times:times", "Compare predictions of codec times on a GPU."),
    "profile": ("simgpu.cli.buddy_profile:profile", "Buddy Compression: ratio and overflow of memory."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def compression() -> None:
    """Lossless compression of arrays and of memory: sizes, times on a GPU, targets and overflow.

    \b
    simgpu compression codecs
    simgpu compression measure relu1.npy
    simgpu compression profile weights.npy relu1.npy
    """
