"""Concatenations without a copy: branches write into their part of the result, as cuDNN's strides allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from simgpu.trace.model import RELEASED_AT_END, Phase, Trace


def joined_in_place(trace: Trace) -> Trace:
    """The trace as if branches wrote their parts directly into the result of a concatenation.

    Such a concatenation has no kernel, and the parts and their concatenation, which vDNN would both offload, are one
    feature map. A concatenation still copies if it has a part that is persistent or that is concatenated twice.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.modelled import build_trace
    >>> trace = build_trace("squeezenet", batch=1, gpu=load_node("v100").gpu)
    >>> len(trace.blocks) - len(joined_in_place(trace).blocks)
    16
    """
    every = [kernel for kernel in trace.kernels if kernel.op == "cat" and kernel.phase is Phase.FORWARD]
    uses = Counter(part for join in every for part in join.reads)
    once = {block.id for block in trace.blocks if uses[block.id] == 1 and not block.persistent}
    joins = [join for join in every if once.issuperset(join.reads)]
    concatenated = {part: join.writes[0] for join in joins for part in join.reads}

    def root(block: str) -> str:
        while block in concatenated:
            block = concatenated[block]
        return block

    copies = {join.id for join in joins}
    kernels = tuple(
        replace(kernel, reads=_distinct(map(root, kernel.reads)), writes=_distinct(map(root, kernel.writes)))
        for kernel in trace.kernels
        if kernel.id not in copies
    )
    last = {block: kernel.id for kernel in kernels for block in (*kernel.reads, *kernel.writes)}
    ending = {root(part) for part in concatenated} - {b.id for b in trace.blocks if b.release == RELEASED_AT_END}
    blocks = tuple(
        replace(block, release=last[block.id]) if block.id in ending else block
        for block in trace.blocks
        if block.id not in concatenated
    )
    return replace(trace, kernels=kernels, blocks=blocks)


def _distinct(blocks: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(blocks))
