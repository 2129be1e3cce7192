"""The gradients and the distributed optimizer of one GPU: Megatron-LM 0.20, ``core/optimizer/distrib_optimizer.py``.

Gradients are added up in float32, in one buffer as long as nothing overlaps with its exchange (``bucket_size`` is None
then, ``core/distributed/distributed_data_parallel.py``). After the last micro-batch each GPU of the data-parallel group
gets its part of the sum, updates that part of float32 copies of the weights with TransformerEngine's fused Adam, and
the GPUs gather the weights. A weight's part is taken to be an equal one, rounded up; there it is a range of the buffer.
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


class DistributedOptimizer:
    """group: the GPUs that share the batch."""

    def __init__(self, parts: Parts, group: Group) -> None:
        self.parts, self.group = parts, group
        session = parts.session
        self.own = []
        for weight in session.weights:
            size = -(-weight.count // group.ranks)
            copy, *averages = (self._state(weight, name, size) for name in ("main", "exp_avg", "exp_avg_sq"))
            self.own.append(_Own(copy, (averages[0], averages[1])))
            parts.gradients[weight.block] = _gradient(session, weight)
        session.tape.layer = None

    def _state(self, weight: Tensor, name: str, size: int) -> Value:
        tape = self.parts.session.tape
        tape.layer = weight.block.layer
        return tape.constant(f"{weight.block.id}.{name}", (size,), BlockKind.OPTIMIZER_STATE)

    def clear(self) -> None:
        """Sets all gradients to zero, before the first micro-batch."""
        gradients = self._gradients()
        written = sum(each.bytes for each in gradients)
        work = Operation(OperationKind.ELEMENTWISE, 0, written, sum(each.count for each in gradients))
        self.parts.session.tape.launch_blocks("zero_", (work,), (), [each.block for each in gradients])

    def step(self) -> None:
        """The exchange of gradients, their clipping to a norm, the update, and the exchange of weights."""
        session, tape = self.parts.session, self.parts.session.tape
        tape.phase, tape.layer = Phase.OPTIMIZER, None
        gradients, weights = self._gradients(), session.weights
        if self.group.ranks > 1:
            _each(tape, "mul_", [Value(each.block, each.shape) for each in gradients])
            self.parts.exchanges.in_place(Collective.REDUCE_SCATTER, gradients, self.group)
        parts = [Value(grad.block, own.copy.shape) for grad, own in zip(gradients, self.own, strict=True)]
        norm = tape.new("optimizer.norm", (), BlockKind.OTHER)
        tape.launch("multi_tensor_l2norm", elementwise(parts, [norm], 2), parts, [norm])
        _each(tape, "multi_tensor_scale", parts, [norm])
        changed = [each for own in self.own for each in (own.copy, *own.averages)]
        _each(tape, "multi_tensor_adam", changed, parts, per_value=10)
        copies, halves = [own.copy for own in self.own], [Value(weight.block, weight.shape) for weight in weights]
        own_halves = [Value(weight.block, own.copy.shape) for weight, own in zip(weights, self.own, strict=True)]
        reads = copies if self.group.ranks == 1 else [*copies, *halves]  # the rest of each weight is kept
        tape.launch("_foreach_copy_", elementwise(copies, own_halves), reads, halves, pure=False)
        self.parts.exchanges.in_place(Collective.ALL_GATHER, weights, self.group)

    def _gradients(self) -> list[Tensor]:
        return [self.parts.gradients[weight.block] for weight in self.parts.session.weights]


def _gradient(session: Session, weight: Tensor) -> Tensor:
    session.tape.layer = weight.block.layer
    name = f"{weight.block.id}.main_grad"
    block = session.tape.constant(name, weight.shape, BlockKind.WEIGHT_GRADIENT, "float32").block
    return Tensor(block, weight.shape, contiguous_strides(weight.shape))


def _each(tape: Tape, op: str, targets: Sequence[Value], others: Sequence[Value] = (), *, per_value: int = 1) -> None:
    """A kernel that changes every target in place."""
    reads = [*targets, *others]
    tape.launch(op, elementwise(reads, targets, per_value), reads, targets, pure=False)
