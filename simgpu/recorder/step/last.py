"""Cuts the last of several recorded steps out of the notes of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simgpu.recorder.notes import BlockNote, KernelNote


def last_step(
    kernels: Sequence[KernelNote], blocks: Sequence[BlockNote], begin: int
) -> tuple[list[KernelNote], list[BlockNote]]:
    """Returns the kernels from position `begin` on, and the blocks that live then or later.

    Blocks that lived before are persistent: they hold their values when the step begins. Without a step before, nothing
    changes.
    """
    if not begin:
        return list(kernels), list(blocks)
    used = {number for kernel in kernels[begin:] for number in (*kernel.reads, *kernel.writes)}
    before = {number for kernel in kernels[:begin] for number in (*kernel.reads, *kernel.writes)}
    kept = [
        number
        for number, block in enumerate(blocks)
        if (block.release is None or block.release >= begin)
        and (number in used or number in before or block.persistent)
    ]
    place = {number: position for position, number in enumerate(kept)}
    notes = [
        replace(
            kernel,
            reads=tuple(place[number] for number in kernel.reads),
            writes=tuple(place[number] for number in kernel.writes),
        )
        for kernel in kernels[begin:]
    ]
    return notes, [_cut(blocks[number], begin, number in before) for number in kept]


def _cut(block: BlockNote, begin: int, lived: bool) -> BlockNote:
    host = block.host_write
    return replace(
        block,
        persistent=block.persistent or lived or (host is not None and host < begin),
        host_write=None if host is None or host < begin or lived else host - begin,
        release=None if block.release is None else block.release - begin,
    )
