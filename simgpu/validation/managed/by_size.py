"""Which saved tensors an asynchronous offload takes: all large ones that the step itself made."""

from __future__ import annotations

import torch

from simgpu.torch.storages import StorageSet, living_storages, storage_of


class BySize:
    """Chooses tensors in storages of `min_bytes` or more; none from before the step (weights, buffers, the batch)."""

    def __init__(self, device: torch.device, min_bytes: int) -> None:
        self._min_bytes = max(1, min_bytes)
        self._persistent = living_storages(device)
        self._storages = StorageSet()

    def begin(self) -> None:
        """Nothing to do."""

    def chooses(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is large, and not persistent."""
        storage = storage_of(tensor)
        if storage is None or storage.nbytes() < self._min_bytes or storage in self._persistent:
            return False
        self._storages.add(storage)
        return True

    def end(self) -> None:
        """Storages that outlive the step are persistent, such as a table that a module fills in its first forward."""
        for storage in self._storages:
            self._persistent.add(storage)
        self._storages = StorageSet()
