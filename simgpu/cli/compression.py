"""``simgpu compression``: codecs, codec times on a GPU, and compressed memory."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "codecs": ("simgpu.cli.codec_list:codecs", "List the codecs."),
    "measure": ("simgpu.cli.codec_measure:measure_", "Compress an array and print sizes and ratios."),
    "tune": ("simgpu.cli.codec_tune:tune", "Find the best launch settings of a codec on a GPU."),
    "times": ("simgpu.cli.codec_times:times", "Compare models that predict codec times on a GPU."),
    "profile": ("simgpu.cli.buddy_profile:profile", "Profile memory for Buddy Compression: ratio and overflow."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS})
def compression() -> None:
    """Compress arrays and memory losslessly: sizes, times on a GPU, target ratios and overflow.

    \b
    simgpu compression codecs
    simgpu compression measure relu1.npy
    simgpu compression profile weights.npy relu1.npy
    """
