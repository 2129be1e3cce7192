"""`deepum`: prefetches what the kernels ahead will use (Jung et al., DeepUM, ASPLOS 2023), in blocks or page by page.

DeepUM extends NVIDIA's Unified Memory. Its tables of which kernel follows which, and which pages each uses, have learnt
an iteration when the next begins; so while a kernel runs, the pages of those ahead are migrated. A victim is what was
migrated to the device longest ago, and is not used by the kernels just ahead.

The rules are those of the simulator of G10 (platformxlab/G10), which compares itself with DeepUM: before kernel i, what
kernel i + `degree` uses is migrated. Here it differs:

* Memory that the framework has freed is free at once; in the simulator it stays until it is its turn to be evicted.
* `migrates=blocks`: blocks move whole, by copies, and kernels wait for them; weights and optimizer state are in device
  memory when an iteration begins and ends, as far as they fit. Only values are migrated ahead; the simulator allocates
  ahead too.
* `migrates=pages`: under Unified Memory (`simgpu.policies.unified`, with its defaults). Pages that are missing fault,
  and cost what faults cost there; the simulator takes the time of a kernel under page faults from a recording. For a
  fault, too, what the kernels just ahead use is evicted last; the simulator takes what was migrated first.

As in DeepUM, faults are served before prefetches. Its own text was not available: how it evicts is as the simulator has
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

import numpy as np

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.memory.chunks import Chunk, ResidentChunks
from simgpu.online.decisions import Decider, Decision, Fetch
from simgpu.online.view import Ints, View
from simgpu.policies.base import PlanContext, parameter, require_one_gpu, require_one_stream, require_undivided
from simgpu.policies.common.deciding import OnlinePolicy, Quiet, evicted
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program
from simgpu.program.paging import DRIVER
from simgpu.program.residency import on_demand, with_prefetches


@dataclass(frozen=True)
class DeepUm(OnlinePolicy):
    """Prefetching by learnt correlations."""

    name = "deepum"
    clairvoyant = True
    summary = "migrates what the kernels ahead use, and evicts what was migrated longest ago; moves blocks, or pages"
    source = "Jung et al., DeepUM, ASPLOS 2023, by the simulator of G10, github.com/platformxlab/G10"

    degree: int = parameter(8, "number of kernels ahead for which blocks are migrated")
    migrates: Literal["blocks", "pages"] = parameter(
        "blocks", "blocks: whole blocks, by copies; pages: under Unified Memory, where pages that are missing fault"
    )

    def plan(self, context: PlanContext) -> Program:
        """What happened in an iteration with blocks; the recorded iteration with its prefetches for pages.

        Raises `InputError` for a degree below 1, several streams or micro-batches, and for pages on several GPUs.
        """
        if self.degree < 1:
            raise InputError.single("", "parameters.degree", f"{self.degree} is less than 1", "give 1 or more kernels")
        if self.migrates == "blocks":
            return super().plan(context)
        require_one_stream(context.graph, self.name)
        require_undivided(context.graph, self.name)
        require_one_gpu(context, self.name)
        return with_prefetches(on_demand(plain_framework(context.graph), DRIVER), _ahead(context.graph, self.degree))

    def reclaim(self, residents: ResidentChunks) -> Chunk | None:
        """The chunk that was migrated longest ago, and that the kernels just ahead do not use; none for a prefetch if
        they use all."""
        for chunk in residents.arrived:
            if residents.next_use(chunk) > self.degree:
                return chunk
        return None if residents.for_prefetch else next(iter(residents.arrived))

    def decider(self, graph: TaskGraph) -> Decider:
        """Migrates ahead."""
        return _Prefetching(graph, self.degree)


def _used(graph: TaskGraph) -> list[tuple[int, ...]]:
    """For each kernel the blocks that it uses, in order."""
    return [tuple(dict.fromkeys((*graph.reads[k], *graph.writes[k]))) for k in range(len(graph.kernels))]


def _ahead(graph: TaskGraph, degree: int) -> list[tuple[int, ...]]:
    """For each kernel the blocks to prefetch when it begins: those of the kernel `degree` ahead, and before the first
    one those of all up to that. At the end they are those of the next iteration, as far as they exist already.

    >>> from simgpu.trace import chain as chains
    >>> graph = TaskGraph.of(chains.chain([5, 5], [7, 7], [100, 100]))
    >>> [[graph.blocks[b].id for b in blocks] for blocks in _ahead(graph, 1)]
    [['x1', 'x2', 'x3'], ['x2', 'x3', 'g2'], ['x1', 'g2', 'g1'], ['x1']]
    """
    used = _used(graph)
    count = len(used)
    first = [b for blocks in used[: degree + 1] for b in blocks]
    again = ([b for b in used[k % count] if graph.blocks[b].persistent] for k in range(count, degree + count))
    return [tuple(dict.fromkeys(blocks)) for blocks in islice(chain((first,), used[degree + 1 :], again), count)]


class _Prefetching(Quiet):
    def __init__(self, graph: TaskGraph, degree: int) -> None:
        self._used = _used(graph)
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
