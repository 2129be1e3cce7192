"""Restores operators that autograd runs in place, but not while operators are intercepted.

Where two branches of the backward pass meet, autograd adds the second gradient into the memory of the first, if nothing
else references that memory. The backward of an operator that selects values (maximum, top k, gather, an index) writes
into zeros that it created. While operators are intercepted, both create one more tensor and free the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from simgpu.recorder.autocast import replaced
from simgpu.recorder.notes import BlockNote, KernelNote

_KEY = "simgpu.meeting"
#: Operators that write into zeros in the backward of an operator that selects values: ``areAnyTensorSubclassLike`` in
#: PyTorch's ``FunctionsManual.cpp`` decides whether in place.
SELECTING = frozenset(
    f"aten::{name}"
    for name in ("scatter", "scatter_add", "index_add", "index_put", "index_fill", "put", "masked_scatter")
)


class _Meeting(IntEnum):
    """Which gradients a node's results may be added to: none, those of other nodes, or also its own."""

    NONE = 0
    OTHERS = 1
    OWN = 2


@contextmanager
def meetings_marked() -> Iterator[None]:
    """Inside the context, every run of autograd marks its meetings, also one inside another (checkpointing)."""
    own = torch.autograd._engine_run_backward

    def run(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        mark_meetings(*(output.grad_fn for output in outputs if output.grad_fn is not None))
        return own(outputs, *args, **kwargs)

    with replaced(torch.autograd, "_engine_run_backward", run):
        yield


def mark_meetings(*roots: Any) -> None:
    """Note in every autograd node reachable from the roots whether its results are added to another gradient.

    The notes are stored in the nodes' own metadata, so they keep no node or saved tensor alive.
    """
    arriving: Counter[tuple[Any, int]] = Counter()
    nodes, waiting = set(roots), list(roots)
    while waiting:
        for edge in waiting.pop().next_functions:
            target = edge[0]
            if target is not None:
                arriving[edge] += 1
                if target not in nodes:
                    nodes.add(target)
                    waiting.append(target)
    for node in nodes:
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        meeting = _Meeting.OTHERS if any(arriving[edge] > 1 for edge in edges) else _Meeting.NONE
        node.metadata[_KEY] = _Meeting.OWN if len(set(edges)) < len(edges) else meeting


def may_sum(node: Any, is_own_result: bool) -> bool:
    """Returns whether an addition during an autograd node may be autograd's sum of two gradients.

    is_own_result: whether the first operand was created during the same node, so it is not an earlier gradient.
    """
    meeting = node.metadata.get(_KEY, _Meeting.NONE)
    return bool(meeting >= (_Meeting.OWN if is_own_result else _Meeting.OTHERS))


def fits_in_first(operands: Sequence[Any]) -> bool:
    """Returns whether autograd may add the second gradient into the first one's memory, if nothing else uses it.

    The base of a view references the view's memory too. The gradient of a linear layer's weight is a transposed product
    and so a view; the gradient of a tied embedding is therefore a third tensor. The same gradient given twice is
    referenced twice. (See ``can_accumulate_inplace`` in PyTorch's ``input_buffer.cpp``.)
    """
    first, second = operands
    return not first._is_view() and first.untyped_storage()._cdata != second.untyped_storage()._cdata


def in_place_operands(kernels: Sequence[KernelNote], blocks: Sequence[BlockNote]) -> dict[int, int]:
    """Returns the first operand of each operator that autograd runs in place, by its result.

    An operator that may be in place is so if its first operand was freed right after it.
    """
    result = {}
    for place, kernel in enumerate(kernels):
        if kernel.may_be_in_place:
            first, total = kernel.reads[0], kernel.writes[0]
            freed = blocks[first].release == place and not blocks[first].persistent
            if freed and blocks[first].bytes == blocks[total].bytes:
                result[total] = first
    return result


class Folded(NamedTuple):
    """Notes with operators in place. numbers: by number of a block before, its number now."""

    kernels: list[KernelNote]
    blocks: list[BlockNote]
    numbers: dict[int, int]


def fold_in_place(
    kernels: Sequence[KernelNote], blocks: Sequence[BlockNote]
) -> tuple[list[KernelNote], list[BlockNote]]:
    """Returns the notes with each operator of `in_place_operands` in place."""
    return folded(kernels, blocks)[:2]


def folded(kernels: Sequence[KernelNote], blocks: Sequence[BlockNote]) -> Folded:
    """As `fold_in_place`, with the numbers of blocks."""
    stands_for = list(range(len(blocks)))
    result = list(blocks)
    in_place = in_place_operands(kernels, blocks)
    written = set()
    for place, kernel in enumerate(kernels):
        if kernel.may_be_in_place and in_place.get(kernel.writes[0]) == kernel.reads[0]:
            first, total = kernel.reads[0], kernel.writes[0]
            root = stands_for[total] = stands_for[first]
            created, lasting = blocks[root], blocks[total]
            named = lasting if lasting.name else created
            result[root] = replace(
                created,
                release=lasting.release,
                kind=named.kind,
                name=named.name,
                layer=named.layer,
                entries=lasting.entries,
                dumped=created.dumped | lasting.dumped,
            )
            written.add(place)
    retained = [number for number in range(len(blocks)) if stands_for[number] == number]
    renumbered = {number: place for place, number in enumerate(retained)}

    def now(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(renumbered[stands_for[number]] for number in numbers))

    notes = [
        replace(
            kernel,
            op=f"{kernel.op}_" if place in written else kernel.op,
            reads=now(kernel.reads),
            writes=now(kernel.writes),
        )
        for place, kernel in enumerate(kernels)
    ]
    numbers = {number: renumbered[root] for number, root in enumerate(stands_for)}
    return Folded(notes, [result[number] for number in retained], numbers)
