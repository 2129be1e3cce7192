"""Encoding of vDNN's offloads: which tensors are sparse, and the program that encodes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, transformed
from simgpu.policies.base import require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.operators import OpClass, op_class

#: The codecs of the paper (section IV-E); of equal costs the first wins.
CODECS = ("zvc", "csr", "rle", "lz4")

#: Operators whose results are the sparse tensors of CSWAP: ReLU, which PyTorch also calls threshold, and max pooling.
_MAKES_ZEROS = re.compile(r"(?<!leaky_)(?<!p)relu|threshold|max_?pool|maxpool", re.IGNORECASE)
#: Operators that only move values, so that zeros of their inputs stay in their outputs.
_KEEPS_ZEROS = re.compile(r"(^|[^a-z])(cat|concat|stack|clone|contiguous|copy_?|flatten|reshape|view)([^a-z]|$)")


def encoding_costs(graph: TaskGraph, policy: str) -> EncodingCosts:
    """The costs of encoding, for a policy that compresses.

    Raises `InputError` for several compute streams, and for a trace with neither sparsity nor compressed sizes.
    """
    require_one_stream(graph, policy)
    if graph.costs is None:
        what = f"the trace has neither sparsity nor compressed sizes, which {policy} needs"
        remedy = "record it with --epochs, or model it with epochs (simgpu zoo build --epochs, epochs: in a scenario)"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "sparsity", what, remedy)
    return graph.costs


def carries_zeros(graph: TaskGraph, b: int, before: int) -> bool:
    """Whether a block holds, before a kernel, the output of ReLU or max pooling (CSWAP, section IV-A).

    True also for the output of a dropout of one, and of operators that move such outputs, such as a concatenation.
    """
    writers = [k for k in graph.uses[b] if k < before and b in graph.writes[k]]
    if not writers:
        return False
    op = graph.kernels[writers[-1]].op
    if _MAKES_ZEROS.search(op) and op_class(op) in (OpClass.ACTIVATION, OpClass.POOLING):
        return True
    if op_class(op) is not OpClass.DROPOUT and not _KEEPS_ZEROS.search(op.lower()):
        return False
    return any(carries_zeros(graph, other, writers[-1]) for other in graph.reads[writers[-1]])


def sparse_swaps(graph: TaskGraph, swaps: Iterable[Swap], costs: EncodingCosts) -> tuple[Swap, ...]:
    """The swaps of tensors that carry the zeros of ReLU and max pooling and whose sparsity the trace contains."""
    return tuple(
        swap
        for swap in swaps
        if carries_zeros(graph, swap.block, swap.after + 1) and costs.sparsity(graph.blocks[swap.block]) is not None
    )


def encoded_offloading(
    graph: TaskGraph, swaps: Iterable[Swap], encodings: Mapping[int, Encoding], *, on_host: bool = False
) -> Program:
    """vDNN's program with some blocks encoded for the copies.

    encodings: by block position. on_host: blocks are encoded in host memory after the offload, and decoded there before
    the prefetch.
    """
    chosen = tuple(encodings[b] for b in sorted(encodings))
    transforms = (WithEncodings(chosen),) if chosen else ()
    changed = transformed(graph, transforms)
    form = {of.block: form for form, of in changed.encoded.items()}
    travelling = tuple(replace(swap, form=form.get(swap.block), on_host=on_host) for swap in swaps)
    program = lower(changed, Placement(travelling, layer_barrier=True))
    return replace(program, transforms=transforms)


def nothing_to_compress(graph: TaskGraph, swaps: Iterable[Swap], why: str) -> Program:
    """vDNN's program without compression, with a note that gives the reason."""
    program = encoded_offloading(graph, swaps, {})
    return replace(program, notes=(*program.notes, f"nothing is compressed: {why}"))


def known_codecs(
    graph: TaskGraph, sparse: Iterable[Swap], costs: EncodingCosts, codecs: Iterable[str]
) -> tuple[str, ...]:
    """The codecs for which the compressed size of some sparse tensor is known."""
    blocks = [graph.blocks[swap.block] for swap in sparse]
    return tuple(codec for codec in codecs if any(costs.is_known(block, codec) for block in blocks))
