"""Snapshots of memory: what all live blocks hold at some moments of an iteration, as files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simgpu.recorder.ledger import Ledger
from simgpu.recorder.maps import file_names
from simgpu.recorder.notes import BlockNote
from simgpu.trace.model import Block

#: Where files are while their blocks have no ids.
_UNNAMED = "unnamed"
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@dataclass
class Snapshots:
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
        found: NDArray[Any] = row.numpy()
    except TypeError:
        found = row.view(_UNSIGNED[dtype.itemsize]).numpy()
    return found
