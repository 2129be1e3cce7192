"""Measures and saves block values during an iteration: compressed sizes, feature maps and snapshots of memory."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simgpu.io.atomic import atomic_folder
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import BlockNote
from simgpu.trace.model import Block

#: Returns (codec, layout, compressed bytes) of an array, one row per pair of codec and layout.
Measure = Callable[[NDArray[Any]], Iterable[tuple[str, str, int]]]

_LONGEST_NAME = 120


@dataclass(frozen=True)
class Maps:
    """What to do with the values of feature maps.

    measure: measures compressed sizes; None for none.
    folder: saves the values as ``.npy`` files; None to save none.
    """

    measure: Measure | None = None
    folder: Path | None = None

    def show(self, tensor: torch.Tensor, block: BlockNote) -> None:
        """Process a block just written through this tensor; a later write replaces the result."""
        if self.measure is None and self.folder is None:
            return
        array = array_of(tensor)
        if self.measure is not None:
            block.sizes = tuple(self.measure(array))
        if self.folder is not None:
            unnamed = self.folder / _UNNAMED
            unnamed.mkdir(exist_ok=True)
            block.map_file = block.map_file or unnamed / f"{len(list(unnamed.iterdir()))}.npy"
            np.save(block.map_file, array)

    def name_files(self, notes: Sequence[BlockNote], blocks: Sequence[Block]) -> None:
        """Rename the saved feature maps to the ids of their blocks; call it when these are known."""
        retained = [(note.map_file, block.id) for note, block in zip(notes, blocks, strict=True) if note.map_file]
        for (file, _), name in zip(retained, file_names([name for _, name in retained]), strict=True):
            file.rename(file.parent.with_name(name))
        if retained:
            retained[0][0].parent.rmdir()


@contextmanager
def output_folder(folder: Path | None) -> Iterator[Path | None]:
    """Yields a folder to write to, which is published atomically; raises `InputError` if `folder` is not empty."""
    if folder is None:
        yield None
        return
    with atomic_folder(folder, lambda real: f"'{min(entry.name for entry in real.iterdir())}'") as part:
        yield part


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns the values of the storage behind a tensor: in the tensor's shape if it covers the storage, else flat.

    NumPy has no bfloat16; its bit patterns are returned as uint16.
    """
    storage, values = tensor.untyped_storage(), tensor.detach()
    if values.numel() * values.element_size() != storage.nbytes():
        values = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    if values.dtype is torch.bfloat16:
        patterns: NDArray[Any] = values.view(torch.int16).cpu().numpy().view(np.uint16)
        return patterns
    array: NDArray[Any] = values.cpu().numpy()
    return array


def file_names(ids: Sequence[str]) -> list[str]:
    """Returns a unique file name per block: its id, with ``_`` for characters that some file systems do not support.

    >>> file_names(["conv1:relu_", "conv1/relu_", "Conv1:relu_"])
    ['conv1_relu_.npy', 'conv1_relu_-2.npy', 'Conv1_relu_-3.npy']
    """
    taken: set[str] = set()
    names = []
    for block in ids:
        stem = name = re.sub(r"[^A-Za-z0-9._-]", "_", block)[:_LONGEST_NAME].lstrip(".") or "map"
        number = 1
        while name.lower() in taken:  # some file systems ignore case
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        names.append(f"{name}.npy")
    return names


#: Returns (codec, layout, bytes of a memory-entry before, bytes after, number of such entries) for a block's bytes.
MeasureEntries = Callable[[NDArray[np.uint8]], Iterable[tuple[str, str, int, int, int]]]


