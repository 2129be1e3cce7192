"""The loss: cross-entropy as PyTorch runs it, a log-softmax and the negative log-likelihood of the label."""

from __future__ import annotations

from simgpu.trace.model import BlockKind
from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.step import Made, Step
from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import OperationKind

_EXPONENTIAL = 8


def loss(step: Step) -> Made:
    """Over the last side; saves the log-softmax and the sum of the labels' weights."""
    tape, logits, labels = step.tape, step.x, step.labels
    scores = tape.new(f"{step.layer.name}.log_softmax", logits.shape, BlockKind.FEATURE_MAP)
    operation = operations.simple(OperationKind.SOFTMAX, (logits,), (scores,), _EXPONENTIAL)
    tape.launch("log_softmax", operation, (logits,), (scores,))
    value = tape.new(step.layer.name, (), BlockKind.FEATURE_MAP)
    weight = step.beside("total_weight", ())
    picked = scores.seen_as(labels.shape)
    operation = operations.simple(OperationKind.REDUCTION, (picked, labels), (value, weight))
    tape.launch("nll_loss_forward", operation, (scores, labels), (value, weight))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        inner = tape.new(f"{scores.block.id}.grad", scores.shape, BlockKind.GRADIENT)
        operation = operations.elementwise((grad, labels, weight), (inner,), backward=True)
        tape.launch("nll_loss_backward", operation, (grad, scores, labels, weight), (inner,))
        tape.keep((weight,))
        dx = step.gradient()
        operation = operations.simple(OperationKind.SOFTMAX, (inner, scores), (dx,), _EXPONENTIAL, backward=True)
        tape.launch("log_softmax_backward", operation, (inner, scores), (dx,))
        return (dx,)

    return Made(value, backward, (scores,))
