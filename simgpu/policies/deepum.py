"""`deepum`: prefetches what the kernels ahead will use (Jung et al., DeepUM, ASPLOS 2023), block by block.

DeepUM extends NVIDIA's Unified Memory. Its tables of which kernel follows which, and which pages each uses, have learnt
an iteration when the next begins; so while a kernel runs, the pages of those ahead are migrated. A victim is what was
migrated to the device longest ago, and is not used by the kernels just ahead.

The rules are those of the simulator of G10 (platformxlab/G10), which compares itself with DeepUM: before kernel i, what
kernel i + `degree` uses is migrated. Here it differs:

* Blocks move whole, by copies; the simulator moves pages, and charges a kernel for those that fault.
* Weights and optimizer state are in device memory when an iteration begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.decisions import Decider, Decision, Fetch
from simgpu.online.view import Ints, View
from simgpu.policies.base import parameter
from simgpu.policies.common.deciding import OnlinePolicy, Quiet, evicted


@dataclass(frozen=True)
class DeepUm(OnlinePolicy):
    """Prefetching by learnt correlations."""

    name = "deepum"
    clairvoyant = True
    summary = "migrates what the kernels ahead use, and evicts what was migrated longest ago; moves blocks, not pages"
    source = "Jung et al., DeepUM, ASPLOS 2023, by the simulator of G10, github.com/platformxlab/G10"

    degree: int = parameter(8, "number of kernels ahead for which blocks are migrated")

    def decider(self, graph: TaskGraph) -> Decider:
        """Migrates ahead. Raises `InputError` for a degree below 1."""
        if self.degree < 1:
            raise InputError.single("", "parameters.degree", f"{self.degree} is less than 1", "give 1 or more kernels")
        return _Prefetching(graph, self.degree)


class _Prefetching(Quiet):
    def __init__(self, graph: TaskGraph, degree: int) -> None:
        self._used = [tuple(dict.fromkeys((*graph.reads[k], *graph.writes[k]))) for k in range(len(graph.kernels))]
        self._degree = degree
        self._arrivals = np.zeros(len(graph.sizes), dtype=np.int64)
        self._count = 0
        #: Blocks that are to come, in order, and for which there has been no memory yet.
        self._due: list[int] = []

    def came(self, block: int) -> None:
        self._count += 1
        self._arrivals[block] = self._count

    def before(self, view: View, kernel: int) -> Iterator[Decision]:
        ahead = self._used[kernel + self._degree] if kernel + self._degree < len(self._used) else ()
        self._due += [b for b in ahead if b not in self._due]
        window = {b for used in self._used[kernel : kernel + self._degree + 1] for b in used}
        self._due = [b for b in self._due if b in window and not view.here[b] and not view.busy[b]]
        for b in list(self._due):
            if not any(b in there for there in view.away.values()):
                continue
            missing = int(view.sizes[b]) - view.free - view.leaving
            if missing > 0:
                yield from self._evicted(view, missing, window)
            if view.sizes[b] > view.free:
                return
            self._due.remove(b)
            yield Fetch(b)

    def short(self, view: View, need: int) -> Iterable[Decision]:
        """Evicts what was migrated longest ago, also if a kernel just ahead uses it."""
        return self._evicted(view, need, set())

    def _evicted(self, view: View, need: int, but: set[int]) -> Iterator[Decision]:
        blocks: Ints = view.candidates()
        blocks = blocks[np.argsort(self._arrivals[blocks], kind="stable")]
        return evicted(view, blocks[[int(b) not in but for b in blocks]] if but else blocks, need)
