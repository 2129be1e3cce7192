"""What policies that compress on vDNN's way have in common.

Lives here: which of vDNN's swaps carry zeros, and the program that lets some of them travel encoded. Does not live
here: which of them should (each policy's own decision), or where vDNN swaps (`simgpu.policies.vdnn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, transformed
from simgpu.policies.vdnn import place, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.ops import OpClass, op_class

_MAKES_ZEROS = (OpClass.ACTIVATION, OpClass.POOLING)


def offloads(graph: TaskGraph, policy: str, *, convolutions_only: bool) -> tuple[tuple[Swap, ...], EncodingCosts]:
    """vDNN's swaps, and what encoding costs.

    Raises `InputError` for several compute streams, and for a trace that does not tell what compression makes of any
    block.
    """
    require_one_stream(graph, policy)
    if graph.costs is None:
        what = f"the trace tells no sparsity and no compressed sizes, which {policy} goes by"
        remedy = "record it with --epochs, or model it with simgpu zoo build"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "sparsity", what, remedy)
    return place(graph, convolutions_only=convolutions_only), graph.costs


def carries_zeros(graph: TaskGraph, swap: Swap) -> bool:
    """Whether what is swapped is the output of a ReLU or a pooling layer (CSWAP, section IV-A)."""
    writers = [k for k in graph.uses[swap.block] if k <= swap.after and swap.block in graph.writes[k]]
    return bool(writers) and op_class(graph.kernels[writers[-1]].op) in _MAKES_ZEROS


def sparse_swaps(graph: TaskGraph, swaps: Iterable[Swap], costs: EncodingCosts) -> tuple[Swap, ...]:
    """The swaps of outputs of ReLU and pooling layers whose sparsity the trace tells."""
    return tuple(
        swap for swap in swaps if carries_zeros(graph, swap) and costs.sparsity(graph.blocks[swap.block]) is not None
    )


def encoded_offloading(
    graph: TaskGraph, swaps: Iterable[Swap], encodings: Mapping[int, Encoding], *, on_host: bool = False
) -> Program:
    """vDNN's program with some blocks encoded on their way, by block position.

    on_host: they are encoded in host memory, after the copy out, and decoded there before the copy in.
    """
    chosen = tuple(encodings[b] for b in sorted(encodings))
    transforms = (WithEncodings(chosen),) if chosen else ()
    changed = transformed(graph, transforms)
    form = {of.block: form for form, of in changed.encoded.items()}
    travelling = tuple(replace(swap, form=form.get(swap.block), on_host=on_host) for swap in swaps)
    program = lower(changed, Placement(travelling, layer_barrier=True))
    return replace(program, transforms=transforms)
