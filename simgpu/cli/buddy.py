"""``simgpu buddy``: Buddy Compression of a program's memory."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "profile": ("simgpu.cli.buddy_profile:profile", "How small memory gets, and what overflows."),
}


@click.group(cls=LazyGroup, commands_elsewhere=_COMMANDS)
def buddy() -> None:
    """Buddy Compression: what its profiler finds in a program's memory, and the targets that follow.

    \b
    simgpu buddy profile weights.npy relu1.npy
    """
