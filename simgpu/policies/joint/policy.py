"""`joint`: for each feature map the best of keep, swap, swap encoded and recompute, and its gap to the lower bound.

This policy is simgpu's own. It chooses among HOME's three actions (HOME, TC 2022, section 3.3), other prefetch
distances than one layer step (as Capuchin's in-triggers allow) and, where the trace has sparsity, encoding on the GPU
(CSWAP, section IV). One search covers all of them, with the evaluator of HOME's section 3.4: it starts from the
placements of HOME, SuperNeurons and Capuchin and exchanges decisions (`simgpu.policies.joint.exploring`). The machine
then runs the result and the programs of these policies and of vDNN, and the fastest is adopted: `joint` is never slower
than any of them. HOME's particles recombine (``update=recombine``) where the feature maps are more than
`FULL_UPDATES`: one full update of 500 particles scores two placements for each feature map and particle, and takes
half a minute for a decoder of 32 layers.

A note gives the gap to a lower bound on the time of every placement of these actions within the budget or, where a
program moves more than feature maps, of every program (`simgpu.policies.joint.time_bounds`).

Splitting the batch is no placement, so `joint` does not adopt it; where anything is offloaded or recomputed, a note
gives time and peak memory of gradient accumulation. Two policies run it here: `vdnn+` with ``mode=dynamic``, which
offloads nothing where a micro-batch fits, and `modnn`, which offloads only what it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.bounds import first_reason
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.saved import Activation
from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning.evaluator import DOES_NOT_FIT, Chosen, Evaluator
from simgpu.planning.options import SWAP, Action, Decisions, Option, Vector, fetch_kernel
from simgpu.planning.search.space import Score
from simgpu.policies.base import PlanContext, Policy, parameter, policy_label, require_one_stream
from simgpu.policies.capuchin.policy import Capuchin, first_to_current
from simgpu.policies.common.compression import CODECS, known_codecs, sparse_swaps
from simgpu.policies.common.gpu_codecs import SwappingExecutor, executor_of
from simgpu.policies.common.placing import PlacingPolicy, bar, evaluator_of, inexact, notes_on, program_of
from simgpu.policies.common.shortlist import Shortlist, Tried, run_of, tried
from simgpu.policies.common.sub_batches import on_batch_norms
from simgpu.policies.home import Home
from simgpu.policies.joint.exploring import Explored, explore
from simgpu.policies.joint.time_bounds import NOT_BOUNDED, bounds_of
from simgpu.policies.modnn.policy import Modnn
from simgpu.policies.superneurons import SuperNeurons
from simgpu.policies.vdnn import Vdnn
from simgpu.policies.vdnnplus import VdnnPlus
from simgpu.program.instructions import Program
from simgpu.program.lowering import require_reads
from simgpu.program.placement import Swap
from simgpu.trace.model import Origin, Phase
from simgpu.units import format_time

#: Policies whose programs are compared with the search's result; the search does not start from them.
_RIVALS: tuple[tuple[str, Policy], ...] = (
    ("vdnn", Vdnn()),
    ("vdnn(mode=conv)", Vdnn(mode="conv")),
    ("capuchin(version=published)", Capuchin(version="published")),
)

#: The most feature maps for which HOME's particles are updated in full.
FULL_UPDATES = 250

#: Placements by policy, as numbers of HOME's three actions.
Starts = dict[str, Vector]


@dataclass(frozen=True)
class Joint(PlacingPolicy):
    """The best placement of a search over all actions, never slower than the placements that it starts from."""

    name = "joint"
    summary = "keep, swap, swap encoded or recompute: searched from other policies' placements; reports its bound gap"
    source = "simgpu's own; HOME (TC 2022), section 3.3, Capuchin (ASPLOS 2020), CSWAP (CLUSTER 2021), section IV"
    libraries = ("numba", "scipy", "scikit-learn", "bayesian-optimization")

    evaluations: int = parameter(
        250_000, "placements that the search may evaluate, besides those of the policies that it starts from"
    )
    lower_bound: bool = parameter(True, "whether to compute how far from the best possible the answer is (needs scipy)")

    def plan(self, context: PlanContext) -> Program:
        """The fastest program found.

        Raises `InputError` for a trace with several compute streams, or without what its kernels read.
        """
        # A copy of the generator, so that HOME draws the same numbers as in a run of `home`.
        home_context = replace(context, rng=deepcopy(context.rng))
        home = _home(Decisions.of(context.graph))
        starts = _starts(context)
        decisions = self.decisions(context)
        evaluator = evaluator_of(context, decisions)
        shortlist = Shortlist(evaluator.score)
        result = self._explore(context, evaluator, starts, shortlist)
        searched = program_of(context.graph, decisions, result.vector)
        makers = {"search": lambda: searched, **_rivals(context, decisions, starts)}
        vectors = {"search": result.vector, **starts}
        if evaluator.why_not:
            more = {f"search {n}": vector for n, vector in enumerate(shortlist.vectors)}
            makers |= {each: partial(program_of, context.graph, decisions, vector) for each, vector in more.items()}
            vectors |= more
            makers[f"{policy_label(home)}, by runs"] = partial(home.plan, home_context)
        runs = tried(context, makers)
        best = min(runs, key=lambda run: run.time_ns, default=None)
        label, program = ("search", searched) if best is None else best[:2]
        context.chosen(Chosen(evaluator, vectors.get(label), result.evaluations))
        notes = [_how(result)]
        if label in vectors:
            notes[:0] = notes_on(context.graph, decisions, vectors[label])
        if not label.startswith("search"):
            why = "no searched placement fits" if result.score >= DOES_NOT_FIT else "faster than the searched placement"
            notes.insert(0, f"adopted: the program of {label}, {why}")
        if self.lower_bound and context.lower_bounds and best is not None and not evaluator.why_no_bound:
            notes.append(_distance(evaluator, program, best.time_ns))
        if any(vectors.get(label, (1,))):
            notes += _suggestions(context, runs)
        return replace(program, notes=(*program.notes, *notes, *inexact(evaluator)))

    def decisions(self, context: PlanContext) -> Decisions:
        """The feature maps with all actions."""
        return with_all_actions(context, super().decisions(context))

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """The best placement of the search."""
        evaluator = evaluator_of(context, decisions)
        return self._explore(context, evaluator, _starts(context), evaluator.score).vector

    def fits(self, context: PlanContext) -> bool | None:
        """Whether a placement that it starts from fits; None where only its own search can decide."""
        starts = _starts(context)
        decisions = self.decisions(context)
        evaluator = evaluator_of(context, decisions)
        known = evaluator.why_not is None and (evaluator.costs(list(starts.values())).short == 0).any()
        return True if known else None

    def _explore(self, context: PlanContext, evaluator: Evaluator, starts: Starts, score: Score) -> Explored:
        def report(used: int) -> None:
            context.progress(f"searching {bar(used / self.evaluations)} {used} evaluations")

        seed = int(context.rng.integers(2**31))
        ideal_ns = context.graph.ideal_ns()
        choices = evaluator.decisions.choices
        return explore(choices, score, list(starts.values()), self.evaluations, seed, ideal_ns, report)


def _starts(context: PlanContext) -> Starts:
    """Placements of the policies that decide about one feature map at a time."""
    graph, node, budget = context.graph, context.node, context.budget
    require_one_stream(graph, Joint.name)
    require_reads(graph)
    basic = Decisions.of(graph)
    home = _home(basic)
    return {
        policy_label(home): home.place(context, basic),
        "capuchin": first_to_current(graph, node, budget, basic),
        "superneurons": SuperNeurons().place(context, basic),
    }


def _home(decisions: Decisions) -> Home:
    return Home() if len(decisions.maps) <= FULL_UPDATES else Home(update="recombine")


def _rivals(context: PlanContext, decisions: Decisions, starts: Starts) -> dict[str, Callable[[], Program]]:
    """Functions that create the programs with which the search's result is compared."""
    placed: dict[str, Callable[[], Program]] = {
        label: partial(program_of, context.graph, decisions, vector) for label, vector in starts.items()
    }
    return placed | {label: partial(policy.plan, context) for label, policy in _RIVALS}


