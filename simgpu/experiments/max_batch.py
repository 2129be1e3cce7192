"""`max_batch` finds the largest batch that fits under a policy, and its throughput (HOME, He et al., section 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.compare import DEFAULT_POLICIES, PolicyRequest, PolicyRun, Refusal, nothing_runs, policy_from
from simgpu.experiments.largest_batch import LargestBatch, MaxBatch, Speed, recommended
from simgpu.graph.bounds import first_reason
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.search.bisection import largest
from simgpu.policies.base import Policy, no_progress, policy_label
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import Result, policy_fits, simulate, task_graph
from simgpu.trace.model import Trace
from simgpu.workloads.rescale import check_rescalable

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.graph.taskgraph import TaskGraph

#: Number of batches simulated between the largest with near-best throughput and the next larger one.
_BETWEEN = 4
#: Largest batch tried. Policies with micro-batches fit nearly any batch, and run as long as it has micro-batches.
MOST = 2**16
_ONE_SHARE = "search the batch of one GPU's share"


def max_batch(
    trace: Trace | Scenario,
    node: NodeSpec | None = None,
    policies: str | Iterable[PolicyRequest] | None = None,
    config: RunConfig | None = None,
    *,
    limit: int = MOST,
    speeds: bool = True,
    progress: Callable[[str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> MaxBatch:
    """Search the largest batch that fits under each policy, and the largest with near-best throughput.

    The search doubles and bisects the batch, with traces from `simgpu.workloads.rescale.entry.at_batch`.

    trace: a trace, which requires a node, or a scenario, whose node, policies and settings other arguments override
    policies: as for `simgpu.compare`; a single name is one policy
    limit: the largest batch to try
    speeds: whether smaller batches are simulated for their throughput
    progress: called with each policy and batch before it is tried

    A batch fits if `Policy.fits` predicts so without planning, or if its program does not run out of memory. A batch
    smaller than one that fits may not fit: the fastest algorithm of a convolution, and with it its workspace, changes
    with the batch, and so do the holes in memory. The answer is the largest below the first tried batch that fails, as
    authors of policies search by raising the batch. A few batches above it are tried too, and those that fit are
    reported (`LargestBatch.islands`).

    The largest batch is often much slower than a smaller one. So throughput is simulated at every power of two up to
    the largest batch that fits, at this batch, and by bisection at up to 4 batches between the largest with 80% of the
    best throughput and the next one: at most 21 batches per policy. The recommended batch is the largest of these with
    80% of the best throughput (`LargestBatch.recommended`).

    A policy that is out of memory with a single sample, or that refuses the trace or the node, does not end the search
    for the others. Raises `InputError` for unknown policies and invalid arguments, and if every policy refuses.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10_000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = max_batch(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, ["none", "vdnn"])
    >>> {each.run.label: each.batch for each in result}
    {'none': 16, 'vdnn': 20}
    >>> [each.recommended.batch for each in result]
    [16, 20]
    """
    if not isinstance(trace, Trace):
        scenario = _checked(trace)
        return max_batch(
            scenario.trace,
            scenario.node if node is None else node,
            scenario.policies if policies is None else policies,
            run_config(scenario.config if config is None else config, settings),
            limit=limit,
            speeds=speeds,
            progress=progress,
        )
    if node is None:
        raise InputError.single("", "argument node", "is missing", "load one with simgpu.load_node, or give a scenario")
    config = run_config(config, settings, trace=trace, node=node, limit=limit)
    if config.data_parallel:
        what = f"the largest batch is searched for one GPU, not for {config.gpus}"
        raise InputError.single("", "argument gpus", what, _ONE_SHARE)
    check_rescalable(trace)
    requested = [policies] if isinstance(policies, str) else DEFAULT_POLICIES if policies is None else policies
    chosen = [policy_from(request) for request in requested]
    node, budget = config.on(node)
    search = _Search(config, limit, speeds, progress or no_progress)
    # All policies share the graphs at other batches.
    graph = task_graph(trace, node, config.epoch)
    results = tuple(search.of(policy, graph, node) for policy in chosen)
    if results and all(each.run.refused for each in results):
        raise nothing_runs(each.run for each in results)
    return MaxBatch(results, trace.info, trace.name, node, budget)


def _before_failure(tried: Iterable[tuple[int, bool]]) -> int | None:
    """The largest batch that fits below the first that does not; None if none fits.

    >>> _before_failure([(1, True), (2, True), (3, False), (4, True)])
    2
    """
    value = None
    for batch, fits in tried:
        if not fits:
            break
        value = batch
    return value


def _checked(scenario: Scenario) -> Scenario:
    """The scenario. Raises `InputError` if it is not a scenario, or trains on several GPUs."""
    if not isinstance(getattr(scenario, "trace", None), Trace):
        what = f"{str(scenario)[:60]!r} is neither a trace nor a scenario"
        raise InputError.single("", "argument trace", what, "use simgpu.load_trace or simgpu.load_scenario")
    if scenario.data_parallel is not None:
        what = f"the largest batch is searched for one GPU, and {scenario.name} trains on {scenario.data_parallel.gpus}"
        raise InputError.single("", "data_parallel", what, f"remove data_parallel; {_ONE_SHARE}")
    return scenario


@dataclass(frozen=True)
class _Search:
    """The settings of a search, common to all policies; see `max_batch`."""

    config: RunConfig
    limit: int
    speeds: bool
    say: Callable[[str], None]

    def of(self, policy: Policy, graph: TaskGraph, node: NodeSpec) -> LargestBatch:
        """The largest batch of one policy. graph: at any batch; other batches are derived with `at_batch`."""
        runs = _Runs(self, policy, graph, node)
        own = min(graph.trace.info.batch, self.limit)
        try:
            first = runs.fits(own)
            if runs.unlimited:
                return self._result(runs, own, None)
            low, high = (own, None) if first else (1, own - 1)
            if first or own > 1:
                largest(runs.fits, low, high, cap=self.limit)
            value = _before_failure(runs.tried)
            outcome = runs.at(value or 1)
            return self._result(runs, value or 1, None if isinstance(outcome, OutOfMemoryError) else value)
        except (InputError, MissingExtraError) as error:
            return LargestBatch(_run(policy, error), None, runs.tried, self.limit)

    def _result(self, runs: _Runs, ran: int, batch: int | None) -> LargestBatch:
        speeds = runs.speeds_up_to(batch) if self.speeds and batch is not None else ()
        return LargestBatch(_run(runs.policy, runs.at(ran)), batch, runs.tried, self.limit, speeds)


@dataclass(frozen=True)
class _Runs:
    """The results of one policy so far.

    outcomes: outcome of the runs, by batch
    answers: whether a batch fits, by batch
    speeds: speed of the runs that were not out of memory, by batch
    """

    search: _Search
    policy: Policy
    graph: TaskGraph
    node: NodeSpec
    outcomes: dict[int, Result | OutOfMemoryError] = field(default_factory=dict)
    answers: dict[int, bool] = field(default_factory=dict)
    speeds: dict[int, Speed] = field(default_factory=dict)

    @property
    def tried(self) -> tuple[tuple[int, bool], ...]:
        """Every batch that was tried and whether it fits, ascending."""
        return tuple(sorted(self.answers.items()))

    @property
    def unlimited(self) -> bool:
        """Whether a run had unlimited memory, or blocks that need not be in device memory."""
        programs = (each.program for each in self.outcomes.values() if isinstance(each, Result))
        return any(program.unlimited_memory or program.residency is not None for program in programs)

    def fits(self, batch: int) -> bool:
        """Whether a batch fits: predicted by the policy, or else simulated."""
        if batch not in self.answers:
            search = self.search
            search.say(f"{policy_label(self.policy)}: batch {batch}")
            trace = self.graph.at_batch(batch).trace
            predicted = policy_fits(trace, self.node, self.policy, search.config)
            self.answers[batch] = not isinstance(self.at(batch), OutOfMemoryError) if predicted is None else predicted
        return self.answers[batch]

    def at(self, batch: int) -> Result | OutOfMemoryError:
        """The run at a batch. Only the result of the largest batch is retained, to save memory."""
        if batch in self.outcomes:
            return self.outcomes[batch]
        self.outcomes[batch] = outcome = self._run(batch)
        results = sorted(each for each, stored in self.outcomes.items() if isinstance(stored, Result))
        for each in results[:-1]:
            del self.outcomes[each]
        return outcome

    def speeds_up_to(self, largest: int) -> tuple[Speed, ...]:
        """The speeds at every power of two up to the largest batch, at this batch, and near the drop in throughput."""
        batches = [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]
        results = {batch: speed for batch in batches if (speed := self.speed(batch)) is not None}
        for _ in range(_BETWEEN):
            if (near := recommended(results.values())) is None:
                break
            above = min((batch for batch in batches if batch > near.batch), default=near.batch)
            between = (near.batch + above) // 2
            if between in batches:
                break
            batches.append(between)
            if (speed := self.speed(between)) is not None:
                results[between] = speed
        return tuple(results[batch] for batch in sorted(results))

    def speed(self, batch: int) -> Speed | None:
        """The speed at a batch; None if it does not fit or the policy refuses it."""
        if batch not in self.speeds:
            try:
                if self.fits(batch) and batch not in self.speeds:
                    self.search.say(f"{policy_label(self.policy)}: throughput at batch {batch}")
                    self._run(batch)
            except InputError:
                return None
        return self.speeds.get(batch)

    def _run(self, batch: int) -> Result | OutOfMemoryError:
        try:
            result = simulate(self.graph.at_batch(batch).trace, self.node, self.policy, self.search.config)
        except OutOfMemoryError as error:
            return error
        metrics = result.metrics
        self.speeds[batch] = Speed(batch, metrics.samples_per_s, metrics.iteration_ns, metrics.slowdown)
        return result


def _run(policy: Policy, outcome: Result | OutOfMemoryError | Refusal) -> PolicyRun:
    return PolicyRun(policy_label(policy), policy.name, policy.parameters, outcome)


#: Policies that use the sub-batch of equation 8, and policies that run the full batch.
DIVIDING, UNDIVIDED = ("modnn", "vdnn+"), ("none", "vdnn")


@dataclass(frozen=True, slots=True)
class WhatFits:
    """The simulated results of `what_fits`, by policy name.

    sub_batch: why the sub-batch does not run, ``out of memory`` or the policy's reason; empty if it runs
    largest_batch: the largest undivided batch that fits, in samples; None if not even one sample fits. The next larger
    batch was tried and does not fit. Policies that refuse the trace, or another batch of it, are left out.
    """

    sub_batch: Mapping[str, str]
    largest_batch: Mapping[str, int | None]


def what_fits(
    trace: Trace,
    node: NodeSpec,
    budget: int,
    sub_batch: int,
    *,
    alignment: int | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> WhatFits:
    """Simulate the policies `DIVIDING` at a sub-batch, and search the largest batch of the policies `UNDIVIDED`.

    budget: device memory, bytes
    alignment: bytes that every allocation is rounded up to; by default the node's
    progress: called before each run

    Raises `InputError` for invalid arguments, like `simgpu.simulation.run.simulate`.

    >>> from dataclasses import replace
    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    >>> trace = replace(trace, info=replace(trace.info, batch=4))
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> what_fits(trace, node, 500, 2)
    WhatFits(sub_batch={'modnn': '', 'vdnn+': ''}, largest_batch={'none': 3, 'vdnn': 4})
    """
    verdicts = {}
    for policy in DIVIDING:
        progress(f"{policy}: sub-batches of {sub_batch}")
        try:
            simulate(trace, node, policy, parameters={"sub_batch": sub_batch}, budget=budget, alignment=alignment)
            verdicts[policy] = ""
        except OutOfMemoryError:
            verdicts[policy] = "out of memory"
        except InputError as error:
            verdicts[policy] = first_reason(error)
    try:
        result = max_batch(trace, node, UNDIVIDED, budget=budget, alignment=alignment, progress=progress)
        largest = {each.run.policy: each.batch for each in result if not each.run.refused}
    except InputError:
        largest = {}  # both refuse the trace
    return WhatFits(verdicts, largest)
