"""Memory that an operator takes and gives back while it runs, which no tensor ever shows.

Lives here: asking the allocator for it. Does not live here: what becomes of it (a workspace block, `ledger`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Scratch(Protocol):
    """Told before an operator runs, asked after it."""

    def start(self) -> None:
        """The operator is about to run."""

    def used(self) -> int:
        """Bytes the operator took beside its results and gave back."""


class NoScratch:
    """The CPU's allocator keeps no count: nothing is known, so nothing is said."""

    def start(self) -> None:
        """Nothing to do."""

    def used(self) -> int:
        """None that we know of."""
        return 0


class CudaScratch:
    """What PyTorch's CUDA allocator held at most while the operator ran, beyond what it holds afterwards.

    The allocator counts when it is asked for memory, on the host, so a device that lags behind changes nothing.
    """

    def __init__(self, device: torch.device, memory: Any = None) -> None:
        self._device = device
        self._memory = memory or torch.cuda

    def start(self) -> None:
        """Count the peak from here."""
        self._memory.reset_peak_memory_stats(self._device)

    def used(self) -> int:
        """Bytes from what is held now up to the peak."""
        held = int(self._memory.memory_allocated(self._device))
        return int(self._memory.max_memory_allocated(self._device)) - held
