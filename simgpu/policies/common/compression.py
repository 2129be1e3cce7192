"""Encoding of what vDNN offloads: which tensors are sparse, launch settings of codecs, and the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.surface import ResponseSurface
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.gpu.tuner import LaunchTuner
from simgpu.errors import InputError
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithEncodings, transformed
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.base import PlanContext, require_one_stream
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.trace.operators import OpClass, op_class

Launch = Literal["tuned", "expert", "random", "grid_search"]

#: The codecs of the paper (section IV-E), in the order in which equal costs are decided.
CODECS = ("zvc", "csr", "rle", "lz4")

#: Operators whose results are the sparse tensors of CSWAP: ReLU, which PyTorch also calls threshold, and max pooling.
_MAKES_ZEROS = re.compile(r"(?<!leaky_)(?<!p)relu|threshold|max_?pool|maxpool", re.IGNORECASE)
#: Operators that only move values, so that the zeros of what they read are in what they make.
_KEEPS_ZEROS = re.compile(r"(^|[^a-z])(cat|concat|stack|clone|contiguous|copy_?|flatten|reshape|view)([^a-z]|$)")


def encoding_costs(graph: TaskGraph, policy: str) -> EncodingCosts:
    """What encoding costs, for a policy that compresses.

    Raises `InputError` for several compute streams, and for a trace that does not tell what compression makes of any
    block.
    """
    require_one_stream(graph, policy)
    if graph.costs is None:
        what = f"the trace has neither sparsity nor compressed sizes, which {policy} needs"
        remedy = "record it with --epochs, or model it with epochs (simgpu zoo build --epochs, epochs: in a scenario)"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "sparsity", what, remedy)
    return graph.costs


def carries_zeros(graph: TaskGraph, b: int, before: int) -> bool:
    """Whether a block holds, before a kernel, the output of ReLU or max pooling (CSWAP, section IV-A).

    Also what dropout makes of one, and what moves such outputs together, such as the concatenation of a fire module.
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
    """The swaps of what carries the zeros of ReLU and max pooling, where the trace tells how many."""
    return tuple(
        swap
        for swap in swaps
        if carries_zeros(graph, swap.block, swap.after + 1) and costs.sparsity(graph.blocks[swap.block]) is not None
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


def nothing_to_compress(graph: TaskGraph, swaps: Iterable[Swap], why: str) -> Program:
    """vDNN's program as it is, with a note that says why nothing is compressed."""
    program = encoded_offloading(graph, swaps, {})
    return replace(program, notes=(*program.notes, f"nothing is compressed: {why}"))


def known_codecs(
    graph: TaskGraph, sparse: Iterable[Swap], costs: EncodingCosts, codecs: Iterable[str]
) -> tuple[str, ...]:
    """The codecs of which the size of some sparse tensor is known."""
    blocks = [graph.blocks[swap.block] for swap in sparse]
    return tuple(codec for codec in codecs if any(costs.is_known(block, codec) for block in blocks))


@dataclass(frozen=True)
class SwappingExecutor:
    """The codec's kernels: a launch setting for each codec on one GPU.

    surface: how long they take there.
    """

    surface: ResponseSurface
    settings: Mapping[str, LaunchSetting]

    def encoding(self, block: int, codec: str) -> Encoding:
        """A block in a codec, at that codec's launch setting."""
        setting = self.settings[codec]
        return Encoding(block, codec, grid=setting.grid, threads=setting.threads)

    def program(self, graph: TaskGraph, swaps: tuple[Swap, ...], chosen: Mapping[int, str], sparse: int) -> Program:
        """vDNN's program with these blocks encoded by these codecs. sparse: how many might have been."""
        program = encoded_offloading(graph, swaps, {b: self.encoding(b, codec) for b, codec in chosen.items()})
        counts = Counter(chosen.values())
        by_codec = ", ".join(f"{count} by {codec} at {self.settings[codec]}" for codec, count in sorted(counts.items()))
        notes = [f"{len(chosen)} of {sparse} sparse tensors are compressed" + (f": {by_codec}" if by_codec else "")]
        if chosen:
            notes.append(f"codec times on {self.surface.gpu}: {self.surface.description}")
        return replace(program, notes=(*program.notes, *notes))


def executor_of(
    context: PlanContext, sparse: Iterable[Swap], costs: EncodingCosts, codecs: Iterable[str], launch: Launch
) -> SwappingExecutor:
    """An executor whose launch settings are chosen before training begins, and remembered over its epochs."""
    key = f"launch settings, {launch}"
    known: dict[str, LaunchSetting] = context.carried.setdefault(key, {})
    blocks = [context.graph.blocks[swap.block] for swap in sparse]
    tensors = tuple(SparseTensor(block.bytes, costs.sparsity(block) or 0.0) for block in blocks)
    surface = response_of(context.node.gpu)
    for codec in codecs:
        if codec not in known:
            known[codec] = _setting(context.node.gpu, codec, tensors, launch, int(context.rng.integers(2**31)))
    return SwappingExecutor(surface, known)


@lru_cache(maxsize=256)
def _setting(gpu: GpuSpec, codec: str, tensors: tuple[SparseTensor, ...], launch: Launch, seed: int) -> LaunchSetting:
    tuner = LaunchTuner(response_of(gpu), codec, tensors)
    if launch == "expert":
        return tuner.expert(gpu).setting
    if launch == "random":
        return tuner.random(seed).setting
    return (tuner.grid_search() if launch == "grid_search" else tuner.bayesian(seed)).setting
