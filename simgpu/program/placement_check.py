"""The contents of a placement: swaps and recomputations whose fields are plain and number kernels and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.faults import a_type, bool_fault, number_fault, several, shown
from simgpu.program.placement import Placement, Recompute, Swap

_KERNELS = {Swap: ("after", "before", "fetch_with"), Recompute: ("after", "before")}


def check_placement(graph: TaskGraph, placement: Placement) -> None:
    """Raises `ProgramError` with every field of another type (a NumPy integer for an int, a name for a number), and
    every kernel and block that the graph does not have.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> check_placement(graph, Placement((Swap("x1", after=0, before=4, fetch_with=1),)))
    Traceback (most recent call last):
    simgpu.errors.ProgramError: the placement has 2 mistakes:
    swaps[0]: block 'x1' is a str, not an int: graph.block('x1') gives the number of a block
    swaps[0]: before 4 is out of range: the graph has 2 kernels, from 0
    """
    if type(placement) is not Placement:
        raise ProgramError(f"{shown(placement)} is {a_type(placement)}, not a Placement")
    if faults := list(_faults(graph, placement)):
        raise ProgramError(several("placement", faults))


def _faults(graph: TaskGraph, placement: Placement) -> Iterator[str]:
    kinds: tuple[tuple[str, type[Swap] | type[Recompute], Any], ...] = (
        ("swaps", Swap, placement.swaps),
        ("recomputes", Recompute, placement.recomputes),
    )
    for name, kind, every in kinds:
        if type(every) is not tuple:
            yield f"{name} is {a_type(every)}, not a tuple"
            continue
        for index, each in enumerate(every):
            if type(each) is not kind:
                yield f"{name}[{index}] is {a_type(each)}, not a {kind.__name__}"
            else:
                yield from (f"{name}[{index}]: {fault}" for fault in _faults_of(graph, each) if fault)
    if fault := bool_fault("layer_barrier", placement.layer_barrier):
        yield fault


def _faults_of(graph: TaskGraph, each: Swap | Recompute) -> Iterator[str]:
    kernels, blocks = len(graph.kernels), len(graph.blocks)
    yield number_fault("block", each.block, blocks, "blocks")
    for name in _KERNELS[type(each)]:
        yield number_fault(name, getattr(each, name), kernels, "kernels")
    if isinstance(each, Swap):
        yield "" if each.out_with is None else number_fault("out_with", each.out_with, kernels, "kernels")
        yield "" if each.form is None else number_fault("form", each.form, blocks, "blocks")
        yield bool_fault("on_host", each.on_host)
        yield bool_fault("drain", each.drain)
