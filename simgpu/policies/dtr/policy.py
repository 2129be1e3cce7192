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
from simgpu.online.view import Flight, Ints, View
from simgpu.policies.base import parameter
from simgpu.policies.common.deciding import OnlinePolicy
from simgpu.policies.dtr.neighbours import Alone, Classes, Regions, Relatives, Surroundings


@dataclass(frozen=True)
class Dtr(OnlinePolicy):
    """Dynamic tensor rematerialization."""

    name = "dtr"
    transforms = (Functional(),)
    offloads = False
    libraries = ("numba",)
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


class _Dropping:
    def __init__(self, heuristic: str, graph: TaskGraph) -> None:
        self._heuristic = heuristic
        self._costs = self._costs_of(graph)
        # Blocks come and leave thousands of times an iteration.
        self.left, self.came = self._costs.left, self._costs.came

    def short(self, view: View, need: int) -> Iterator[Decision]:
        while need > 0:
            blocks = np.flatnonzero((view.here > view.busy) & view.can_drop)
            if not len(blocks):
                return
            chosen = _lowest(blocks, self._values(view, blocks), view.since)
            yield Drop(chosen)
            need -= int(view.sizes[chosen])

    def before(self, view: View, kernel: int) -> tuple[()]:
        return ()

    def ended(self, view: View, flight: Flight) -> tuple[()]:
        return ()

    def _values(self, view: View, blocks: Ints) -> NDArray[np.float64]:
        if self._heuristic == "lru":
            return view.last_use_ns[blocks].astype(np.float64)
        sizes, costs = view.sizes[blocks].astype(np.float64), self._costs.around(blocks)
        if self._heuristic == "size":
            return _divided(np.ones(len(blocks)), sizes)
        if self._heuristic == "msps":
            return _divided(costs, sizes)
        return _divided(costs, sizes * (view.now_ns - view.last_use_ns[blocks]))

    def _costs_of(self, graph: TaskGraph) -> Surroundings:
        costs = Recomputation.of(graph).costs_ns
        match self._heuristic:
            case "dtr" | "msps":
                return Regions(costs, Relatives.of(graph), backward=self._heuristic == "msps")
            case "eq":
                return Classes(costs, Relatives.of(graph))
            case _:
                return Alone(costs)


def _divided(costs: Ints | NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Infinite where it is divided by nothing: a block without bytes, or one that is used now, stays."""
    values = np.full(len(by), np.inf)
    np.divide(costs, by, out=values, where=by > 0)
    return values


def _lowest(blocks: Ints, values: NDArray[np.float64], since: Ints) -> int:
    """The block with the lowest value: as in simrd, of several zeros what could leave first, else what could last."""
    least = values.min()
    equal = blocks[values == least]
    if len(equal) > 1:
        ages = since[equal]
        equal = equal[ages.argmin() if least == 0 else ages.argmax() :]
    return int(equal[0])