@dataclass(frozen=True)
class Values:
    """What to do with the values of blocks during an iteration.

    maps: for feature maps.
    entries: measures the memory-entries of all blocks; None for none. A block from before the iteration is measured
        with its initial values, any other after its last write.
    snapshots: snapshots of memory to take; None for none.
    """

    maps: Maps = field(default_factory=Maps)
    entries: MeasureEntries | None = None
    snapshots: MemorySnapshots | None = None

    def begin(self, ledger: Ledger) -> None:
        """Called when all blocks from before the iteration have been entered."""
        self.changed(ledger, range(len(ledger.blocks)), ())

    def changed(self, ledger: Ledger, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Called after a kernel has read and written the blocks of these numbers."""
        if self.entries is None:
            return
        for number in reads:
            if not ledger.blocks[number].entries:  # from before the iteration, or written by the host
                self._measure(ledger, number, self.entries)
        for number in writes:
            if not ledger.blocks[number].persistent:
                self._measure(ledger, number, self.entries)

    def between_operators(self, ledger: Ledger) -> None:
        """Called while no operator runs."""
        if self.snapshots is not None:
            self.snapshots.between_operators(ledger)

    @staticmethod
    def _measure(ledger: Ledger, number: int, measure: MeasureEntries) -> None:
        storage = ledger.storage_of(number)
        if storage is not None:
            ledger.blocks[number].entries = tuple(measure(bytes_of(storage)))


def bytes_of(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    """Returns the bytes of a storage, in memory order.

    >>> bytes_of(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T.untyped_storage()).tolist()
    [1, 2, 3, 4]
    """
    result: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy()
    return result


#: Folder of the files whose blocks have no ids yet.
_UNNAMED = "unnamed"
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@dataclass
class MemorySnapshots:
    """Snapshots of all live blocks in one iteration, each in its own folder below `folder`.

    after: positions of the kernels after which snapshots are taken, ascending. Live blocks are the tensors that PyTorch
    holds when the next operator begins, without temporaries of operators and other memory that PyTorch holds.
    """

    folder: Path
    after: Sequence[int]
    _taken: int = field(default=0, init=False)

    def between_operators(self, ledger: Ledger) -> None:
        """Called while no operator runs; takes a snapshot if one is due."""
        if self._taken == len(self.after) or ledger.kernels <= self.after[self._taken]:
            return
        unnamed = self.folder / _UNNAMED
        unnamed.mkdir(exist_ok=True)
        for number, storage in ledger.living():
            block = ledger.blocks[number]
            block.dumped[self._taken] = unnamed / f"{self._taken}-{number}.npy"
            np.save(block.dumped[self._taken], _row_of(storage, block))
        self._taken += 1

    def name_files(self, notes: Sequence[BlockNote], blocks: Sequence[Block], kernels: Sequence[str]) -> None:
        """Move each snapshot to its folder, and name files after blocks. kernels: ids of all kernels, in order."""
        folders = [
            self.folder / f"{place + 1:0{len(str(len(self.after)))}}-after-{kernels[kernel]}"
            for place, kernel in enumerate(self.after)
        ]
        for folder in folders:
            folder.mkdir()
        names = file_names([block.id for block in blocks])
        for note, name in zip(notes, names, strict=True):
            for place, file in note.dumped.items():
                file.rename(folders[place] / name)
        shutil.rmtree(self.folder / _UNNAMED)  # including blocks merged into another, as sums of gradients are


def spread_over(durations: Sequence[int], count: int) -> list[int]:
    """Returns the positions of `count` kernels: the first that ends at or after the middle of each equal part of time.

    durations: of all kernels, at least `count` values. No kernel is selected twice: if one is longer than a part, the
    next kernels are used instead.

    >>> spread_over([10] * 10, 5), spread_over([97, 1, 1, 1], 3)
    ([0, 2, 4, 6, 8], [0, 1, 2])
    """
    ends = list(itertools.accumulate(durations))
    chosen: list[int] = []
    for part in range(count):
        middle = (2 * part + 1) * ends[-1]
        first = next(place for place, end in enumerate(ends) if 2 * count * end >= middle)
        after = chosen[-1] + 1 if chosen else 0
        chosen.append(min(max(first, after), len(ends) - count + part))
    return chosen


def _row_of(storage: torch.UntypedStorage, block: BlockNote) -> NDArray[Any]:
    """Returns all values of a storage in memory order; as unsigned integers if NumPy does not have their format."""
    dtype = getattr(torch, str(block.dtype))
    row = torch.empty(0, dtype=dtype, device=storage.device).set_(storage).cpu()
    try:
        result: NDArray[Any] = row.numpy()
    except TypeError:
        result = row.view(_UNSIGNED[dtype.itemsize]).numpy()
    return result
