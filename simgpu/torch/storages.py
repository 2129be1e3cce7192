"""A weak set of tensor storages, and all storages alive now."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator

import torch


class StorageSet:
    """A set of storages; a freed storage is removed.

    PyTorch reuses the addresses of freed storages, so an address alone does not identify a storage.

    >>> x = torch.zeros(3)
    >>> known = StorageSet([x.untyped_storage()])
    >>> x[1:].untyped_storage() in known, torch.zeros(3).untyped_storage() in known
    (True, False)
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage] = ()) -> None:
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for storage in storages:
            self.add(storage)

    def add(self, storage: torch.UntypedStorage) -> None:
        """Adds a storage."""
        if storage not in self:
            key, references = storage._cdata, self._references
            references[key] = weakref.ref(storage, lambda freed: _forget(references, key, freed))

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is storage

    def __iter__(self) -> Iterator[torch.UntypedStorage]:
        for reference in list(self._references.values()):
            storage = reference()
            if storage is not None:
                yield storage


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if it has none of its own (sparse tensors, wrappers)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def living_storages(device: torch.device) -> StorageSet:
    """The storages of all tensors on a device that Python's garbage collector knows."""
    storage_set = StorageSet()
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.Tensor) and candidate.device == device:
            storage = storage_of(candidate)
            if storage is not None:
                storage_set.add(storage)
    return storage_set


def _forget(
    references: dict[int, weakref.ref[torch.UntypedStorage]], key: int, freed: weakref.ref[torch.UntypedStorage]
) -> None:
    if references.get(key) is freed:  # otherwise the address already belongs to another storage
        del references[key]
