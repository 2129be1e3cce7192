"""`flashneuron`: offloads to an SSD what forward saves first (Bae et al., FlashNeuron, FAST 2021).

Tensors that backward needs are chosen in the order in which forward makes them, until the others fit with the weights
and the largest kernel. Each is written to the SSD after its last use in forward, without the host, one after the other.
Backward begins when all are written (`drain`), and they are read in the order of their uses, as far as memory allows.

The rules are those of the simulator of G10 (platformxlab/G10), which compares itself with FlashNeuron. Here it differs:

* Memory has no addresses; the simulator needs contiguous memory, and fetches only into its largest free part.
* On a node without a direct way to its SSD, tensors pass through the host; without an SSD they go to the host.

Neither compresses: the paper chooses whether tensors are written in half precision or as nonzero values, by measured
sparsity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import HOST
from simgpu.online.decisions import Decider, Decision, Evict, Fetch, Wait
from simgpu.online.view import View
from simgpu.policies.base import parameter
from simgpu.policies.common.deciding import OnlinePolicy, Quiet, evicted


@dataclass(frozen=True)
class FlashNeuron(OnlinePolicy):
    """Offload to an SSD in the order of forward."""

    name = "flashneuron"
    clairvoyant = True
    summary = "offloads what forward saves first to an SSD, until the rest fits; reads ahead in backward"
    source = "Bae et al., FlashNeuron, FAST 2021, by the simulator of G10, github.com/platformxlab/G10"

    drain: bool = parameter(True, "whether backward waits until all is written, as in the simulator of G10")

    def decider(self, graph: TaskGraph) -> Decider:
        """Offloads and reads ahead."""
        return _Offloading(graph, self.drain)


class _Offloading(Quiet):
    def __init__(self, graph: TaskGraph, drain: bool) -> None:
        self._graph, self._drain = graph, drain
        self._used = [tuple(dict.fromkeys((*graph.reads[k], *graph.writes[k]))) for k in range(len(graph.kernels))]
        self._turn = next((k for k, is_forward in enumerate(graph.is_forward) if not is_forward), len(self._used))
        self._leaving: defaultdict[int, list[int]] = defaultdict(list)
        self._chosen: set[int] = set()
        self._largest = 0

    def before(self, view: View, kernel: int) -> Iterator[Decision]:
        if kernel == 0:
            self._choose(view)
        to = next((memory for memory in view.places if memory != HOST), HOST)
        for b in self._leaving[kernel]:
            if view.here[b] and not view.busy[b] and view.has_room(to, b):
                yield Evict(b, to)
        if kernel < self._turn:
            return
        if self._drain and kernel == self._turn:
            yield from (Wait(b) for b in sorted(self._chosen))
        for b in self._ahead(view, kernel):
            if view.sizes[b] > view.free - self._largest:
                return
            yield Fetch(b)

    def short(self, view: View, need: int) -> Iterator[Decision]:
        blocks = view.candidates()
        return evicted(view, blocks[np.argsort(view.last_use_ns[blocks], kind="stable")], need)

    def _ahead(self, view: View, kernel: int) -> list[int]:
        """The chosen blocks that are away, in the order of their uses after a kernel."""
        away = self._chosen.intersection(set().union(*view.away.values()))
        uses = [(view.graph.next_use(b, kernel), b) for b in away if not view.here[b] and not view.busy[b]]
        return [b for _, _, b in sorted((k, self._used[k].index(b), b) for k, b in uses if k is not None)]

    def _choose(self, view: View) -> None:
        graph, sizes = self._graph, view.sizes.tolist()
        passing = {b for b, birth in enumerate(graph.births) if birth is not None and birth >= 0}
        self._largest = max(sum(sizes[b] for b in used if b in passing) for used in self._used)
        line = view.free - max(sum(sizes[b] for b in used) for used in self._used)
        saved = [b for b in sorted(passing) if graph.uses[b] and graph.uses[b][0] < self._turn <= graph.uses[b][-1]]
        total = sum(sizes[b] for b in saved)
        for b in sorted(saved, key=lambda each: graph.uses[each][0]):
            if total < line:
                break
            last = max(k for k in graph.uses[b] if k < self._turn)
            following = next(k for k in graph.uses[b] if k >= self._turn)
            if following > last + 1:
                self._leaving[last + 1].append(b)
                self._chosen.add(b)
                total -= sizes[b]
