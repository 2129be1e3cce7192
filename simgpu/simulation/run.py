"""Plan, verify, run: the one function that everything else calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError, PolicyError, ProgramError
from simgpu.graph.replicate import Exchange
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed, uncompressed
from simgpu.graph.updates import exchanging
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import POOLS, run_program
from simgpu.policies.base import PlanContext, Policy, no_progress
from simgpu.policies.calling import planned, reclaiming, says_it_fits
from simgpu.policies.labels import policy_label
from simgpu.policies.registry import make_policy
from simgpu.program.check import not_a_program
from simgpu.program.data_parallel import DataParallel, ParallelRun, explained, priced, share_of
from simgpu.program.instructions import Program
from simgpu.program.replication import replicated
from simgpu.program.verify import verify
from simgpu.simulation.arguments import bytes_of, check_arguments
from simgpu.simulation.notes import on_compression, on_compute, on_epoch, on_exchange, on_gpus, on_output
from simgpu.simulation.result import Result
from simgpu.simulation.tasks import task_graph
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace


def simulate(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy = "vdnn",
    *,
    parameters: Mapping[str, object] | None = None,
    budget: int | str | None = None,
    iterations: int = 3,
    seed: int = 0,
    pool: str | None = None,
    alignment: int | str | None = None,
    epoch: int = 0,
    carried: MutableMapping[str, Any] | None = None,
    gpus: int | None = None,
    exchange: str = "host",
    cores: int = 1,
    progress: Callable[[str], None] = no_progress,
) -> Result:
    """Replay a trace on a node under a policy.

    policy: a name with `parameters`, or a policy object. budget: bytes of device memory, or a text such as
    ``"8 GiB"``, by default the node's.
    iterations: how many are run; the last one is reported. pool: ``counting`` or ``addressed``; by default what the
    policy asks for, else counting. alignment: bytes every allocation is rounded up to, by default the node's.
    epoch: of training, for traces that tell how sparsity changes with it. carried: what the policy noted in earlier
    epochs of the same training, to which it may add.
    gpus: how many train together, each on an equal share of the trace's batch and within the budget; by default one,
    alone on its link. exchange: of their gradients as in moDNN, not by NCCL's collectives, ``gather`` or ``host``
    (`simgpu.program.data_parallel.DataParallel`); cores: of the host that add up gradients.

    Raises `InputError` for a bad trace, policy or argument, `OutOfMemoryError` where the iteration does not fit;
    `PolicyError`, an `InputError`, where the policy's code fails or its program is refused, with what was raised as its
    cause.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> result = simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn")
    >>> result.iteration_ns, result.ideal_ns, result.steady
    (83, 63, True)
    """
    node, limit = _checked(
        {
            "trace": trace,
            "node": node,
            "policy": policy,
            "iterations": iterations,
            "seed": seed,
            "budget": bytes_of("budget", budget),
            "alignment": bytes_of("alignment", alignment),
            "pool": pool,
            "epoch": epoch,
            "gpus": gpus,
            "exchange": exchange,
            "cores": cores,
        }
    )
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    whole = graph = task_graph(trace, node, epoch)
    how = DataParallel(gpus, Exchange(exchange), cores) if gpus is not None and gpus > 1 else None
    if how is not None:
        graph = exchanging(whole.at_batch(share_of(trace.info.batch, how, node)))
    together = None if how is None else (how, whole)
    shared = _Shared(graph.trace, graph, node, chosen, limit, iterations, seed, pool, epoch, together)
    program = planned(chosen, shared.context(carried, progress))
    try:
        return shared.trial(program)
    except ProgramError as error:
        raise PolicyError.of(policy_label(chosen), f"its program is refused: {error}") from error


def planning(
    trace: Trace,
    node: NodeSpec,
    policy: Policy,
    *,
    budget: int | str | None = None,
    seed: int = 0,
    alignment: int | str | None = None,
    epoch: int = 0,
    progress: Callable[[str], None] = no_progress,
) -> PlanContext:
    """What a policy plans with in `simulate`, for who asks more of it than a program. The arguments are those there.

    `PlanContext.trial` gives the `Result` that `simulate` would.
    """
    sizes = {"budget": bytes_of("budget", budget), "alignment": bytes_of("alignment", alignment)}
    node, limit = _checked({"trace": trace, "node": node, "policy": policy, "seed": seed, "epoch": epoch, **sizes})
    graph = task_graph(trace, node, epoch)
    return _Shared(trace, graph, node, policy, limit, 3, seed, None, epoch).context(progress=progress)


def told_to_fit(
    trace: Trace,
    node: NodeSpec,
    policy: Policy,
    *,
    budget: int | None = None,
    seed: int = 0,
    pool: str | None = None,
    epoch: int = 0,
) -> bool | None:
    """Whether a policy says, without a plan, that it fits (`Policy.fits`); None where only a run tells.

    The arguments are those of `simulate`, and checked there.
    """
    if type(policy).fits is Policy.fits:
        return None
    graph, limit = task_graph(trace, node, epoch), node.budget if budget is None else budget
    return says_it_fits(policy, _Shared(trace, graph, node, policy, limit, 3, seed, pool, epoch).context())


_KINDS: dict[str, type | tuple[type, ...]] = {"trace": Trace, "node": NodeSpec, "policy": (str, Policy)}
_CHOICES: dict[str, Collection[str]] = {"pool": tuple(POOLS), "exchange": tuple(Exchange)}


def _checked(arguments: dict[str, Any]) -> tuple[NodeSpec, int]:
    """The node as its memory is aligned, and the budget, of arguments and a trace that are good."""
    check_arguments(arguments, _KINDS, _CHOICES)
    if problems := check_trace(arguments["trace"]):
        raise InputError(problems)
    node, unit, budget = arguments["node"], arguments["alignment"], arguments["budget"]
    aligned = node if unit is None else replace(node, gpu=replace(node.gpu, alignment=unit))
    return aligned, node.budget if budget is None else budget


@dataclass(frozen=True)
class _Shared:
    """What a run and the trial runs of one plan share. together: how several GPUs train, and their undivided batch."""

    trace: Trace
    graph: TaskGraph
    node: NodeSpec
    policy: Policy
    budget: int
    iterations: int
    seed: int
    pool: str | None
    epoch: int
    together: tuple[DataParallel, TaskGraph] | None = None

    def context(
        self, carried: MutableMapping[str, Any] | None = None, progress: Callable[[str], None] = no_progress
    ) -> PlanContext:
        """What the policy may look at, its randomness begun anew."""
        rng, noted = np.random.default_rng(self.seed), {} if carried is None else carried
        beyond = "GPUs that train together share links" if self.together else None
        beyond = "the addressed pool has holes" if self.pool == "addressed" else beyond
        compressed = self.graph.compressed
        if compressed is not None and compressed.uses_link:
            beyond = "kernels and copies share the link to buddy memory"
        known, together = (self.graph, self.node, self.budget), self.trial if self.together else None
        return PlanContext(*known, self.run, rng, self.epoch, noted, progress, beyond=beyond, together=together)

    def trial(self, program: Program) -> Result:
        """Run a program as it will be run: on one GPU, or on all that train together."""
        return self.run(program) if self.together is None else self.run_together(program, *self.together)

    def _pool(self, program: Program) -> str:
        if self.pool == "counting" and program.pool == "addressed":
            what = f"policy {self.policy.name} plans addresses, which the counting pool does not have"
            raise InputError.single("", "pool", what, "leave it out, or ask for addressed")
        if self.pool == "addressed" and program.residency is not None:
            what = f"blocks that policy {self.policy.name} does not move have no addresses in a pool"
            raise InputError.single("", "pool", what, "leave it out, or ask for counting")
        return self.pool or program.pool or "counting"

    def run(self, program: Program) -> Result:
        """Verify and execute a program."""
        if fault := not_a_program(program):
            raise ProgramError(fault)
        notes = program.notes
        if not self.trace.blocks:
            if not program.unlimited_memory:
                what = "the recording has no tensors, so nobody can tell what fits, or move anything"
                remedy = "run the policy ideal, or import a recording with tensors or memory events"
                raise InputError.single(self.trace.name or self.trace.info.model, "blocks", what, remedy)
            notes = (*notes, "the recording has no tensors: times are its own, memory is not known")
        verify(program, self.graph, capacity=self.budget, alignment=self.node.gpu.alignment)
        notes = (*notes, *on_epoch(self.trace, self.epoch), *on_compression(program, self.graph, self.node))
        notes = (*notes, *on_gpus(program, self.node), *on_output(self.trace))
        ran = transformed(self.graph, program.transforms)
        if program.gpus == 1:
            notes = (*notes, *on_compute(self.graph if ran.compressed else uncompressed(self.graph), ran))
        pool = self._pool(program)
        run = run_program(
            program,
            self.graph,
            self.node,
            budget=self.budget,
            iterations=self.iterations,
            pool=pool,
            reclaim=reclaiming(self.policy),
        )
        return Result(
            trace=self.trace.info,
            trace_name=self.trace.name,
            node=self.node,
            policy=self.policy.name,
            parameters=self.policy.parameters,
            budget=self.budget,
            pool=pool,
            seed=self.seed,
            iterations=self.iterations,
            steady=run.steady,
            ideal_ns=uncompressed(self.graph).ideal_ns(),
            high_water=run.high_water,
            buddy_peak=run.buddy_peak,
            retired=run.retired,
            program=program,
            timeline=run.timeline,
            label=policy_label(self.policy),
            phases={kernel.id: kernel.phase for kernel in ran.kernels},
            graph=ran,
            notes=(*notes, *run.notes),
            epoch=self.epoch,
        )

    def run_together(self, program: Program, how: DataParallel, whole: TaskGraph) -> Result:
        """Run one GPU's program alone, then on all GPUs with the exchange of gradients. whole: the undivided batch."""
        alone = self.run(program)
        every = replicated(program, self.graph, self.node, priced(how, self.node), alone.timeline)
        try:
            result = self.run(every)
        except OutOfMemoryError as error:
            raise explained(error, how, self.graph) from None
        samples = f"{how.gpus} GPUs train {self.graph.trace.info.batch} of {whole.trace.info.batch} samples each"
        return replace(
            result,
            trace=replace(result.trace, batch=whole.trace.info.batch),
            notes=(f"{samples}; {how.told}", *on_exchange(self.graph, how.exchange), *result.notes),
            together=ParallelRun(how, uncompressed(whole).ideal_ns(), alone.iteration_ns, alone.graph),
        )


__all__ = ["OutOfMemoryError", "Result", "planning", "simulate", "task_graph", "told_to_fit"]
