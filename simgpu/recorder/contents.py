"""What is done with the values of blocks while an iteration is watched, and the bytes of blocks as they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from simgpu.recorder.ledger import Ledger
from simgpu.recorder.maps import Maps
from simgpu.recorder.snapshots import Snapshots

#: Gives codec, layout, bytes of an entry before and after, and how many entries of a block's bytes become that.
MeasureEntries = Callable[[NDArray[np.uint8]], Iterable[tuple[str, str, int, int, int]]]


@dataclass(frozen=True)
class Values:
    """Feature maps as `maps` has it; entries of all blocks where `entries` measures them; snapshots where asked for.

    A block that is there before the iteration counts with what it holds then, any other with its last write.
    """

    maps: Maps = field(default_factory=Maps)
    entries: MeasureEntries | None = None
    snapshots: Snapshots | None = None

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
    found: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy()
    return found
