"""From a vector of decisions to a placement and a program, for every policy that decides about feature maps one by one.

Lives here: what the entries of a vector stand for in a placement. Does not live here: the options themselves
(`simgpu.evaluate.options`), or who chooses (the policies).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simgpu.evaluate.options import Action, Decisions, fetch_kernel
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, transformed
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Recompute, Swap


def placement_of(graph: TaskGraph, decisions: Decisions, vector: Sequence[int], *, early: bool = True) -> Placement:
    """The placement that a vector stands for.

    graph: with the encoded forms that the vector asks for. early: copies out are issued beside the last reader's layer
    step, else after it.
    """
    form = {(of.block, graph.blocks[number].id.rpartition(":")[2]): number for number, of in graph.encoded.items()}
    swaps, recomputes = [], []
    for each, options, chosen in zip(decisions.maps, decisions.options, vector, strict=True):
        option = options[chosen]
        if option.action is Action.RECOMPUTE:
            recomputes.append(Recompute(each.block, each.after, each.before))
        elif option.action is Action.SWAP:
            swap = Swap(each.block, each.after, each.before, fetch_kernel(graph, each.after, each.before, option.ahead))
            if option.encoding is not None:
                swap = replace(swap, form=form[each.block, option.encoding.codec])
            elif early:
                swap = replace(swap, out_with=each.out_with)
            swaps.append(swap)
    return Placement(tuple(swaps), recomputes=tuple(recomputes))


def program_of(graph: TaskGraph, decisions: Decisions, vector: Sequence[int], *, early: bool = True) -> Program:
    """The program that carries out a vector, with encoded forms where it asks for them."""
    chosen = (options[number] for options, number in zip(decisions.options, vector, strict=True))
    encodings = tuple(option.encoding for option in chosen if option.encoding is not None)
    transforms = (WithEncodings(encodings),) if encodings else ()
    changed = transformed(graph, transforms)
    program = lower(changed, placement_of(changed, decisions, vector, early=early))
    return replace(program, transforms=transforms)
