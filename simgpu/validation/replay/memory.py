"""Real memory for blocks, never more at once than a limit.

Lives here: `RealMemory`, which lets the host wait for releases that have not happened yet. Does not live here: in which
order memory is asked for (`simgpu.validation.replay.order`), or the device (`simgpu.validation.devices`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simgpu.errors import ProgramError
from simgpu.memory.pool import aligned
from simgpu.validation.devices import Event

if TYPE_CHECKING:
    import torch


class RealMemory:
    """Buffers of blocks on the device or on the host.

    limit: bytes, None for none. alignment: each block counts as a multiple of it. buffer: makes the buffer of a block,
    given its number.

    The host asks ahead of the device. What is given back stays until the event behind it has happened, so memory is
    handed out again only when it is really free: `take` waits until that is enough, for the oldest release first. Then
    what all streams hold at any time on the device fits into the limit.
    """

    def __init__(
        self, sizes: Sequence[int], limit: int | None, alignment: int, buffer: Callable[[int], torch.Tensor]
    ) -> None:
        self._sizes = [aligned(size, alignment) for size in sizes]
        self._limit = limit
        self._buffer = buffer
        self._buffers: dict[int, torch.Tensor] = {}
        self._leaving: deque[tuple[Event, int, list[torch.Tensor]]] = deque()
        self._held = 0
        #: Bytes that the host had handed out at most, with those whose release was still to happen.
        self.most = 0

    def __getitem__(self, block: int) -> torch.Tensor:
        """The buffer of a block that holds memory."""
        return self._buffers[block]

    def bytes_of(self, blocks: Sequence[int]) -> int:
        """What blocks take together."""
        return sum(self._sizes[b] for b in blocks)

    def take(self, blocks: Sequence[int]) -> int:
        """Make buffers for blocks, when there is room for all of them; returns their bytes.

        Raises `ProgramError` where there is no room and nothing is leaving.
        """
        needed = self.bytes_of(blocks)
        while self._leaving and (self._leaving[0][0].is_done() or self._lacks(needed)):
            event, size, buffers = self._leaving.popleft()
            event.synchronize()
            buffers.clear()
            self._held -= size
        if self._lacks(needed):
            what = f"{needed} B are asked for, {self._held} of {self._limit} B are held, and nobody will give any back"
            raise ProgramError(what)
        for b in blocks:
            self._buffers[b] = self._buffer(b)
        self._held += needed
        self.most = max(self.most, self._held)
        return needed

    def give_back(self, blocks: Sequence[int], event: Event) -> int:
        """Let go of blocks when the event has happened; returns their bytes."""
        size = self.bytes_of(blocks)
        self._leaving.append((event, size, [self._buffers.pop(b) for b in blocks]))
        return size

    def _lacks(self, needed: int) -> bool:
        return self._limit is not None and self._held + needed > self._limit
