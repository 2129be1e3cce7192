"""Maps of a GPU's addresses over time: colours, and addresses without the gaps between segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgpu.trace.model import BlockKind

#: Of what is shown by itself, of everything else that is allocated, and of memory that is free.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE8866", "#44AA99")
OTHER, FREE = "#BBBBBB", "#F2F2F2"
#: Of what blocks hold; labels and what is not known look alike.
KIND_COLOURS = {
    BlockKind.ACTIVATION: COLOURS[0],
    BlockKind.GRADIENT: COLOURS[1],
    BlockKind.WEIGHT: COLOURS[2],
    BlockKind.WEIGHT_GRADIENT: COLOURS[6],
    BlockKind.OPTIMIZER_STATE: COLOURS[7],
    BlockKind.INPUT: COLOURS[4],
    BlockKind.WORKSPACE: COLOURS[3],
    BlockKind.LABEL: OTHER,
    BlockKind.OTHER: OTHER,
}


class Compacted(NamedTuple):
    """Ranges of addresses, joined where they overlap, one behind the other.

    starts: where each begins. offsets: where that is without the gaps. total: bytes of all.
    """

    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    total: int

    def places(self, addresses: ArrayLike) -> NDArray[np.int64]:
        """Where addresses are without the gaps; -1 before the first range."""
        values = np.asarray(addresses, dtype=np.int64)
        at = np.searchsorted(self.starts, values, side="right") - 1
        if not len(self.starts):
            return np.full(values.shape, -1, dtype=np.int64)
        return np.where(at < 0, -1, self.offsets[at] + values - self.starts[at])


def compacted(ranges: Iterable[tuple[int, int]]) -> Compacted:
    """The addresses of all ranges, each its first address and its end.

    >>> compacted([(100, 120), (110, 130), (500, 510)]).places([105, 500]).tolist()
    [5, 30]
    """
    joined: list[list[int]] = []
    for start, end in sorted(ranges):
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    table = np.array(joined, dtype=np.int64).reshape(-1, 2)
    sizes = table[:, 1] - table[:, 0]
    ends = np.cumsum(sizes)
    return Compacted(table[:, 0], ends - sizes, int(ends[-1]) if len(ends) else 0)
