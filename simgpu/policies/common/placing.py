"""Policies that choose one action for each feature map: from a vector of decisions to a placement and a program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simgpu.graph.recompute import unrecomputable
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, transformed
from simgpu.planning.evaluator import Chosen, Evaluator
from simgpu.planning.options import Action, Decisions, Vector, fetch_kernel
from simgpu.policies.base import PlanContext, Policy, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower, require_reads
from simgpu.program.placement import Placement, Recompute, Swap

#: Programs of placements that are kept of one graph, and the most instructions that one of them has.
_MOST, _LARGEST = 8, 200_000


@dataclass(frozen=True)
class PlacingPolicy(Policy):
    """A policy that chooses an action for each feature map: keep, swap or recompute."""

    @abstractmethod
    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """The chosen option of each feature map."""

    def plan(self, context: PlanContext) -> Program:
        """The program of the decisions, with asynchronous copies.

        Raises `InputError` for a trace with several compute streams, or without the reads of its kernels.
        """
        decisions = self.decisions(context)
        vector = self.place(context, decisions)
        context.chosen(Chosen(evaluator_of(context, decisions), vector))
        program = program_of(context.graph, decisions, vector)
        return replace(program, notes=(*program.notes, *notes_on(context.graph, decisions, vector)))

    def decisions(self, context: PlanContext) -> Decisions:
        """The feature maps and their options."""
        require_one_stream(context.graph, self.name)
        require_reads(context.graph)
        return Decisions.of(context.graph)


def evaluator_of(context: PlanContext, decisions: Decisions) -> Evaluator:
    """The evaluator of decisions in this context."""
    return Evaluator(context.graph, context.node, context.budget, decisions, exactness_limit=context.exactness_limit)


def placement_of(
    graph: TaskGraph,
    decisions: Decisions,
    vector: Sequence[int],
    *,
    early: bool = True,
    drained: Sequence[bool] | None = None,
) -> Placement:
    """The placement of a vector.

    graph: with the encoded forms that the vector uses. early: offloads overlap with the last reader's layer step, else
    they begin after it. drained: feature maps whose fetch waits for all copies (`Swap.drain`).
    """
    form = {(of.block, graph.blocks[number].id.rpartition(":")[2]): number for number, of in graph.encoded.items()}
    swaps, recomputes = [], []
    for f, (each, options, chosen) in enumerate(zip(decisions.maps, decisions.options, vector, strict=True)):
        option = options[chosen]
        if option.action is Action.RECOMPUTE:
            recomputes.append(Recompute(each.block, each.after, each.before))
        elif option.action is Action.SWAP:
            fetch = fetch_kernel(graph, each.after, each.before, option.ahead)
            swap = Swap(each.block, each.after, each.before, fetch, drain=bool(drained and drained[f]))
            if option.encoding is not None:
                swap = replace(swap, form=form[each.block, option.encoding.codec])
            elif early:
                swap = replace(swap, out_with=each.out_with)
            swaps.append(swap)
    return Placement(tuple(swaps), recomputes=tuple(recomputes))


def program_of(
    graph: TaskGraph,
    decisions: Decisions,
    vector: Sequence[int],
    *,
    early: bool = True,
    drained: Sequence[bool] | None = None,
) -> Program:
    """The program of a vector, with the encoded forms that it uses; other parameters as in `placement_of`.

    A placement that was lowered before is not lowered again.
    """
    chosen = (options[number] for options, number in zip(decisions.options, vector, strict=True))
    encodings = tuple(option.encoding for option in chosen if option.encoding is not None)
    transforms = (WithEncodings(encodings),) if encodings else ()
    changed = transformed(graph, transforms)
    placement = placement_of(changed, decisions, vector, early=early, drained=drained)
    lowered: dict[tuple[object, ...], Program] = graph.kept.setdefault(("lowered",), {})
    program = lowered.pop((transforms, placement), None) or lower(changed, placement)
    if len(program) <= _LARGEST:
        lowered[transforms, placement] = program
    if len(lowered) > _MOST:
        del lowered[next(iter(lowered))]
    segments = tuple(replace(each, streams=dict(each.streams)) for each in program.segments)
    return replace(program, segments=segments, transforms=transforms)


def actions_text(decisions: Decisions, vector: Sequence[int]) -> str:
    """The number of feature maps by action, as text."""
    chosen = [options[number] for options, number in zip(decisions.options, vector, strict=True)]
    counts = {
        "kept": sum(option.action is Action.KEEP for option in chosen),
        "swapped": sum(option.action is Action.SWAP and option.encoding is None for option in chosen),
        "swapped encoded": sum(option.encoding is not None for option in chosen),
        "recomputed": sum(option.action is Action.RECOMPUTE for option in chosen),
    }
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what != "swapped encoded")
    return f"{len(chosen)} feature maps: {parts}"


def notes_on(graph: TaskGraph, decisions: Decisions, vector: Sequence[int]) -> tuple[str, ...]:
    """The actions of a vector, and the saved activations that no vector can recompute, if any."""
    return (actions_text(decisions, vector), *unrecomputable(graph).notes())


def inexact(evaluator: Evaluator) -> tuple[str, ...]:
    """A note where the evaluator's times differ from the machine's."""
    why = evaluator.why_not
    return (f"planned with times that are not exact on this node: {why}",) if why else ()


def bar(share: float, width: int = 20) -> str:
    """A progress bar.

    >>> bar(0.5, width=8)
    '━━━━────'
    """
    done = round(min(max(share, 0), 1) * width)
    return "━" * done + "─" * (width - done)
