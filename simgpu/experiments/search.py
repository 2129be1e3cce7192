"""`search_placement` runs a policy's search for a placement (HOME, TC 2022, sections 3.3 to 3.5, 4.5 and 4.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Unpack

import numpy as np

from simgpu.errors import InputError, OutOfMemoryError, Problem
from simgpu.experiments.compare import PolicyRequest, policy_from
from simgpu.experiments.search_result import Outcome, Search, WallClock, placed_maps
from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning.evaluator import Chosen, Evaluator
from simgpu.planning.options import Decisions
from simgpu.planning.search.swarm import Swarm
from simgpu.policies.base import PlanContext, Policy, no_progress, policy_label
from simgpu.policies.calling import planned
from simgpu.policies.capuchin.policy import Capuchin
from simgpu.policies.common.placing import PlacingPolicy
from simgpu.policies.home import Home
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import plan_context
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.program.instructions import Program

#: Number of vectors whose evaluation is timed, and number of repetitions.
_TIMED, _ROUNDS = 64, 3


def search_placement(
    trace: Trace,
    node: NodeSpec,
    policy: PolicyRequest = "home",
    config: RunConfig | None = None,
    *,
    parameters: Mapping[str, object] | None = None,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> Search:
    """Search for a placement with a policy, and run the best one. It may not fit; see `Search.fits`.

    policy: a policy that decides about one feature map at a time (home, superneurons, capuchin, joint), in any form
    that `simgpu.compare` accepts, or a name with `parameters`
    The other arguments are those of `simgpu.simulate`.

    Raises `InputError` for a policy without such decisions and for several policies, and the errors of `simulate`
    for trace, node and arguments.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> node = NodeSpec("example", GpuSpec("gpu", 900), LinkSpec("pcie", 10**10, 10**10))
    >>> result = search_placement(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]), node)
    >>> [(each.name, each.action, each.overhead_ns) for each in result.maps]
    [('x2', 'recompute', 5), ('x3', 'keep', 0)]
    """
    chosen_policy = _one_policy(policy, parameters)
    _check(chosen_policy)
    config = run_config(config, settings, trace=trace, node=node)
    context = plan_context(trace, node, chosen_policy, config, progress=progress)
    progress("preparing the evaluator")
    _compile()
    begin = perf_counter()
    program, chosen = _planned(chosen_policy, context)
    planning_s = perf_counter() - begin
    progress("running the best placement")
    outcome = _ran(context, program)
    timeline = None if isinstance(outcome, OutOfMemoryError) else outcome.timeline
    return Search(
        label=policy_label(chosen_policy),
        policy=chosen_policy.name,
        parameters=chosen_policy.parameters,
        trace=trace.info,
        trace_name=trace.name,
        node=context.node,
        budget=context.budget,
        seed=config.seed,
        epoch=config.epoch,
        ideal_ns=context.graph.ideal_ns(context.node.host.launch_ns),
        chosen=chosen,
        maps=placed_maps(context.graph, chosen, timeline),
        notes=program.notes,
        outcome=outcome,
        wall_clock=WallClock(planning_s, _evaluation_s(chosen.evaluator, config.seed), chosen.evaluator.threads),
    )


def check_searched(policies: Iterable[PolicyRequest]) -> None:
    """Raise `InputError` with the problems of all policies, before a long search."""
    problems: list[Problem] = []
    for request in policies:
        try:
            _check(_one_policy(request, None))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def _one_policy(request: PolicyRequest, parameters: Mapping[str, object] | None) -> Policy:
    if isinstance(request, str):
        return make_policy(request, parameters)
    pair = isinstance(request, tuple) and len(request) == 2 and isinstance(request[1], Mapping)
    if not (pair or isinstance(request, Policy) or (isinstance(request, Mapping) and len(request) == 1)):
        what = f"{str(request)[:60]} is not one policy"
        raise InputError.single("", "argument policy", what, "ask for one at a time, as name or {name: parameters}")
    return policy_from(request)


def _check(policy: Policy) -> None:
    """Raise `InputError` for a policy of this package that decides otherwise, and for an invalid swarm."""
    placing = isinstance(policy, PlacingPolicy) or policy == Capuchin(version="home")
    # Policies from outside the package are checked after planning.
    if not placing and type(policy).__module__.startswith("simgpu."):
        raise _decides_otherwise(policy)
    if isinstance(policy, Home):
        try:
            Swarm(choices=2, length=1, particles=policy.particles, iterations=policy.iterations)
        except InputError as error:
            label = f"policy {policy_label(policy)}"
            raise InputError(replace(each, place=f"{label}: {each.place}") for each in error.problems) from None


def _decides_otherwise(policy: Policy) -> InputError:
    what = f"policy {policy_label(policy)} does not decide about one feature map at a time"
    return InputError.single("", "policy", what, "choose home, superneurons, capuchin(version=home) or joint")


def _planned(policy: Policy, context: PlanContext) -> tuple[Program, Chosen]:
    reported: list[Chosen] = []
    program = planned(policy, replace(context, chosen=reported.append))
    if not reported:
        raise _decides_otherwise(policy)
    return program, reported[-1]


def _ran(context: PlanContext, program: Program) -> Outcome:
    try:
        return context.trial(program)
    except OutOfMemoryError as error:
        return error


def _compile() -> None:
    """Compile the evaluator, so that its compilation is not timed."""
    from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec

    graph = TaskGraph.of(chain([1, 1, 1], [1, 1, 1], [1, 1, 1]))
    node = NodeSpec("any", GpuSpec("any", 1), LinkSpec("any", 1, 1))
    Evaluator(graph, node, 1, Decisions.of(graph)).costs([[0]])


def _evaluation_s(evaluator: Evaluator, seed: int) -> float | None:
    """Seconds for one random vector on one thread; None if there is nothing to decide."""
    choices = evaluator.decisions.choices
    if not choices:
        return None
    alone = replace(evaluator, threads=1)
    vectors = np.random.default_rng(seed).integers(0, choices, size=(_TIMED, len(choices)), dtype=np.int8)
    took = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        alone.score(vectors)
        took.append(perf_counter() - begin)
    return min(took) / _TIMED
