"""Plan, verify, run: `simulate`, which all other packages call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError, PolicyError, ProgramError
from simgpu.graph.replicate import NOT_EXCHANGED, Exchange
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import uncompressed
from simgpu.graph.updates import exchanging
from simgpu.hardware.sharing import one_of, placed_alike
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import run_program
from simgpu.memory.pool import UNLIMITED
from simgpu.policies.base import PlanContext, Policy, no_progress, policy_label
from simgpu.policies.calling import checked_fits, machine_of, reclaiming
from simgpu.policies.registry import make_policy
from simgpu.program.check import CheckedProgram, not_a_program
from simgpu.program.data_parallel import DataParallel, ParallelRun, explained, priced, share_of
from simgpu.program.instructions import Program
from simgpu.program.replication import replicated
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.notes import (
    on_compression,
    on_compute,
    on_endurance,
    on_epoch,
    on_exchange,
    on_exchanges,
    on_gpus,
    on_host_memory,
    on_output,
    on_transforms,
)
from simgpu.simulation.plain_peak import PeakPart
from simgpu.simulation.result import Result
from simgpu.simulation.reuse import is_own, planned_once, read_only, repeated, verified
from simgpu.simulation.tasks import task_graph
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace


def simulate(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy = "vdnn",
    config: RunConfig | None = None,
    *,
    parameters: Mapping[str, object] | None = None,
    carried: MutableMapping[str, Any] | None = None,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> Result:
    """Replay a trace on a node under a policy.

    policy: a name with `parameters`, or a policy object. config and settings: the settings of the run; the fields of
    `RunConfig`, also by keyword. carried: values that the policy stored in earlier epochs of the same training; it may
    add to them. progress: called with a line of text while a policy searches.

    Raises `InputError` for a bad trace, policy or argument, `OutOfMemoryError` if the iteration does not fit;
    `PolicyError`, an `InputError`, if the policy's code fails or its program is rejected, with the exception as its
    cause.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn")
    >>> result.iteration_ns, result.ideal_ns, result.steady
    (83, 63, True)
    """
    config = _checked(trace, node, policy, config, settings)
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    run = _Run.of(trace, node, chosen, config)
    program = planned_once(chosen, run.context(carried, progress))
    try:
        return run.once(program)
    except ProgramError as error:
        raise PolicyError.of(policy_label(chosen), f"its program is refused: {error}") from error


def plan_context(
    trace: Trace,
    node: NodeSpec,
    policy: Policy,
    config: RunConfig | None = None,
    *,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> PlanContext:
    """The plan context that `simulate` gives a policy, for callers that need more than a program.

    The arguments are those of `simulate`. `PlanContext.trial` returns the `Result` that `simulate` would.
    """
    return _Run.of(trace, node, policy, _checked(trace, node, policy, config, settings)).context(progress=progress)


class PlannedRun(NamedTuple):
    """What `simulate` runs: a policy's program on the graph of one GPU. budget: bytes of device memory."""

    program: Program
    graph: TaskGraph
    node: NodeSpec
    budget: int


def planned_run(trace: Trace, node: NodeSpec, policy: Policy, config: RunConfig) -> PlannedRun:
    """The run that `simulate` makes of these arguments, planned only. Raises as `simulate`, and for several GPUs."""
    run = _Run.of(trace, node, policy, _checked(trace, node, policy, config, {}))
    if config.data_parallel:
        what = "several GPUs train together, whose program follows from a run"
        raise InputError.single("", "argument gpus", what, "leave it out")
    return PlannedRun(planned_once(policy, run.context()), run.graph, run.node, run.budget)


def policy_fits(trace: Trace, node: NodeSpec, policy: Policy, config: RunConfig) -> bool | None:
    """Whether a policy fits, without a plan (`Policy.fits`); None where only a run can decide."""
    if type(policy).fits is Policy.fits:
        return None
    return checked_fits(policy, _Run.of(trace, node, policy, config).context())


def _checked(
    trace: Trace, node: NodeSpec, policy: str | Policy, config: RunConfig | None, settings: RunSettings
) -> RunConfig:
    """The settings of a call; raises `InputError` with all problems of its arguments and trace."""
    config = run_config(config, settings, trace=trace, node=node, policy=policy)
    if problems := check_trace(trace):
        raise InputError(problems)
    return config


