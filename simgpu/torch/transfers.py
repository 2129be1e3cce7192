"""Counts bytes copied between device and host; reuses host buffers, since pinning memory is slow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch

from simgpu.torch.copies import CopyDevice


class Copied(NamedTuple):
    """Bytes copied device-to-host and host-to-device."""

    d2h_bytes: int
    h2d_bytes: int


@dataclass(slots=True)
class Tally:
    """Counts bytes when copies are issued.

    >>> tally = Tally()
    >>> tally.d2h_bytes += 8
    >>> tally.take(), tally.take()
    (Copied(d2h_bytes=8, h2d_bytes=0), Copied(d2h_bytes=0, h2d_bytes=0))
    """

    d2h_bytes: int = 0
    h2d_bytes: int = 0

    def take(self) -> Copied:
        """Returns the counts and resets them to zero."""
        taken = Copied(self.d2h_bytes, self.h2d_bytes)
        self.d2h_bytes = self.h2d_bytes = 0
        return taken


class HostBuffer:
    """A buffer that returns to its `HostBuffers` when this object is freed.

    Before dropping the last reference, make compute wait for the copies from and to the buffer.
    """

    def __init__(self, data: torch.Tensor, free: list[torch.Tensor]) -> None:
        self.bytes = data
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.bytes)


class HostBuffers:
    """The free buffers of one run by size; every iteration needs the same sizes as the one before."""

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, nbytes: int) -> HostBuffer:
        """Returns a free buffer, a new one if there is none."""
        free = self._free[nbytes]
        return HostBuffer(free.pop() if free else self._device.host_buffer(nbytes), free)
