"""`dtr`: Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021), as in the authors' simulator simrd.

When memory is short, DTR drops the block with the lowest h = cost / (size x staleness), and runs its kernels again when
it is needed. It knows nothing of what comes. Heuristics differ in what they count as cost, and whether they divide by
size and staleness:

* ``dtr``: the block and all dropped ones that would have to be recomputed for it or with it, in both directions;
* ``eq``: the same with classes that are joined and never split (the paper's h_DTR^eq);
* ``local``: the block alone; ``msps``: the block and what it would need, without staleness (Peng et al., 2020);
* ``lru``: without cost and size; ``size``: the largest block.

`deallocation`: ``eager`` gives memory back when the framework frees a block; ``ignore`` leaves that to the heuristic.
What was freed may be recomputed for another block in both cases.

Differences from simrd, where a trace is of operators on storages:

* A view takes no time when its block is recomputed; simrd runs it again.
* A kernel that runs again writes results that are still there in place; simrd holds them twice meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.functional import Functional
from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.decisions import Decider, Decision, Drop
from simgpu.online.recomputation import Recomputation
from simgpu.online.view import Ints, View
from simgpu.policies.base import parameter
from simgpu.policies.common.deciding import OnlinePolicy, Quiet
from simgpu.policies.dtr.neighbours import Alone, Classes, Regions, Surroundings, relatives


@dataclass(frozen=True)
class Dtr(OnlinePolicy):
    """Dynamic tensor rematerialization."""

    name = "dtr"
    transforms = (Functional(),)
    offloads = False
    summary = "drops by cost, size and staleness when memory is short; recomputes dropped blocks on demand"
    source = "Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021; github.com/uwsampl/dtr-prototype, simrd"

    heuristic: Literal["dtr", "eq", "local", "msps", "lru", "size"] = parameter("eq", "what is dropped first")
    deallocation: Literal["eager", "ignore"] = parameter("eager", "whether the framework's frees give memory back")

    def decider(self, graph: TaskGraph) -> Decider:
        """Drops by the heuristic."""
        return _Dropping(self.heuristic, graph)

    @property
    def frees(self) -> bool:
        """Whether the framework's frees give memory back."""
        return self.deallocation == "eager"


class _Dropping(Quiet):
    def __init__(self, heuristic: str, graph: TaskGraph) -> None:
        self._heuristic = heuristic
        self._costs = self._costs_of(graph)

    def short(self, view: View, need: int) -> Iterator[Decision]:
        while need > 0:
            blocks = view.candidates()
            blocks = blocks[view.can_drop[blocks]]
            if not len(blocks):
                return
            chosen = int(blocks[_lowest(self._values(view, blocks))])
            yield Drop(chosen)
            need -= int(view.sizes[chosen])

    def left(self, block: int) -> None:
        self._costs.left(block)

    def came(self, block: int) -> None:
        self._costs.came(block)

    def _values(self, view: View, blocks: Ints) -> NDArray[np.float64]:
        sizes, stale = view.sizes[blocks], view.now_ns - view.last_use_ns[blocks]
        costs = self._costs.around(blocks)
        with np.errstate(divide="ignore", invalid="ignore"):
            match self._heuristic:
                case "lru":
                    return view.last_use_ns[blocks].astype(np.float64)
                case "size":
                    return 1 / sizes
                case "msps":
                    return costs / sizes
                case _:
                    return np.where(sizes * stale > 0, costs / (sizes.astype(np.float64) * stale), np.inf)

    def _costs_of(self, graph: TaskGraph) -> Surroundings:
        recomputation = Recomputation.of(graph)
        costs, can_drop = recomputation.costs_ns, recomputation.can_drop
        match self._heuristic:
            case "dtr" | "msps":
                return Regions(costs, *relatives(graph, can_drop), backward=self._heuristic == "msps")
            case "eq":
                return Classes(costs, *relatives(graph, can_drop))
            case _:
                return Alone(costs)


def _lowest(values: NDArray[np.float64]) -> int:
    """The place of the lowest: as in simrd the first zero, else the last of equal ones."""
    least = int(np.argmin(values))
    if values[least] == 0:
        return least
    return len(values) - 1 - int(np.argmin(values[::-1]))