@dataclass(frozen=True)
class _Run:
    """The inputs of a run and of the trial runs of its plan.

    graph: of one GPU. node: with the configured alignment. budget: bytes of device memory.
    full_batch: the graph of the full batch, which several GPUs share. whole: the node of all GPUs; `node` is what one
    of them has of it where nothing is exchanged.
    """

    graph: TaskGraph
    node: NodeSpec
    policy: Policy
    config: RunConfig
    budget: int
    full_batch: TaskGraph
    whole: NodeSpec

    @classmethod
    def of(cls, trace: Trace, node: NodeSpec, policy: Policy, config: RunConfig) -> _Run:
        """A run of checked arguments."""
        node, budget = config.on(machine_of(policy, node))
        full_batch = graph = task_graph(trace, node, config.epoch)
        how, whole = config.data_parallel, node
        if how is not None:
            share = share_of(trace.info.batch, how, node)
            if how.exchange is Exchange.NONE:
                node = one_of(node, how.gpus)
            else:
                graph = exchanging(full_batch.at_batch(share))
        return cls(graph, node, policy, config, int(budget), full_batch, whole)

    @property
    def trace(self) -> Trace:
        """The trace of one GPU's share."""
        return self.graph.trace

    def context(
        self, carried: MutableMapping[str, Any] | None = None, progress: Callable[[str], None] = no_progress
    ) -> PlanContext:
        """The plan context, with a new random generator."""
        several, exactness_limit = self.config.data_parallel is not None, None
        compressed = self.graph.compressed
        if compressed is not None and compressed.uses_link:
            exactness_limit = "kernels and copies share the link to buddy memory"
        elif self.config.pool == "addressed":
            exactness_limit = "the addressed pool has holes"
        elif self.config.pool == "caching":
            exactness_limit = "the caching allocator holds memory in segments"
        elif several:
            exactness_limit = "GPUs that train together share links"
        return PlanContext(
            self.graph,
            self.node,
            self.budget,
            self.run,
            np.random.default_rng(self.config.seed),
            self.config.epoch,
            {} if carried is None else carried,
            progress,
            exactness_limit=exactness_limit,
            parallel_trial=self.trial if several and self.graph.exchanged else None,
        )

    def trial(self, program: Program) -> Result:
        """Run a program as it will be run: on one GPU, or on all that train together."""
        how = self.config.data_parallel
        if how is None:
            return self.run(program)
        return self.run_alike(program, how) if how.exchange is Exchange.NONE else self.run_together(program, how)

    def once(self, program: Program) -> Result:
        """As `trial`, without another run where an earlier one with another budget took the same course."""
        alone = self.config.data_parallel is None and is_own(self.policy) and self.trace.blocks
        if not alone or program.unlimited_memory or program.residency is not None:
            return self.trial(program)
        checked = verified(program, self.graph, self.node, self.budget)
        if self._pool(program) != "counting":
            return self.run(program, checked)
        runs = repeated(checked, self.graph, self.node, self.policy, self.config)
        if runs is not None and not runs.tried:
            runs.tried = True
            with suppress(OutOfMemoryError, InputError):  # of a memory other than the GPU's, or for another reason
                runs.result = read_only(replace(self, budget=UNLIMITED).run(program))
        known = runs.within(self._reported_budget) if runs is not None else None
        return known or self.run(program, checked)

    @property
    def _reported_budget(self) -> int:
        """The budget as results show it: one given as a part of the peak says so."""
        given = self.config.budget
        return given if isinstance(given, PeakPart) and given == self.budget else self.budget

    def _pool(self, program: Program) -> str:
        pool = self.config.pool
        if pool in ("counting", "caching") and program.pool == "addressed":
            what = f"policy {self.policy.name} plans addresses, and the {pool} pool takes none"
            raise InputError.single("", "pool", what, "leave it out, or ask for addressed")
        if pool in ("addressed", "caching") and program.residency is not None:
            what = f"policy {self.policy.name} acquires no memory from a pool: its blocks have no addresses"
            raise InputError.single("", "pool", what, "leave it out, or ask for counting")
        return pool or program.pool or "counting"

    def run(self, program: Program, checked: CheckedProgram | None = None) -> Result:
        """Verify and execute a program. checked: what `verified` returned for it, where that is known."""
        if fault := not_a_program(program):
            raise ProgramError(fault)
        notes = program.notes
        if not self.trace.blocks:
            if not program.unlimited_memory:
                what = "the trace has no tensors, so memory and copies cannot be simulated"
                remedy = "run the policy ideal, or import a recording with tensors or memory events"
                raise InputError.single(self.trace.name or self.trace.info.model, "blocks", what, remedy)
            notes = (*notes, "the recording has no tensors: times are recorded, memory is unknown")
        node = self.node
        checked = checked or verified(program, self.graph, node, self.budget)
        notes = (*notes, *on_epoch(self.trace, self.config.epoch), *on_compression(program, self.graph, self.node))
        notes = (*notes, *on_gpus(program, self.node), *on_output(self.trace), *on_exchanges(self.trace))
        ran = checked.graph
        notes = (*notes, *on_endurance(program, ran, self.node), *on_transforms(program))
        if program.gpus == 1:
            notes = (*notes, *on_compute(self.graph if ran.compressed else uncompressed(self.graph), ran))
        pool = self._pool(program)
        ideal, launch_ns = uncompressed(self.graph), node.host.launch_ns
        run = run_program(
            program,
            self.graph,
            self.node,
            budget=self.budget,
            iterations=self.config.iterations,
            pool=pool,
            allocator=self.config.allocator_settings,
            context=self.config.context_memory(self.node) or 0,
            reclaim=reclaiming(self.policy),
            sees_future=self.policy.clairvoyant,
            engine=self.config.engine,
            checked=checked,
        )
        return Result(
            trace=self.trace.info,
            trace_name=self.trace.name,
            node=self.node,
            policy=self.policy.name,
            parameters=self.policy.parameters,
            budget=self._reported_budget,
            pool=pool,
            allocator=self.config.allocator or "",
            context=self.config.context_memory(self.node),
            seed=self.config.seed,
            iterations=self.config.iterations,
            steady=run.steady,
            ideal_ns=ideal.ideal_ns(launch_ns),
            ideal_launch_ns=ideal.ideal_ns(launch_ns) - ideal.ideal_ns() if launch_ns else 0,
            high_water=run.high_water,
            buddy_peak=run.buddy_peak,
            retired=run.retired,
            program=program,
            timeline=run.timeline,
            label=policy_label(self.policy),
            phases={kernel.id: kernel.phase for kernel in ran.kernels},
            graph=ran,
            notes=(*notes, *run.notes, *on_host_memory(run.timeline, self.node)),
            epoch=self.config.epoch,
        )

    def run_alike(self, program: Program, how: DataParallel) -> Result:
        """Run one GPU's program, which was planned for its share of the node, on all GPUs at the same time."""
        if program.residency is not None:
            what = f"{self.policy.name} supports one GPU: pages shared by several GPUs are not modelled"
            raise InputError.single("", "data_parallel", what, "run it on one GPU, or choose another policy")
        alone = replace(self, node=self.whole, config=replace(self.config, gpus=None))
        single = alone.once(planned_once(self.policy, alone.context()))
        every = replicated(program, self.graph, self.whole, priced(how, self.whole), single.timeline)
        result = alone.run(every)
        batch = self.trace.info.batch
        notes = [f"{how.gpus} GPUs train {batch} samples each at the same time", NOT_EXCHANGED]
        if not placed_alike(self.whole, how.gpus):
            notes.append("the GPUs are not placed alike: the policy planned for the one with the smallest share")
        ideal_ns = how.gpus * uncompressed(self.full_batch).ideal_ns(self.node.host.launch_ns)
        return replace(
            result,
            trace=replace(result.trace, batch=how.total(batch)),
            notes=(*notes, *result.notes),
            parallel_run=ParallelRun(how, ideal_ns, single.iteration_ns, single.graph),
        )

    def run_together(self, program: Program, how: DataParallel) -> Result:
        """Run one GPU's program alone, then on all GPUs with the exchange of gradients."""
        full_batch = self.full_batch
        single = self.run(program)
        every = replicated(program, self.graph, self.node, priced(how, self.node), single.timeline)
        try:
            result = self.run(every)
        except OutOfMemoryError as error:
            raise explained(error, how, self.graph) from None
        ideal_ns = uncompressed(full_batch).ideal_ns(self.node.host.launch_ns)
        samples = f"{how.gpus} GPUs train {self.graph.trace.info.batch} of {full_batch.trace.info.batch} samples each"
        return replace(
            result,
            trace=replace(result.trace, batch=full_batch.trace.info.batch),
            notes=(f"{samples}; {how.description}", *on_exchange(self.graph, how.exchange), *result.notes),
            parallel_run=ParallelRun(how, ideal_ns, single.iteration_ns, single.graph),
        )


__all__ = [
    "OutOfMemoryError",
    "PlannedRun",
    "Result",
    "plan_context",
    "planned_run",
    "policy_fits",
    "simulate",
    "task_graph",
]
