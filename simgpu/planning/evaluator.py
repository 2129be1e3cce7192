"""What vectors of decisions cost: many at once, to the nanosecond and byte of the machine.

The functions of `simgpu.planning.clocks` are compiled by numba; run as plain Python they are the tests' oracle.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.planning import clocks, columns, remaking
from simgpu.planning.columns import FOUND, OVERHEAD
from simgpu.planning.options import Action, Decisions, Vector
from simgpu.planning.search.swarm import SwarmResult
from simgpu.planning.tables import Ints, Scratch, Tables, Vectors, scratch_for, tables_of, why_not

#: Added to the score of what does not fit: more than any iteration takes.
DOES_NOT_FIT = 2**62

#: Vectors that a thread evaluates at a time; fewer are not worth a thread.
_PIECE = 64

#: Compiled functions allocate no arrays, so they need not count references to those that they receive: counting, which
#: threads do in turn, takes a third of the time. A call by itself takes longer than most of the functions.
_OPTIONS = {"nogil": True, "inline": "always", "_nrt": False}

#: Works like `clocks.evaluate_all`.
EvaluateAll = Callable[[Tables, Scratch, Vectors, Ints], None]


@cache
def compiled_evaluate_all() -> EvaluateAll:
    """`clocks.evaluate_all`, compiled. The first call takes seconds, unless an earlier process cached the result."""
    import numba

    # numba invalidates its cache of a function when that function's own file changes. These functions depend on each
    # other's files, and on this one, so their names in the cache change with any of them.
    sources = map(inspect.getsource, (clocks, columns, remaking, sys.modules[__name__]))
    digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
    # All functions share one namespace, in which each is compiled.
    names: dict[str, Any] = vars(remaking) | vars(clocks)
    for name, value in names.copy().items():
        if isinstance(value, FunctionType):
            names[name] = _compile(numba, FunctionType(value.__code__, names, name), f"{name}_{digest}")
    compiled: EvaluateAll = names["evaluate_all"]
    return compiled


def _compile(numba: Any, function: FunctionType, cache_name: str) -> Any:
    function.__qualname__ = cache_name
    try:
        return numba.njit(function, cache=True, **_OPTIONS)
    except RuntimeError:  # this user may write to no folder in which numba could cache
        return numba.njit(function, **_OPTIONS)


@dataclass(frozen=True)
class Costs:
    """What each of some vectors costs.

    time_ns: of the iteration. peak: bytes of device memory held at most. short: bytes that the budget lacks at worst,
    0 for what fits; then time and peak are those of a machine that had them. waited_ns: time in which the compute
    stream waits. relaunched_ns: time of what it runs again.
    """

    time_ns: Ints
    peak: Ints
    short: Ints
    waited_ns: Ints
    relaunched_ns: Ints

    @property
    def score(self) -> Ints:
        """Time for what fits; for what does not, a number larger than any time that grows with the bytes it lacks."""
        return np.where(self.short > 0, DOES_NOT_FIT + self.short, self.time_ns)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Algorithm 2 of HOME (section 3.4) for all placements of one graph on one node.

    Where `why_not` is None, time and peak are those of the machine, to the nanosecond and byte. Elsewhere they are
    those of a node without what it names, and only the simulator knows. early: copies out are issued beside the last
    reader's layer step, else after it. drain: a fetch that has to wait for its block waits for all copies under way.
    exactness_limit: what of a run these numbers do not tell, if anything.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> evaluator = Evaluator(graph, node, node.budget, Decisions.of(graph))
    >>> evaluator.costs([[0, 0], [1, 0], [0, 2]]).time_ns.tolist()
    [90, 92, 97]
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    decisions: Decisions
    early: bool = True
    drain: bool = False
    exactness_limit: str | None = None
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)

    @cached_property
    def why_not(self) -> str | None:
        """Why times are not exact on this node, None where they are."""
        return self.exactness_limit or why_not(self.graph, self.node, self.decisions)

    @cached_property
    def tables(self) -> Tables:
        """All numbers that costs depend on."""
        early, drain = self.early, self.drain
        return tables_of(self.graph, self.node, self.budget, self.decisions, early=early, drain=drain)

    def costs(self, vectors: ArrayLike) -> Costs:
        """What each vector costs. vectors: numbers of options, one row each, one entry per feature map."""
        rows = np.ascontiguousarray(vectors, dtype=np.int8)
        if rows.ndim != 2 or rows.shape[1] != len(self.decisions.maps):
            raise ValueError(f"vectors have shape {rows.shape}, not (any, {len(self.decisions.maps)})")
        if rows.size and ((rows < 0).any() or (rows >= np.array(self.decisions.choices)).any()):
            raise ValueError("a vector names an option that its feature map does not have")
        found = np.zeros((len(rows), len(FOUND)), np.int64)
        evaluate, spans = compiled_evaluate_all(), pairwise(self._cuts(len(rows)))
        pieces = [
            (self.tables, own, rows[a:b], found[a:b]) for (a, b), own in zip(spans, self._scratches, strict=False)
        ]
        others = [self._pool.submit(evaluate, *piece) for piece in pieces[1:]]
        for piece in pieces[:1]:
            evaluate(*piece)
        for other in others:
            other.result()
        return Costs(*(found[:, column] for column in range(len(FOUND))))

    def score(self, vectors: Vectors) -> Ints:
        """A number to be made small for each vector: see `Costs.score`."""
        return self.costs(vectors).score

    def overheads(self, vector: Sequence[int]) -> tuple[int, ...]:
        """What each feature map adds to the iteration, ns: algorithm 2's overhead[n]."""
        return tuple(self.details(vector)[:, OVERHEAD].tolist())

    def details(self, vector: Sequence[int]) -> Ints:
        """What becomes of each feature map: a row for each, with the columns of fates (`simgpu.planning.columns`)."""
        found = np.zeros((1, len(FOUND)), np.int64)
        scratch = self._scratches[0]
        compiled_evaluate_all()(self.tables, scratch, np.array([vector], dtype=np.int8), found)
        return scratch.fates[: len(self.decisions.maps)].copy()

    def _cuts(self, rows: int) -> list[int]:
        """Where the rows are divided among threads."""
        pieces = max(min(self.threads, rows // _PIECE), 1)
        return [rows * piece // pieces for piece in range(pieces + 1)] if rows else [0]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads beside the caller's, kept: to start them takes as long as hundreds of evaluations."""
        return ThreadPoolExecutor(self.threads - 1)

    @cached_property
    def _scratches(self) -> list[Scratch]:
        return [scratch_for(self.tables, self._most_relaunches) for _ in range(max(self.threads, 1))]

    @cached_property
    def _most_relaunches(self) -> int:
        """A bound on the relaunches of any placement."""
        ancestry = Ancestry(self.graph)
        forward = sum(len(writers) for writers in ancestry.writers)
        again = sum(any(option.action is Action.RECOMPUTE for option in own) for own in self.decisions.options)
        return again * forward


@dataclass(frozen=True)
class Chosen:
    """What a policy chose for each feature map, and what led to it (`PlanContext.chosen`).

    evaluator: what tells costs, with the feature maps and their options in its decisions. vector: what the program
    does; None where that is no vector of these options. evaluations: vectors that were scored on the way, None where
    nobody counted. swarm: how a swarm went, if there was one.
    """

    evaluator: Evaluator
    vector: Vector | None
    evaluations: int | None = None
    swarm: SwarmResult | None = None