def _suggestions(context: PlanContext, runs: Sequence[Tried[str]]) -> tuple[str, str]:
    """Notes on the tried programs, except the search's other placements, and on gradient accumulation."""
    named = "; ".join(f"{run.label} {run.cost}" for run in runs if not run.label.startswith("search "))
    return f"tried: {named or 'none fits'}", accumulation_note(context)


def _how(result: Explored) -> str:
    if result.score >= DOES_NOT_FIT:
        return f"none of {result.evaluations} placements fits"
    every = "best of all placements" if result.complete else f"best of {result.evaluations} evaluations"
    return f"{every}: {format_time(result.score)}"


def _distance(evaluator: Evaluator, program: Program, time_ns: int) -> str:
    """The gap between the answer and its lower bound."""
    both = bounds_of(evaluator)
    bound = both.of(program)
    if bound is None:
        return f"no lower bound: the program {NOT_BOUNDED}"
    over = time_ns / bound.ns - 1 if bound.ns else inf if time_ns else 0
    if bound is both.of_activations:
        lowest = f"{format_time(bound.ns)} ({bound.how})"
        return f"at most {over:.2%} over the best possible placement of these actions; lower bound {lowest}"
    return f"at most {over:.2%} over the lower bound of a program that moves more than feature maps: {both.summary}"


#: Numbers of micro-batches, tried until nothing is copied: more would only take longer.
_COUNTS = (2, 4, 8)


class Accumulated(NamedTuple):
    """The fastest gradient accumulation: samples per micro-batch, and the run of the policy."""

    samples: int
    run: Tried[str]


