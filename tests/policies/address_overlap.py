"""Whether blocks that a planned program places at overlapping addresses are ever allocated at the same time."""

from __future__ import annotations

from simgpu.program.instructions import DEVICE, Acquire, Await, Release, Signal
from tests.papers.modnn_plans import Round


def never_overlap(part: Round) -> bool:
    """Whether no two blocks of a round occupy the same address at the same time, derived from its events alone.

    Each stream tracks which awaited events it has seen; it may reuse memory once it has awaited the release.
    """
    position, heard = [0, 0], [[0, -1], [-1, 0]]
    message: dict[int, int] = {}
    freed: dict[int, tuple[int, int]] = {}
    taken: list[tuple[int, int, int]] = []
    moved = True
    while moved:
        moved = False
        for stream, code in enumerate(part.codes):
            while position[stream] < len(code):
                coming = code[position[stream]]
                if isinstance(coming, Await):
                    if coming.event not in message:
                        break
                    heard[stream][1 - stream] = max(heard[stream][1 - stream], message[coming.event])
                elif isinstance(coming, Signal):
                    message[coming.event] = position[stream]
                elif isinstance(coming, Acquire) and coming.memory == DEVICE:
                    for b, start in zip(coming.blocks, coming.offsets or (), strict=True):
                        stop = start + part.size(b)
                        for number, (low, high, _) in enumerate(taken):
                            if start < high and low < stop:
                                by, when = freed.get(number, (1 - stream, len(part.codes[1 - stream])))
                                if by != stream and when > heard[stream][by]:
                                    return False
                        taken.append((start, stop, b))
                elif isinstance(coming, Release) and coming.memory == DEVICE:
                    for b in coming.blocks:
                        freed[max(n for n, each in enumerate(taken) if each[2] == b)] = (stream, position[stream])
                position[stream] += 1
                moved = True
    return all(at == len(code) for at, code in zip(position, part.codes, strict=True))
