"""Feature maps as arrays: measured by what the caller brings, and kept as files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simgpu.io.atomic import atomic_folder
from simgpu.recorder.notes import BlockNote
from simgpu.trace.model import Block

#: Gives the codec, the layout and the bytes of what an array becomes, once for each pair of the former.
Measure = Callable[[NDArray[Any]], Iterable[tuple[str, str, int]]]

_LONGEST_NAME = 120
#: Where maps are kept while their blocks have no ids.
_UNNAMED = "unnamed"


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
            block.kept = block.kept or unnamed / f"{len(list(unnamed.iterdir()))}.npy"
            np.save(block.kept, array)

    def name_files(self, notes: Sequence[BlockNote], blocks: Sequence[Block]) -> None:
        """Give the kept maps the names of their blocks, once these have any."""
        kept = [(note.kept, block.id) for note, block in zip(notes, blocks, strict=True) if note.kept]
        for (file, _), name in zip(kept, file_names([name for _, name in kept]), strict=True):
            file.rename(file.parent.with_name(name))
        if kept:
            kept[0][0].parent.rmdir()


@contextmanager
def kept_in(folder: Path | None) -> Iterator[Path | None]:
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
