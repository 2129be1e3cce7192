"""Collectives of GPUs that compute one model together, as PyTorch's DTensor runs them on one of these.

Tensors of tokens are (batch, tokens, width); each GPU may have an equal part of the tokens. NCCL gathers and scatters
along the first dimension only, so that the parts of several samples are copied before or after
(``torch/distributed/_functional_collectives.py``). Nothing runs during a collective: the next kernel waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.spec import NodeSpec
from simgpu.trace.model import BlockKind
from simgpu.workloads.eager.pointwise import elementwise, only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering.tape import Tape, TapeBlock, Value
from simgpu.workloads.timemodel.operation import Operation, OperationKind

_Grads = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """GPUs that compute one model together, of which one is modelled.

    count: their number, at least 2. node: where all of them are.
    whole: weights that each of them has whole. Their gradients are summed over all GPUs in the optimizer step.
    """

    count: int
    node: NodeSpec
    whole: set[TapeBlock] = field(default_factory=set)

    def work(self, kind: Collective, size: int, moved: int, results: int, dtype: str) -> Operation:
        """The work of a collective. size: bytes of its whole buffer. moved: bytes that this GPU reads and writes."""
        duration = collective_ns(kind, size, Group(self.count), self.node)
        return Operation(OperationKind.COPY, 0, moved, results, dtype=dtype, exchange_ns=duration)

    def values_of_all(self, weights: Sequence[Tensor]) -> int:
        """Number of values of all GPUs' parts of these weights; whole ones count once."""
        return sum(weight.count * (1 if weight.block in self.whole else self.count) for weight in weights)


def gathered(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    """The tokens of all GPUs, of which x has this one's. Its gradient is summed over all GPUs and scattered."""
    result = _all_gather(session, group, x)
    with session.distributed():
        session.record((result,), (x,), lambda grads: (_reduce_scatter(session, group, only(grads)),))
    return result


def as_distributed(session: Session, x: Tensor) -> Tensor:
    """The same values as a distributed tensor, with a place of their own in autograd's graph."""
    result = x.seen(x.shape, x.strides)
    session.record((result,), (x,), lambda grads: (only(grads),))
    return result


def scattered(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    """This GPU's tokens of the sum over all GPUs. The gradients of all tokens are gathered."""
    result = _reduce_scatter(session, group, x)
    session.keep((x,))  # the module's hook still refers to it
    session.record((result,), (x,), lambda grads: (_all_gather(session, group, only(grads)),))
    return result


def all_reduce(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    """The sum, or the largest, of each value over all GPUs, outside autograd's graph."""
    work = group.work(Collective.ALL_REDUCE, x.bytes, 2 * x.bytes, x.count, x.dtype)
    return session.run("all_reduce", (x,), ((x.shape, x.dtype),), operations=(work,))[0]


def _all_gather(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    batch, tokens, width = x.shape
    size, values = group.count * x.bytes, group.count * x.count
    work = group.work(Collective.ALL_GATHER, size, size + x.bytes, values, x.dtype)
    stacked: Sizes = (group.count * batch, tokens, width)
    (result,) = session.run("all_gather", (x,), ((stacked, x.dtype),), operations=(work,))
    shape = (batch, group.count * tokens, width)
    return result.seen(shape) if batch == 1 else session.run("cat", (result,), ((shape, x.dtype),))[0]


def _reduce_scatter(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    batch, tokens, width = x.shape
    part = tokens // group.count
    (stacked,) = session.run("cat", (x,), (((group.count * batch, part, width), x.dtype),))
    size = x.bytes // group.count
    work = group.work(Collective.REDUCE_SCATTER, x.bytes, x.bytes + size, x.count // group.count, x.dtype)
    return session.run("reduce_scatter", (stacked,), (((batch, part, width), x.dtype),), operations=(work,))[0]


@dataclass(frozen=True, slots=True)
class LocalIndices:
    """Numbers of classes of which each GPU has an equal part: those of this GPU, counted from its first; 0 for others.

    absent: which belong to other GPUs.
    """

    values: Tensor
    absent: Tensor

    @classmethod
    def of(cls, session: Session, indices: Tensor) -> LocalIndices:
        """As ``_MaskPartial`` of DTensor (``_partition_value``) computes them."""
        below, above = (elementwise(session, op, indices, dtype="bool") for op in ("lt", "ge"))
        absent = elementwise(session, "__or__", below, above)
        (copied,) = session.run("clone", (indices,), ((indices.shape, indices.dtype),))
        values = elementwise(session, "sub", copied)
        session.run_in_place("index_put_", values, (absent,), as_called=True)
        return cls(values, absent)


def embedded_part(session: Session, group: PeerGroup, indices: Tensor, table: Tensor) -> Tensor:
    """Rows of a table of which each GPU has an equal part, for this GPU's tokens of each sample; saves the indices.

    Backward gathers the gradient of all tokens and computes, on each GPU, that of the whole table: DTensor has no rule
    for a part (``embedding_dense_backward`` in ``_ops/_embedding_ops.py``). The optimizer step reads this GPU's rows.
    """
    first = len(session.tape.kernels)
    local = LocalIndices.of(session, indices)
    rows, width = table.shape
    (found,) = session.run("embedding", (table, local.values), (((*indices.shape, width), table.dtype),))
    session.run_in_place("index_put_", found, (local.absent,))
    session.keep((local.values,))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        whole: Sizes = (group.count * rows, width)
        (result,) = session.run("embedding_dense_backward", (grad, indices), ((whole, table.dtype),))
        return (result.part(0, 0, rows),)

    session.record((found,), (table,), backward, (indices,), first=first)
    return scattered(session, group, found)


def local_gradients(group: PeerGroup, tape: Tape, weights: Sequence[Value], grads: Sequence[Value]) -> list[Value]:
    """The gradients of this GPU's parts of the weights, which DTensor computes for each operand of each operator.

    It sums those of whole weights over all GPUs, and copies this GPU's part of the embedding's.
    """
    return [_local_gradient(group, tape, *pair) for pair in zip(weights, grads, strict=True)]


def _local_gradient(group: PeerGroup, tape: Tape, weight: Value, grad: Value) -> Value:
    is_summed = weight.block in group.whole
    if not is_summed and grad.block.bytes == weight.bytes:
        return grad
    result = tape.new(f"{grad.block.id}.local", weight.shape, BlockKind.OTHER, grad.block.dtype)
    moved, dtype = 2 * result.bytes, grad.block.dtype
    if is_summed:
        work = group.work(Collective.ALL_REDUCE, result.bytes, moved, result.count, dtype)
        tape.launch("all_reduce", work, (grad,), (result,))
    else:
        tape.launch("clone", Operation(OperationKind.COPY, 0, moved, result.count, dtype=dtype), (grad,), (result,))
    return result
