"""The gradients and the distributed optimizer of one GPU: Megatron-LM 0.20, ``core/optimizer/distrib_optimizer.py``.

Gradients are added up in float32, in one buffer as long as nothing overlaps with its exchange (``bucket_size`` is None
then, ``core/distributed/distributed_data_parallel.py``). After the last micro-batch each GPU of the data-parallel group
gets its part of the sum, updates that part of float32 copies of the weights with TransformerEngine's fused Adam, and
the GPUs gather the weights. A weight's part is taken to be an equal one, rounded up; there it is a range of the buffer.
Experts have buffers and an optimizer of their own, as fewer GPUs share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.hardware.collectives import Collective, Group
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import contiguous_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering.operations import elementwise
from simgpu.workloads.lowering.tape import Tape, Value
from simgpu.workloads.megatron.layers import Parts
from simgpu.workloads.timemodel.operation import Operation, OperationKind


@dataclass(frozen=True, slots=True)
class _Own:
    """A GPU's part of a weight: of its float32 copy, and of the two averages."""

    copy: Value
    averages: tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class _Share:
    """Weights that the GPUs of a group have, with their gradients and this GPU's parts of the optimizer's state."""

    parts: Parts
    group: Group
    weights: list[Tensor]
    gradients: list[Tensor]
    own: list[_Own]

    @classmethod
    def create(cls, parts: Parts, group: Group, weights: list[Tensor]) -> _Share:
        own, gradients = [], []
        for weight in weights:
            size = -(-weight.count // group.ranks)
            copy, *averages = (_state(parts.session, weight, name, size) for name in ("main", "exp_avg", "exp_avg_sq"))
            own.append(_Own(copy, (averages[0], averages[1])))
            gradients.append(_gradient(parts.session, weight))
            parts.gradients[weight.block] = gradients[-1]
        return cls(parts, group, weights, gradients, own)

    @property
    def tape(self) -> Tape:
        return self.parts.session.tape

    @property
    def of_gradients(self) -> list[Value]:
        """This GPU's parts."""
        return [Value(grad.block, own.copy.shape) for grad, own in zip(self.gradients, self.own, strict=True)]

    def reduce(self, scaled: bool) -> None:
        if scaled:
            _each(self.tape, "mul_", [Value(each.block, each.shape) for each in self.gradients])
        self.parts.exchanges.in_place(Collective.REDUCE_SCATTER, self.gradients, self.group)

    def norm(self) -> Value:
        norm = self.tape.new("optimizer.norm", (), BlockKind.OTHER)
        self.tape.launch("multi_tensor_l2norm", elementwise(self.of_gradients, [norm], 2), self.of_gradients, [norm])
        return norm

    def update(self, norms: Sequence[Value]) -> None:
        tape, parts = self.tape, self.of_gradients
        _each(tape, "multi_tensor_scale", parts, norms)
        changed = [each for own in self.own for each in (own.copy, *own.averages)]
        _each(tape, "multi_tensor_adam", changed, parts, per_value=10)
        copies, halves = [own.copy for own in self.own], [Value(weight.block, weight.shape) for weight in self.weights]
        own_halves = [Value(weight.block, own.copy.shape) for weight, own in zip(self.weights, self.own, strict=True)]
        reads = copies if self.group.ranks == 1 else [*copies, *halves]  # the rest of each weight is kept
        tape.launch("_foreach_copy_", elementwise(copies, own_halves), reads, halves, pure=False)

    def gather(self) -> None:
        self.parts.exchanges.in_place(Collective.ALL_GATHER, self.weights, self.group)


class DistributedOptimizer:
    """group: the GPUs that share the batch. of_experts: those of them that have the same experts."""

    def __init__(self, parts: Parts, group: Group, of_experts: Group) -> None:
        self.parts, self.group = parts, group
        self.shares = []
        for is_expert, ranks in ((False, group), (True, of_experts)):
            weights = [x for x in parts.session.weights if (x.block in parts.of_experts) is is_expert]
            if weights:
                self.shares.append(_Share.create(parts, ranks, weights))
        parts.session.tape.layer = None

    def clear(self) -> None:
        """Sets all gradients to zero, before the first micro-batch."""
        gradients = [each for share in self.shares for each in share.gradients]
        written = sum(each.bytes for each in gradients)
        work = Operation(OperationKind.ELEMENTWISE, 0, written, sum(each.count for each in gradients))
        self.parts.session.tape.launch_blocks("zero_", (work,), (), [each.block for each in gradients])

    def step(self) -> None:
        """The exchange of gradients, their clipping to a norm, the update, and the exchange of weights."""
        tape = self.parts.session.tape
        tape.phase, tape.layer = Phase.OPTIMIZER, None
        for share in self.shares:
            share.reduce(scaled=self.group.ranks > 1)
        norms = [share.norm() for share in self.shares]
        for share in self.shares:
            share.update(norms)
        for share in self.shares:
            share.gather()


def _state(session: Session, weight: Tensor, name: str, size: int) -> Value:
    session.tape.layer = weight.block.layer
    return session.tape.constant(f"{weight.block.id}.{name}", (size,), BlockKind.OPTIMIZER_STATE)


def _gradient(session: Session, weight: Tensor) -> Tensor:
    session.tape.layer = weight.block.layer
    name = f"{weight.block.id}.main_grad"
    block = session.tape.constant(name, weight.shape, BlockKind.WEIGHT_GRADIENT, "float32").block
    return Tensor(block, weight.shape, contiguous_strides(weight.shape))


def _each(tape: Tape, op: str, targets: Sequence[Value], others: Sequence[Value] = (), *, per_value: int = 1) -> None:
    """A kernel that changes every target in place."""
    reads = [*targets, *others]
    tape.launch(op, elementwise(reads, targets, per_value), reads, targets, pure=False)