def accumulate(context: PlanContext) -> Accumulated | str:
    """The fastest number of micro-batches and policy within the budget; else a clause with the reason.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.policies.none import NoPolicy
    >>> from simgpu.simulation.run import plan_context
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 10**4), LinkSpec("pcie", 10**10, 10**10))
    >>> accumulate(plan_context(chain([5, 7], [10, 14], [100, 200]), node, NoPolicy()))
    'not tried, a batch of 1 cannot be split'
    """
    batch = context.graph.trace.info.batch
    if batch == 1:
        return "not tried, a batch of 1 cannot be split"
    runs: list[Accumulated] = []
    why = f"not even {-(-batch // max(_COUNTS))} samples at a time fit the budget"
    for samples in dict.fromkeys(-(-batch // count) for count in _COUNTS):
        for policy in (VdnnPlus(samples, mode="dynamic"), Modnn(samples)):
            label = policy_label(policy)
            context.progress(f"trying {label}")
            try:
                runs.append(Accumulated(samples, run_of(context, label, policy.plan(context))))
            except InputError as error:
                why = f"not tried, {first_reason(error)}"
            except OutOfMemoryError:
                continue
        if any(not each.run.copies for each in runs):
            break
    return min(runs, key=lambda each: each.run.time_ns) if runs else why


def accumulation_note(context: PlanContext) -> str:
    """A note on time and memory of gradient accumulation, with its caveats."""
    result = accumulate(context)
    if isinstance(result, str):
        return f"gradient accumulation: {result}"
    trace, samples = context.graph.trace, result.samples
    count = -(-trace.info.batch // samples)
    parts = [f"gradient accumulation, {count} micro-batches ({result.run.label}): {result.run.cost}"]
    if trace.info.origin is not Origin.MODELLED:
        parts.append(f"times of {samples} samples are modelled, not recorded")
    if trace.algorithms:
        parts.append("with algorithms of its own choice")
    parts += on_batch_norms(trace, samples)
    return "; ".join(parts)


#: Layer steps between the fetch of a block and its use: 1 is HOME's, 0 needs the least memory.
AHEAD = (0, 1, 2, 4, 8, 16, 32, 64)
#: The same for encoded blocks; fewer, since each is one more option for each codec.
AHEAD_ENCODED = (0, 1, 4, 16)


def with_all_actions(context: PlanContext, decisions: Decisions) -> Decisions:
    """The decisions with all prefetch distances and all Pareto-optimal codecs.

    The same blocks as in CSWAP are encoded, outputs of ReLU and max pooling with known sparsity, on the GPU at the best
    launch setting. A GPU without known codec times encodes nothing.
    """
    encodings = _encodings(context, decisions)
    return decisions.with_options(
        [*_at_other_moments(context.graph, each), *_encoded(context.graph, each, encodings.get(each.block, []))]
        for each in decisions.maps
    )


def _moments(graph: TaskGraph, each: Activation, distances: tuple[int, ...]) -> Iterator[int]:
    """The distances with distinct fetch kernels, all in backward except HOME's."""
    seen: set[int] = set()
    for ahead in distances:
        fetch = fetch_kernel(graph, each.after, each.before, ahead)
        if fetch not in seen and (ahead == SWAP.ahead or graph.kernels[fetch].phase is not Phase.FORWARD):
            seen.add(fetch)
            yield ahead


def _at_other_moments(graph: TaskGraph, each: Activation) -> list[Option]:
    return [Option(Action.SWAP, ahead) for ahead in _moments(graph, each, AHEAD) if ahead != SWAP.ahead]


def _encoded(graph: TaskGraph, each: Activation, encodings: list[Encoding]) -> list[Option]:
    moments = tuple(_moments(graph, each, AHEAD_ENCODED))
    return [Option(Action.SWAP, ahead, encoding) for encoding in encodings for ahead in moments]


def _encodings(context: PlanContext, decisions: Decisions) -> dict[int, list[Encoding]]:
    """The Pareto-optimal encodings of each block that may be encoded."""
    graph, costs = context.graph, context.graph.costs
    if costs is None:
        return {}
    swaps = [Swap(each.block, each.after, each.before, each.before) for each in decisions.maps]
    sparse = sparse_swaps(graph, swaps, costs)
    codecs = known_codecs(graph, sparse, costs, CODECS)
    if not codecs:
        return {}
    try:
        executor = executor_of(context, sparse, costs, codecs, "grid_search")
    except InputError:
        return {}
    return {swap.block: _worth_it(graph, costs, executor, swap.block, codecs) for swap in sparse}


def _worth_it(
    graph: TaskGraph, costs: EncodingCosts, executor: SwappingExecutor, b: int, codecs: tuple[str, ...]
) -> list[Encoding]:
    block = graph.blocks[b]
    efficient: list[tuple[tuple[int, int, int], Encoding]] = []
    for codec in codecs:
        if not costs.is_known(block, codec) or costs.encoded_bytes(block, codec) >= graph.copy_sizes[b]:
            continue
        encoding = executor.encoding(b, codec)
        cost = (
            costs.encoded_bytes(block, codec),
            costs.encode_ns(block, encoding),
            costs.decode_ns(block, encoding),
        )
        if not any(all(a <= c for a, c in zip(other, cost, strict=True)) for other, _ in efficient):
            efficient.append((cost, encoding))
    return [encoding for _, encoding in efficient]
