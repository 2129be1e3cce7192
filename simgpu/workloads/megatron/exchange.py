"""Collectives of one GPU as kernels: what they allocate, and the time that they add to the stream that computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.spec import NodeSpec
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.model import TimeModel
from simgpu.workloads.timemodel.operation import Operation, OperationKind


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Exchanges among GPUs of a node. prices: durations of the products that overlap with some of them."""

    session: Session
    node: NodeSpec
    prices: TimeModel

    def gathered(self, x: Tensor, group: Group, overlapped: Operation | None = None) -> Tensor:
        """The parts of all GPUs along the first dimension. overlapped: a product that runs meanwhile."""
        if group.ranks == 1:
            return x
        shape = (x.shape[0] * group.ranks, *x.shape[1:])
        work = self._work(Collective.ALL_GATHER, group.ranks * x.bytes, x, group, overlapped)
        return self.session.run(Collective.ALL_GATHER, (x,), ((shape, x.dtype),), operations=(work,))[0]

    def scattered(self, x: Tensor, group: Group, overlapped: Operation | None = None) -> Tensor:
        """The sum over all GPUs, of which each has its part along the first dimension."""
        if group.ranks == 1:
            return x
        shape = (x.shape[0] // group.ranks, *x.shape[1:])
        work = self._work(Collective.REDUCE_SCATTER, x.bytes, x, group, overlapped)
        return self.session.run(Collective.REDUCE_SCATTER, (x,), ((shape, x.dtype),), operations=(work,))[0]

    def exchanged(self, x: Tensor, group: Group) -> Tensor:
        """A part of the values of each GPU, in exchange for those of this one (all-to-all)."""
        work = self._work(Collective.ALL_TO_ALL, x.bytes, x, group, None)
        return self.session.run(Collective.ALL_TO_ALL, (x,), ((x.shape, x.dtype),), operations=(work,))[0]

    def into(self, buffer: Tensor, x: Tensor, group: Group) -> None:
        """The parts of all GPUs, in a buffer that exists."""
        work = self._work(Collective.ALL_GATHER, buffer.bytes, x, group, None)
        self.session.tape.launch_blocks(Collective.ALL_GATHER, (work,), [x.block], [buffer.block])

    def in_place(self, kind: Collective, tensors: Sequence[Tensor], group: Group) -> None:
        """A collective that replaces values of these tensors, which lie in one buffer."""
        if group.ranks == 1 or not tensors:
            return
        size = sum(x.bytes for x in tensors)
        work = self._work(kind, size, tensors[0], group, None)
        blocks = [x.block for x in tensors]
        self.session.tape.launch_blocks(kind, (work,), blocks, blocks, pure=False)

    def _work(self, kind: Collective, size: int, x: Tensor, group: Group, overlapped: Operation | None) -> Operation:
        took = collective_ns(kind, size, group, self.node)
        saved_ns = 0 if overlapped is None else self.prices.duration_ns(overlapped)
        return Operation(OperationKind.COPY, 0, 2 * size, x.count, dtype=x.dtype, exchange_ns=max(took - saved_ns, 0))
