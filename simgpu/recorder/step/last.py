"""Cuts the last of several recorded steps out of the notes of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from simgpu.recorder.notes import BlockNote, KernelNote, Saves


class LastStep(NamedTuple):
    """The notes of one step."""

    kernels: list[KernelNote]
    blocks: list[BlockNote]
    saves: Saves


def last_step(kernels: Sequence[KernelNote], blocks: Sequence[BlockNote], saves: Saves, begin: int) -> LastStep:
    """Returns the kernels from position `begin` on, the blocks that live then or later, and what is saved from then on.

    Blocks that lived before are persistent: they hold their values when the step begins. Without a step before, nothing
    changes.
    """
    if not begin:
        return LastStep(list(kernels), list(blocks), saves)
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
    cut = [_cut(blocks[number], begin, number in before) for number in kept]
    return LastStep(notes, cut, _cut_saves(saves, begin, place))


def _cut(block: BlockNote, begin: int, lived: bool) -> BlockNote:
    host = block.host_write
    return replace(
        block,
        persistent=block.persistent or lived or (host is not None and host < begin),
        host_write=None if host is None or host < begin or lived else host - begin,
        release=None if block.release is None else block.release - begin,
    )


def _cut_saves(saves: Saves, begin: int, place: Mapping[int, int]) -> Saves:
    def since(count: int | None) -> int | None:
        return None if count is None else max(count - begin, 0)

    skipped = sum(note.after < begin for note in saves.tensors)
    tensors = tuple(
        replace(
            note,
            block=place[note.block],
            after=note.after - begin,
            before=since(note.before),
            dropped=note.dropped if note.dropped == "end" else since(note.dropped),
            unused=since(note.unused),
            freed=since(note.freed),
        )
        for note in saves.tensors[skipped:]
        if note.block is not None
    )
    # A module may be given tensors that no kernel uses.
    calls = tuple(
        replace(
            call,
            after=call.after - begin,
            until=call.until - begin,
            first=call.first - skipped,
            stop=call.stop - skipped,
            inputs=tuple(place[b] for b in call.inputs if b in place),
            types=tuple(kind for b, kind in zip(call.inputs, call.types, strict=True) if b in place),
        )
        for call in saves.calls
        if call.after >= begin
    )
    return Saves(tensors, calls)
