"""Real memory for blocks, never more at once than a limit."""

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

    sizes: bytes of each block. limit: bytes for all, None for none. alignment: each block counts as a multiple of it.
    make: a new buffer of so many bytes.

    The host asks ahead of the device. What is given back stays until the event behind it has happened, so memory is
    handed out again only when it is really free: `take` waits until that is enough, for the oldest release first. Then
    what all streams hold at any time on the device fits into the limit. Free buffers are kept for blocks of their size,
    as PyTorch keeps them on a GPU, as long as they fit into the limit too.
    """

    def __init__(
        self, sizes: Sequence[int], limit: int | None, alignment: int, make: Callable[[int], torch.Tensor]
    ) -> None:
        self._sizes = sizes
        self._counted = [aligned(size, alignment) for size in sizes]
        self._limit = limit
        self._alignment = alignment
        self._make = make
        self._buffers: dict[int, torch.Tensor] = {}
        self._leaving: deque[tuple[Event, list[tuple[int, torch.Tensor]]]] = deque()
        self._kept: dict[int, list[torch.Tensor]] = {}  # by their bytes
        self._kept_bytes = 0
        self._held = 0
        #: Bytes that the host had handed out at most, with those whose release was still to happen.
        self.most = 0

    def __getitem__(self, block: int) -> torch.Tensor:
        """The buffer of a block that holds memory."""
        return self._buffers[block]

    def bytes_of(self, blocks: Sequence[int]) -> int:
        """What blocks take together."""
        return sum(self._counted[b] for b in blocks)

    def take(self, blocks: Sequence[int]) -> int:
        """Find buffers for blocks, when there is room for all of them; returns their bytes.

        Raises `ProgramError` where there is no room and nothing is leaving.
        """
        needed = self.bytes_of(blocks)
        while self._leaving and (self._leaving[0][0].is_done() or self._lacks(needed)):
            self._let_one_go()
        if self._lacks(needed):
            what = f"{needed} B are asked for, {self._held} of {self._limit} B are held, and nobody will give any back"
            raise ProgramError(what)
        self._held += needed
        self.most = max(self.most, self._held)
        found = {b: self._reused(b) for b in blocks}
        while self._kept and self._lacks(self._kept_bytes):
            self._pop_kept(next(iter(self._kept)))
        for b, buffer in found.items():
            self._buffers[b] = self._make(self._sizes[b]) if buffer is None else buffer
        return needed

    def give_back(self, blocks: Sequence[int], event: Event) -> int:
        """Let go of blocks when the event has happened; returns their bytes."""
        self._leaving.append((event, [(b, self._buffers.pop(b)) for b in blocks]))
        return self.bytes_of(blocks)

    def _let_one_go(self) -> None:
        """Wait for the oldest release. In a function of its own, so that nothing here refers to its buffers longer."""
        event, gone = self._leaving.popleft()
        event.synchronize()
        for b, buffer in gone:
            self._keep(b, buffer)

    def _keep(self, block: int, buffer: torch.Tensor) -> None:
        """A block's buffer is free."""
        self._kept.setdefault(self._sizes[block], []).append(buffer)
        self._kept_bytes += self._counted[block]
        self._held -= self._counted[block]

    def _reused(self, block: int) -> torch.Tensor | None:
        """A kept buffer of a block's size."""
        return self._pop_kept(self._sizes[block]) if self._sizes[block] in self._kept else None

    def _pop_kept(self, size: int) -> torch.Tensor:
        buffers = self._kept[size]
        buffer = buffers.pop()
        self._kept_bytes -= aligned(size, self._alignment)
        if not buffers:
            del self._kept[size]
        return buffer

    def _lacks(self, needed: int) -> bool:
        return self._limit is not None and self._held + needed > self._limit
