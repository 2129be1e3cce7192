"""`Question`: what `fit` asks of every candidate, and the runs that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.fit.candidates import Candidate
from simgpu.experiments.fit.growth import Growth
from simgpu.experiments.fit.rows import FitRow, FitRun, Persistent
from simgpu.experiments.fit.section_search import sections_in, valued_candidate
from simgpu.experiments.fit.size_search import SizeSearch
from simgpu.experiments.fit.workloads import Workload
from simgpu.garbage import no_collection
from simgpu.graph.accumulation import divisors
from simgpu.graph.bounds import first_reason
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings
from simgpu.simulation.run import Result, planned_run, simulate
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import Trace, TraceInfo

#: A budget that no iteration needs: the run of a candidate then has its peak.
_UNLIMITED = 2**60
#: Lengths that are searched are multiples of this many tokens.
TOKENS = 128
#: Largest batch that is tried.
MOST_SAMPLES = 2**16
#: The batch and the length that are tried first where an option's growth is not known.
_FIRST = {"batch": 8, "length": 2048}
#: Share of the memory by which a prediction may be too low: the error of most published peaks is smaller
#: (simgpu/validation/public/README.md).
ERROR = 0.03
#: What a CUDA context takes where the node does not say: the most that a shipped node says.
CONTEXT = 534 * 2**20
#: Sizes from a power of two to the next that a search distinguishes.
_STEPS = 16
#: Settings of PyTorch's allocator that are tried where the default ones leave too much memory in holes.
SEGMENTS = "expandable_segments:True"
#: Traces that are kept at least, and kernels of all that are kept, if these are more.
_KEPT, _KEPT_KERNELS = 12, 10**5


def sizes(unit: int, most: int) -> list[int]:
    """The sizes that a search distinguishes, ascending: multiples of a unit, 16 from a power of two to the next.

    >>> sizes(128, 1000), len(sizes(1, 64)), sizes(1, 64)[-2:]
    ([128, 256, 384, 512, 640, 768, 896, 1000], 48, [62, 64])
    """
    result, count = [], 1
    while count * unit < most:
        result.append(count * unit)
        count += max(1, 2 ** (count.bit_length() - 1) // _STEPS)
    return [*result, most]


def safe_margin(memory: int, context: int | None) -> int:
    """Bytes that should be left: for errors of prediction, and for a CUDA context that is not known.

    >>> safe_margin(100 * 2**20, 0), safe_margin(0, None) == CONTEXT
    (3145728, True)
    """
    return int(ERROR * memory) + (CONTEXT if context is None else 0)


@dataclass(frozen=True)
class Question:
    """A model, a GPU, and a size, or which size is searched.

    batch, length: as requested; None for the one that is searched, and length where samples have none.
    budget: bytes for PyTorch's allocator. margin: of these, what a size that is searched has to leave. gpus: how many
    run the same at the same time; node then has the share of one, and alone is the node of one that runs alone.
    """

    workload: Workload
    node: NodeSpec
    batch: int | None
    length: int | None
    budget: int
    margin: int = 0
    alone: NodeSpec | None = None
    gpus: int = 1
    traces: dict[Any, Trace] = field(default_factory=dict, compare=False, repr=False)
    plain: dict[tuple[int, int | None], tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sharing(self) -> int:
        """Among how many GPUs weights can be divided: all, where the node states what they exchange data over."""
        return self.gpus if self.node.peers is not None else 1

    @property
    def searched(self) -> str:
        """``batch``, ``length``, or empty where both are given."""
        if self.batch is None:
            return "batch"
        return "length" if self.length is None and self.workload.longest is not None else ""

    def info(self) -> TraceInfo:
        """Facts about the iteration at the requested size, or at the smallest. Raises `InputError` if it has none."""
        length = self._places()[0] if self.searched == "length" else self.length
        return self._trace(self.batch or 1, length, self.workload.options).info

    @property
    def usable(self) -> int:
        """Bytes that a run may reserve."""
        return self.budget - self.margin if self.searched else self.budget

    def row(self, candidate: Candidate) -> FitRow:
        """The answer for a candidate."""
        try:
            row = self._largest(candidate) if self.searched else self._at(candidate, self.batch or 1)
        except (InputError, MissingExtraError) as error:
            reason = first_reason(error) if isinstance(error, InputError) else str(error)
            return FitRow(candidate.without_value, None, reason)
        return row if row.run is None else replace(row, run=self.compared(row.run))

    def run(self, candidate: Candidate, batch: int, length: int | None, micro_batches: int = 1) -> FitRun:
        """One step under a candidate. Raises `InputError` for what the model or the policy does not support."""
        policy, parameters, build = candidate.policy, dict(candidate.parameters), candidate.build
        if micro_batches > 1 and candidate.builds_micro_batches:
            build = {**build, "micro_batches": micro_batches}
        elif micro_batches > 1:
            policy, parameters = "accumulate", {"micro_batches": micro_batches, "inside": {policy: parameters}}
        trace = self._trace(batch, length, build)

        def within(budget: int, allocator: str | None = None, node: NodeSpec = self.node) -> Result:
            given: RunSettings = {"budget": budget, "pool": "caching", "allocator": allocator, "iterations": 2}
            with no_collection():
                return simulate(trace, node, policy, parameters=parameters, **given)

        result, allocator = within(_UNLIMITED), ""
        peak, fits = result.metrics.run_peak_bytes, result.high_water <= self.usable
        # With less memory, the allocator gives back what it does not use, and compute waits for offloads.
        # Nothing has to be run where what stays on the GPU is too much alone.
        persistent = Persistent.of(trace, candidate)
        hopeful = persistent.total <= self.usable and (peak <= self.usable or result.metrics.link_bytes)
        if not fits and hopeful:
            for allocator in ("", SEGMENTS) if peak <= self.usable else ("",):
                with suppress(OutOfMemoryError):
                    result, fits = within(self.usable, allocator or None), True
                    break
        alone_ns = result.iteration_ns
        if self.alone is not None and (result.metrics.link_bytes or candidate.on_host):
            alone_ns = within(result.budget, allocator if fits and allocator else None, self.alone).iteration_ns
        return FitRun(
            batch,
            length,
            micro_batches,
            fits,
            result.metrics.run_peak_bytes,
            result.high_water,
            result.iteration_ns,
            result.metrics.link_bytes,
            persistent,
            allocator if fits else "",
            alone_ns=alone_ns,
        )

    def _trace(self, batch: int, length: int | None, build: Mapping[str, Any]) -> Trace:
        key = batch, length, tuple(sorted(build.items()))
        trace = self.traces.pop(key, None)
        if trace is None:
            with no_collection():
                trace = self.workload.trace(batch, length, self.node.gpu, build)
        self.traces[key] = trace  # the last that was used
        kernels = sum(len(each.kernels) for each in self.traces.values())
        while len(self.traces) > _KEPT and kernels > _KEPT_KERNELS:
            kernels -= len(self.traces.pop(next(iter(self.traces))).kernels)
        return trace

    def compared(self, run: FitRun) -> FitRun:
        """A run with the time that the same samples take as the model is trained by default."""
        size = run.batch, run.length
        if size not in self.plain:
            graph = task_graph(self._trace(*size, self.workload.options), self.node, 0)
            self.plain[size] = graph.ideal_ns(self.node.host.launch_ns), len(graph.kernels)
        plain_ns, operators = self.plain[size]
        return replace(run, plain_ns=plain_ns, operators=operators)

    def _largest(self, candidate: Candidate) -> FitRow:
        """The largest batch or length that fits."""
        places = self._places()
        search = SizeSearch(
            places,
            self.usable,
            run=lambda size: self.run(candidate, *self._at_size(size)),
            first=_FIRST[self.searched],
            growth=lambda size: self.growth(candidate, size),
        )
        best = search.largest()
        return FitRow(candidate, best, capped=best.fits and places[-1] == getattr(best, self.searched))

    def _at_size(self, size: int) -> tuple[int, int | None]:
        """Batch and length where the searched one is this size."""
        return (size, self.length) if self.searched == "batch" else (self.batch or 1, size)

    def growth(self, candidate: Candidate, size: int) -> Growth:
        """How the memory of a candidate grows from this size on, by its plan. Raises `InputError` as `run` does."""
        trace, policy = self._trace(*self._at_size(size), candidate.build), candidate.policy
        config = RunConfig(budget=_UNLIMITED, pool="caching", iterations=2)
        with no_collection():
            planned = planned_run(trace, self.node, make_policy(policy, candidate.parameters), config)
            unlimited = [memory.name for memory in self.node.memories if memory.capacity is None]
            return Growth.of(planned.program, planned.graph, size, unlimited)

    def _places(self) -> list[int]:
        """The sizes that are distinguished."""
        if self.searched == "batch":
            return sizes(1, MOST_SAMPLES)
        assert self.workload.longest is not None, "a length that is searched has a limit"
        return sizes(TOKENS, self.workload.longest)

    def _at(self, candidate: Candidate, batch: int) -> FitRow:
        """The whole batch at once or, where it does not fit, in the fewest micro-batches that fit."""
        if candidate.searched:
            sections = sections_in(self._trace(batch, self.length, candidate.build), self.node)
            candidate, whole = valued_candidate(candidate, sections, lambda each: self.run(each, batch, self.length))
        else:
            whole = self.run(candidate, batch, self.length)
        if whole.fits or batch == 1:
            return FitRow(candidate, whole)
        if candidate.build.get("optimizer_in_backward"):
            return FitRow(candidate, whole, "not in micro-batches: an update needs the gradient of the whole batch")
        places = [batch // count for count in reversed(divisors(batch)[1:])]

        def parts(count: int, size: int) -> FitRun:
            return self.run(candidate, count * size, self.length, count)

        try:
            two = SizeSearch(places, self.usable, lambda size: parts(2, size), places[0]).largest()
        except InputError as error:
            return FitRow(candidate, whole, f"not in micro-batches: {error.problems[0].what}")
        size, count = two.batch // 2, 2 * batch // two.batch
        # Each micro-batch after the first two takes as long as the third.
        three, later = (parts(3, size), count - 2) if count > 2 else (two, 0)
        step_ns = two.step_ns + later * (three.step_ns - two.step_ns)
        alone_ns = two.alone_ns + later * (three.alone_ns - two.alone_ns)
        link_bytes = two.link_bytes + later * (three.link_bytes - two.link_bytes)
        run = replace(two, batch=batch, micro_batches=count, step_ns=step_ns, link_bytes=link_bytes, alone_ns=alone_ns)
        return FitRow(candidate, run)
