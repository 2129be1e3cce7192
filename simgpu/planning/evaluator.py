"""Step time and peak memory of vectors of decisions, many at once, exact to the nanosecond and byte.

The functions of `simgpu.planning.clocks` are compiled by numba, or run as plain Python where there are few vectors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from simgpu.compiling import compiled_together
from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.planning import clocks, columns, plain, relaunches
from simgpu.planning.columns import OVERHEAD, RESULTS
from simgpu.planning.options import Action, Decisions, Vector
from simgpu.planning.search.swarm import SwarmResult
from simgpu.planning.tables import Ints, Scratch, Tables, Vectors, scratch_for, tables_of, why_not, with_budget

#: Added to the score of a vector that does not fit; larger than any step time.
DOES_NOT_FIT = 2**62

#: The fewest vectors that are worth a thread.
_PIECE = 64

#: Compiled functions allocate no arrays, so they need not count references: counting, for which threads wait, takes a
#: third of the time. All are inlined, since a call takes longer than most of the functions.
_OPTIONS = {"nogil": True, "forceinline": True, "_nrt": False}

#: Tables that are kept of one graph: of two links, say.
_MOST_TABLES = 4
#: Works like `clocks.evaluate_all`.
EvaluateAll = Callable[[Tables, Scratch, Vectors, Ints], None]


@cache
def compiled_evaluate_all() -> EvaluateAll:
    """`clocks.evaluate_all`, compiled. The first call takes seconds, unless an earlier process cached the result."""
    modules, others = (relaunches, clocks), (columns, sys.modules[__name__])
    compiled: EvaluateAll = compiled_together("evaluate_all", modules, others, **_OPTIONS)
    return compiled


@dataclass(frozen=True)
class Costs:
    """Costs of vectors, one entry each.

    time_ns: step time. peak: peak device memory in bytes. short: largest shortage of memory in bytes, 0 if the vector
    fits; otherwise time and peak are those of a machine with enough memory. waited_ns: waiting time of the compute
    stream. relaunched_ns: time of relaunched kernels.
    """

    time_ns: Ints
    peak: Ints
    short: Ints
    waited_ns: Ints
    relaunched_ns: Ints

    @property
    def score(self) -> Ints:
        """The step time of a vector that fits; otherwise a number above any time that grows with the shortage."""
        return np.where(self.short > 0, DOES_NOT_FIT + self.short, self.time_ns)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Algorithm 2 of HOME (section 3.4) for all placements of one graph on one node.

    Where `why_not` is None, time and peak are those of the machine, to the nanosecond and byte. Otherwise they are
    approximate. early: offloads overlap with the last reader's layer step, else they begin after it. drain: a fetch
    that must wait for its block waits for all copies in progress. exactness_limit: what is not modelled in this run, if
    anything.

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

    @property
    def why_no_bound(self) -> str | None:
        """Why times of a lower bound do not hold on this node, None where they do."""
        return self.exactness_limit or why_not(self.graph, self.node, self.decisions, launches=False)

    @cached_property
    def tables(self) -> Tables:
        """The tables of this graph, node, budget and decisions."""
        kept: list[tuple[NodeSpec, Decisions, bool, bool, Tables]] = self.graph.kept.setdefault(("tables",), [])
        for *of, tables in kept:
            if of == [self.node, self.decisions, self.early, self.drain]:
                return with_budget(tables, self.budget)
        early, drain = self.early, self.drain
        tables = tables_of(self.graph, self.node, self.budget, self.decisions, early=early, drain=drain)
        kept[:] = [(self.node, self.decisions, early, drain, tables), *kept[: _MOST_TABLES - 1]]
        return tables

    def costs(self, vectors: ArrayLike) -> Costs:
        """The costs of vectors. vectors: numbers of options, one row per vector, one entry per feature map."""
        rows = np.ascontiguousarray(vectors, dtype=np.int8)
        if rows.ndim != 2 or rows.shape[1] != len(self.decisions.maps):
            raise ValueError(f"vectors have shape {rows.shape}, not (any, {len(self.decisions.maps)})")
        if rows.size and ((rows < 0).any() or (rows >= np.array(self.decisions.choices)).any()):
            raise ValueError("a vector has an option number that its feature map does not have")
        results = np.zeros((len(rows), len(RESULTS)), np.int64)
        evaluate, spans = self._evaluate_all(len(rows)), pairwise(self._cuts(len(rows)))
        pieces = [
            (self.tables, own, rows[a:b], results[a:b]) for (a, b), own in zip(spans, self._scratches, strict=False)
        ]
        others = [self._pool.submit(evaluate, *piece) for piece in pieces[1:]]
        for piece in pieces[:1]:
            evaluate(*piece)
        for other in others:
            other.result()
        return Costs(*(results[:, column] for column in range(len(RESULTS))))

    def score(self, vectors: Vectors) -> Ints:
        """The number to minimise for each vector: see `Costs.score`."""
        return self.costs(vectors).score

    def overheads(self, vector: Sequence[int]) -> tuple[int, ...]:
        """Time that each feature map adds to the iteration, ns: algorithm 2's overhead[n]."""
        return tuple(self.details(vector)[:, OVERHEAD].tolist())

    def details(self, vector: Sequence[int]) -> Ints:
        """The final state of each feature map: one row each, with the columns of states in `columns`."""
        results = np.zeros((1, len(RESULTS)), np.int64)
        scratch = self._scratches[0]
        self._evaluate_all(1)(self.tables, scratch, np.array([vector], dtype=np.int8), results)
        return scratch.states[: len(self.decisions.maps)].copy()

    def _evaluate_all(self, rows: int) -> EvaluateAll:
        """What evaluates so many vectors fastest."""
        loaded = compiled_evaluate_all.cache_info().currsize
        return plain.evaluate_all if not loaded and plain.is_enough(self.tables, rows) else compiled_evaluate_all()

    def _cuts(self, rows: int) -> list[int]:
        """Where the rows are divided among threads."""
        pieces = max(min(self.threads, rows // _PIECE), 1)
        return [rows * piece // pieces for piece in range(pieces + 1)] if rows else [0]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads in addition to the caller's; reused, since starting them takes as long as hundreds of evaluations."""
        return ThreadPoolExecutor(self.threads - 1)

    @cached_property
    def _scratches(self) -> list[Scratch]:
        return [scratch_for(self.tables, self._most_relaunches) for _ in range(max(self.threads, 1))]

    @cached_property
    def _most_relaunches(self) -> int:
        """An upper bound of the relaunches of any placement."""
        ancestry = Ancestry.of(self.graph)
        forward = sum(len(writers) for writers in ancestry.writers)
        again = sum(any(option.action is Action.RECOMPUTE for option in own) for own in self.decisions.options)
        return again * forward


@dataclass(frozen=True)
class Chosen:
    """A policy's choice for each feature map, and the search behind it (`PlanContext.chosen`).

    evaluator: the evaluator of costs, with the feature maps and their options in its decisions. vector: the decisions
    of the program; None where they are no vector of these options. evaluations: number of scored vectors, None if
    unknown. swarm: the result of a swarm, if there was one.
    """

    evaluator: Evaluator
    vector: Vector | None
    evaluations: int | None = None
    swarm: SwarmResult | None = None
