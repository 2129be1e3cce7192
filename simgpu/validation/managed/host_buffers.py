"""Host buffers that are used again: pinning memory anew for every copy would take longer than the copy."""

from __future__ import annotations

from collections import defaultdict

import torch

from simgpu.validation.devices import Device


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
