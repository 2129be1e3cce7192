"""Which storages there are: a set of them that keeps none alive, and all that are alive now."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator

import torch


class StorageSet:
    """A set of storages that forgets each when it is freed.

    PyTorch reuses the addresses of freed storages, so that an address alone would name another one later.

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
        """Know a storage from now on."""
        if storage not in self:
            key, references = storage._cdata, self._references
            references[key] = weakref.ref(storage, lambda gone: _forget(references, key, gone))

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is storage

    def __iter__(self) -> Iterator[torch.UntypedStorage]:
        for reference in list(self._references.values()):
            storage = reference()
            if storage is not None:
                yield storage


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage behind a tensor; None for one that has none of its own (sparse ones, and such as wrap others)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def living_storages(device: torch.device) -> StorageSet:
    """Every storage on a device that some tensor known to Python has now."""
    storage_set = StorageSet()
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device == device:
            storage = storage_of(thing)
            if storage is not None:
                storage_set.add(storage)
    return storage_set


def _forget(
    references: dict[int, weakref.ref[torch.UntypedStorage]], key: int, gone: weakref.ref[torch.UntypedStorage]
) -> None:
    if references.get(key) is gone:  # else the address is another storage's by now
        del references[key]
