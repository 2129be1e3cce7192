"""`regions_of` finds what `torch.compile` compiles in an iteration, and makes the graph of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.compiled.decompositions import KNOWN, Expansion, expanded
from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.compiled.graph import INPUTS, GraphNode, Joint, NodeKind
from simgpu.workloads.eager.pointwise import elementwise, only
from simgpu.workloads.eager.session import Launch, Session
from simgpu.workloads.eager.strides import contiguous_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering.tape import TapeBlock, TapeKernel

#: The modules that contain the layers, each by its number.
_CONTAINERS = frozenset(("layers", "h"))
_KEPT = frozenset((BlockKind.WEIGHT_GRADIENT,))


def layer_of(module: str | None) -> str | None:
    """The layer that a module is part of, as ``model.layers.3``; None outside of layers.

    >>> layer_of("transformer.h.11.mlp.act"), layer_of("transformer.ln_f")
    ('transformer.h.11', None)
    """
    parts = (module or "").split(".")
    for place, part in enumerate(parts[:-1]):
        if part in _CONTAINERS and parts[place + 1].isdigit():
            return ".".join(parts[: place + 2])
    return None


class Output(NamedTuple):
    """A value that a graph returns, in this memory."""

    block: TapeBlock
    node: GraphNode


@dataclass(slots=True, eq=False)
class Region:
    """One run of a compiled graph.

    places: of its kernels on the tape of eager execution. before: of other kernels that its backward needs.
    results, gradients: what forward and backward return. current, after_forward: the node of each block's values, at
    the end and when forward had ended.
    """

    places: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    nodes: list[GraphNode] = field(default_factory=list)
    results: list[Output] = field(default_factory=list)
    gradients: list[Output] = field(default_factory=list)
    current: dict[TapeBlock, GraphNode] = field(default_factory=dict)
    after_forward: dict[TapeBlock, GraphNode] = field(default_factory=dict)

    @property
    def joint(self) -> Joint:
        """Its graph."""
        return Joint(self.nodes, [each.node for each in self.results], [each.node for each in self.gradients])


def regions_of(session: Session, form: CompileForm) -> list[Region]:
    """The runs of compiled graphs in an iteration that ran eagerly, in the order of their forward passes.

    Raises `InputError` for operators in a graph that are not modelled.
    """
    if session.launches is None:
        raise ValueError("the session did not note its launches")
    kernels = session.tape.kernels
    named: Callable[[TapeKernel], str | None] = _layer_of if form is CompileForm.LAYERS else _model_of
    regions: list[Region] = []
    open_: dict[str, Region] = {}
    for launch in session.launches:
        kernel = kernels[launch.place]
        name = named(kernel)
        if name is None or launch.collects or kernel.phase is Phase.OPTIMIZER:
            continue
        if kernel.phase is Phase.FORWARD and (name not in open_ or open_[name].after_forward):
            open_[name] = Region()
            regions.append(open_[name])
        _add(open_[name], launch, kernel)
    _check(regions, kernels)
    _find_outputs(session, regions)
    return regions


def _layer_of(kernel: TapeKernel) -> str | None:
    return layer_of(kernel.layer)


def _model_of(kernel: TapeKernel) -> str | None:
    """The model, which computes its loss; what starts backward is outside, and what `returned` gives it."""
    starts = kernel.op == "ones_like" and kernel.layer == "loss" and not kernel.reads
    return None if starts or kernel.layer is None else "model"


def returned(session: Session, x: Tensor) -> Tensor:
    """A result of a compiled graph, other than the loss, that nothing reads.

    Its gradient, which does not exist, is zeros for the graph: those that ``torch.autograd.Function`` creates by
    default (``set_materialize_grads``).
    """
    result = x.seen(x.shape, x.strides)

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        layer, session.tape.layer = session.tape.layer, None
        (zeros,) = session.run("zeros", (), ((x.shape, x.dtype),))
        session.tape.layer = layer
        return (elementwise(session, "add", zeros, only(grads)),)

    session.record((result,), (x,), backward)
    return result


def _check(regions: Iterable[Region], kernels: Sequence[TapeKernel]) -> None:
    others = {kernels[place].op for region in regions for place in region.places} - KNOWN
    if others:
        what = f"operators {', '.join(sorted(others))} in a compiled graph are not modelled"
        raise InputError.single("", "compile", what, "leave it out")


def _add(region: Region, launch: Launch, kernel: TapeKernel) -> None:
    """Adds a call to the graph."""
    backward = kernel.phase is Phase.BACKWARD
    if backward and not region.after_forward:
        region.after_forward = dict(region.current)
    region.places.append(launch.place)
    if launch.op not in KNOWN:
        return
    to = Expansion(region.nodes, launch, layer=kernel.layer, backward=backward)
    results = expanded(to, [_read(region, x, kernel.layer, backward) for x in launch.reads])
    for node, tensor in zip(results, launch.created or (launch.changed,), strict=True):
        assert tensor is not None
        node.block = node.block or tensor.block
        region.current[tensor.block] = node


def _read(region: Region, tensor: Tensor, layer: str | None, backward: bool) -> GraphNode:
    """The node of a value: that of its memory, or a view of it."""
    block = tensor.block
    node = region.current.get(block)
    if node is None:
        kind = NodeKind.INPUT
        if block.persistent and block.kind in (BlockKind.WEIGHT, BlockKind.OTHER):
            kind = NodeKind.STATIC
        elif backward:
            kind = NodeKind.TANGENT
        node = GraphNode(block.id, kind, (), block.shape, block.dtype, contiguous_strides(block.shape), block=block)
        region.nodes.append(node)
        region.current[block] = node
    if (node.shape, node.strides, node.offset) == (tensor.shape, tensor.strides, tensor.offset):
        return node
    view = GraphNode("view", NodeKind.VIEW, (node,), tensor.shape, block.dtype, tensor.strides, tensor.offset)
    view.layer, view.backward = layer, backward
    region.nodes.append(view)
    return view


def _find_outputs(session: Session, regions: Sequence[Region]) -> None:
    """What others read of the memory that a graph writes, and what is held longer."""
    kernels = session.tape.kernels
    owner = {place: region for region in regions for place in region.places}
    readers: dict[TapeBlock, set[Region | None]] = {}
    for place, kernel in enumerate(kernels):
        for block in (*kernel.reads, *kernel.writes):
            readers.setdefault(block, set()).add(owner.get(place))
    for place, kernel in enumerate(kernels):
        if kernel.op == "zeros" and kernel.layer is None:
            for region in regions:
                region.before += [place for block in kernel.writes if block in region.current]
    for region in regions:
        region.after_forward = region.after_forward or region.current
        for block, node in region.current.items():
            if node.kind in INPUTS:
                continue
            is_held = block.release is None or block.release > region.places[-1]
            is_output = is_held or block.kind in _KEPT or readers.get(block, {region}) != {region}
            if is_output and block in region.after_forward:
                region.results.append(Output(block, region.after_forward[block]))
            elif is_output:
                region.gradients.append(Output(block, node))
