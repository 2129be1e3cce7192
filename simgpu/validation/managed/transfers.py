"""Bytes copied between device and host, and host buffers that are reused, since pinning memory takes long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch

from simgpu.validation.devices import Device


class Copied(NamedTuple):
    """Bytes copied from the device to the host, and back."""

    d2h_bytes: int
    h2d_bytes: int


@dataclass(slots=True)
class Tally:
    """Counts bytes as copies are asked for.

    >>> tally = Tally()
    >>> tally.d2h_bytes += 8
    >>> tally.take(), tally.take()
    (Copied(d2h_bytes=8, h2d_bytes=0), Copied(d2h_bytes=0, h2d_bytes=0))
    """

    d2h_bytes: int = 0
    h2d_bytes: int = 0

    def take(self) -> Copied:
        """What was counted since it was last asked."""
        taken = Copied(self.d2h_bytes, self.h2d_bytes)
        self.d2h_bytes = self.h2d_bytes = 0
        return taken


class HostBuffer:
    """A buffer that goes back to where it came from when nobody refers to this any more.

    Who lets go of it must have had compute wait for the copies from and to it.
    """

    def __init__(self, data: torch.Tensor, free: list[torch.Tensor]) -> None:
        self.bytes = data
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.bytes)


class HostBuffers:
    """All buffers of one run, by their size: an iteration asks for the sizes that the one before it asked for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, nbytes: int) -> HostBuffer:
        """A buffer that nobody uses, a new one where there is none."""
        free = self._free[nbytes]
        return HostBuffer(free.pop() if free else self._device.host_buffer(nbytes), free)
