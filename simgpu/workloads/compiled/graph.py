"""`GraphNode`: an operator of the graph that AOTAutograd traces for forward and backward of what is compiled.

A graph consists of nodes in the order of tracing, as ``torch.fx`` has them: views are nodes too, and an operator with
several results is one node, with one more for each result. `simplified` does what happens before the graph is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod

from simgpu.units import ITEMSIZE
from simgpu.workloads.eager.session import Launch
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.lowering.tape import TapeBlock


class NodeKind(Enum):
    """What the partitioner and the scheduler distinguish."""

    INPUT = auto()  # an input of forward
    STATIC = auto()  # a weight or a buffer of the module
    TANGENT = auto()  # the gradient of a result of forward
    VIEW = auto()
    POINTWISE = auto()
    REDUCTION = auto()
    INDEXED = auto()  # pointwise for the scheduler, but nothing that the partitioner recomputes
    EXTERN = auto()  # a kernel that is not generated
    RESULT = auto()  # one of several results


#: Nodes that read an input of the graph.
INPUTS = frozenset((NodeKind.INPUT, NodeKind.STATIC, NodeKind.TANGENT))
_FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))


@dataclass(slots=True, eq=False)
class GraphNode:
    """One operator.

    several: whether it has no value but several results, which are nodes of their own. slot: which of them.
    strides, offset: of its values; views with equal ones of one node are the same. launch: the call whose kernel an
    `EXTERN` node is. block: the memory that eager execution gave the value; None for what exists compiled only.
    is_fixed: whether it computes the same as any other node of its operator that reads the same.
    layer: the module that called the operator. backward: whether it was called in the backward pass. place: in the
    graph. users: the nodes that read it.
    """

    op: str
    kind: NodeKind
    inputs: tuple[GraphNode, ...]
    shape: Sizes
    dtype: str
    strides: Sizes = ()
    offset: int = 0
    several: bool = False
    slot: int = 0
    launch: Launch | None = None
    block: TapeBlock | None = None
    is_fixed: bool = True
    layer: str | None = None
    backward: bool = False
    place: int = 0
    users: list[GraphNode] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of its values, as if none shared memory; 0 for an operator with several results."""
        return 0 if self.several else prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def base(self) -> GraphNode:
        """The node of whose values this is a view."""
        node = self
        while node.kind is NodeKind.VIEW:
            (node,) = node.inputs
        return node


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward in one graph. results: the nodes that forward returns. gradients: those that backward
    returns."""

    nodes: Sequence[GraphNode]
    results: Sequence[GraphNode]
    gradients: Sequence[GraphNode]


def simplified(joint: Joint) -> Joint:
    """The graph without unused nodes, conversions of what was converted, and repeated nodes.

    As ``pointless_convert`` (``torch/_inductor/fx_passes/joint_graph.py``) and ``fx_graph_cse`` of PyTorch 2.13.
    """
    nodes = _used(joint.nodes, (*joint.results, *joint.gradients))
    for node in nodes:
        _skip_conversion(node)
    same: dict[GraphNode, GraphNode] = {}
    known: dict[object, GraphNode] = {}
    for node in nodes:
        node.inputs = tuple(same[each] for each in node.inputs)
        same[node] = known.setdefault(_key(node), node)
    results, gradients = ([same[each] for each in group] for group in (joint.results, joint.gradients))
    return Joint(_used([node for node in nodes if same[node] is node], (*results, *gradients)), results, gradients)


def _used(nodes: Iterable[GraphNode], outputs: Iterable[GraphNode]) -> list[GraphNode]:
    """The inputs, and the nodes of which an output depends, with their places and users."""
    needed, stack = set(outputs), list(outputs)
    while stack:
        for each in stack.pop().inputs:
            if each not in needed:
                needed.add(each)
                stack.append(each)
    kept = [node for node in nodes if node in needed]
    for place, node in enumerate(kept):
        node.place, node.users = place, []
        for each in dict.fromkeys(node.inputs):
            each.users.append(node)
    return kept


def _skip_conversion(node: GraphNode) -> None:
    """Reads the operand of a conversion that nothing else reads, unless that one was to a narrower format."""
    if node.op != "convert" or node.inputs[0].op != "convert":
        return
    (first,) = node.inputs
    (source,) = first.inputs
    is_widened = ITEMSIZE[first.dtype] < ITEMSIZE[node.dtype]
    if len(first.users) == 1 and not is_widened and {source.dtype, first.dtype, node.dtype} <= _FLOATS:
        node.inputs = (source,)
        source.users.append(node)


def _key(node: GraphNode) -> object:
    """Equal for nodes that compute the same."""
    if node.kind is NodeKind.RESULT:
        return node.op, node.inputs, node.slot
    if node.kind is NodeKind.VIEW:
        return "view", node.inputs, node.shape, node.strides, node.offset
    is_known = node.kind in (NodeKind.POINTWISE, NodeKind.REDUCTION, NodeKind.EXTERN)
    return (node.op, node.inputs, node.shape, node.dtype) if is_known and node.is_fixed else id(node)
