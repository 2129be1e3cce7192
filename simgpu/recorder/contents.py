"""Values of blocks during a watched iteration: sparsity, compressed sizes, feature maps and snapshots of memory."""

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

#: Gives the codec, the layout and the bytes of what an array becomes, once for each pair of the former.
Measure = Callable[[NDArray[Any]], Iterable[tuple[str, str, int]]]

_LONGEST_NAME = 120


@dataclass(frozen=True)
class Maps:
    """What is done with the values of feature maps: measured where `measure` is given, kept where `folder` is."""

    measure: Measure | None = None
    folder: Path | None = None

    def show(self, tensor: torch.Tensor, block: BlockNote) -> None:
        """A block has been written through this tensor; after several writes the last one's stands."""
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
        """Give the kept maps the names of their blocks, once these have any."""
        retained = [(note.map_file, block.id) for note, block in zip(notes, blocks, strict=True) if note.map_file]
        for (file, _), name in zip(retained, file_names([name for _, name in retained]), strict=True):
            file.rename(file.parent.with_name(name))
        if retained:
            retained[0][0].parent.rmdir()


@contextmanager
def output_folder(folder: Path | None) -> Iterator[Path | None]:
    """The folder to fill with maps, which appears whole or not at all. `InputError` where it holds anything."""
    if folder is None:
        yield None
        return
    with atomic_folder(folder, lambda real: f"'{min(entry.name for entry in real.iterdir())}'") as part:
        yield part


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """The values of the storage behind a tensor: in the tensor's shape where it shows all of them, else as a row.

    NumPy has no bfloat16: its bit patterns come as uint16.
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
    """A file name for each block: its id with ``_`` for what not every file system takes; numbered if taken.

    >>> file_names(["conv1:relu_", "conv1/relu_", "Conv1:relu_"])
    ['conv1_relu_.npy', 'conv1_relu_-2.npy', 'Conv1_relu_-3.npy']
    """
    taken: set[str] = set()
    names = []
    for block in ids:
        stem = name = re.sub(r"[^A-Za-z0-9._-]", "_", block)[:_LONGEST_NAME].lstrip(".") or "map"
        number = 1
        while name.lower() in taken:  # some file systems do not tell cases apart
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        names.append(f"{name}.npy")
    return names


#: Gives codec, layout, bytes of an entry before and after, and how many entries of a block's bytes become that.
MeasureEntries = Callable[[NDArray[np.uint8]], Iterable[tuple[str, str, int, int, int]]]


@dataclass(frozen=True)
class Values:
    """Feature maps as `maps` has it; entries of all blocks where `entries` measures them; snapshots where asked for.

    A block that is there before the iteration counts with what it holds then, any other with its last write.
    """

    maps: Maps = field(default_factory=Maps)
    entries: MeasureEntries | None = None
    snapshots: MemorySnapshots | None = None

    def begin(self, ledger: Ledger) -> None:
        """Everything that is there before the iteration has been entered."""
        self.changed(ledger, range(len(ledger.blocks)), ())

    def changed(self, ledger: Ledger, reads: Iterable[int], writes: Iterable[int]) -> None:
        """A kernel has read and written blocks of these numbers."""
        if self.entries is None:
            return
        for number in reads:
            if not ledger.blocks[number].entries:  # there from before, or put there by the host
                self._measure(ledger, number, self.entries)
        for number in writes:
            if not ledger.blocks[number].persistent:
                self._measure(ledger, number, self.entries)

    def between_operators(self, ledger: Ledger) -> None:
        """No operator is running."""
        if self.snapshots is not None:
            self.snapshots.between_operators(ledger)

    @staticmethod
    def _measure(ledger: Ledger, number: int, measure: MeasureEntries) -> None:
        storage = ledger.storage_of(number)
        if storage is not None:
            ledger.blocks[number].entries = tuple(measure(bytes_of(storage)))


def bytes_of(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    """The bytes of a storage, in the order in which they lie there.

    >>> bytes_of(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T.untyped_storage()).tolist()
    [1, 2, 3, 4]
    """
    result: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy()
    return result


#: Where files are while their blocks have no ids.
_UNNAMED = "unnamed"
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@dataclass
class MemorySnapshots:
    """Snapshots of one iteration, each in a folder of its own below `folder`.

    after: positions of the kernels behind which they are taken, ascending. Live is what PyTorch holds when the next
    operator begins: no temporary within an operator, and no memory that it holds beyond the iteration's tensors.
    """

    folder: Path
    after: Sequence[int]
    _taken: int = field(default=0, init=False)

    def between_operators(self, ledger: Ledger) -> None:
        """No operator is running; takes the snapshot that is due, if any."""
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
        """Put each snapshot into its folder, files named after their blocks. kernels: ids of all kernels, in order."""
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
        shutil.rmtree(self.folder / _UNNAMED)  # with blocks that were another's memory, as sums of gradients are


def spread_over(durations: Sequence[int], count: int) -> list[int]:
    """Positions of `count` kernels, of which each ends next after the middle of one of `count` equal parts of the time.

    durations: of all kernels, at least `count` of them. No kernel is taken twice: where one is longer than such a part,
    those that follow it stand in.

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
    """All values of a storage, one after another as they lie; as unsigned numbers where NumPy lacks their format."""
    dtype = getattr(torch, str(block.dtype))
    row = torch.empty(0, dtype=dtype, device=storage.device).set_(storage).cpu()
    try:
        result: NDArray[Any] = row.numpy()
    except TypeError:
        result = row.view(_UNSIGNED[dtype.itemsize]).numpy()
    return result
