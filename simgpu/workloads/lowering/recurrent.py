"""One time step of a long short-term memory, as PyTorch's cell on a GPU: two products and one fused kernel.

The fused kernel saves the gates; backward reads them with the cell states before and after. The gates' shares from
input and recurrence are let go of at once. Weights are used at every time step, so that their gradients add up.
"""

from __future__ import annotations

from dataclasses import replace

from simgpu.trace.model import BlockKind
from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.products import product
from simgpu.workloads.lowering.step import MadeOfParts, Step
from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import Direction, GemmShape

#: Operations for each of the four gates: a sum, an exponential, a product.
_GATE_COUNT = 10


def lstm_cell(step: Step) -> MadeOfParts:
    """Inputs: x, h, c. Parts of the result: the output h and the cell state c, in one block."""
    tape, (_, _, c) = step.tape, step.inputs
    hidden = c.shape[-1]
    gates = (step.batch, 4 * hidden)
    names = ("weight_input", "weight_recurrent")
    shares = [_share(step, index, name, gates) for index, name in enumerate(names)]
    y = step.result()
    saved = step.beside("gates", gates, kind=BlockKind.FEATURE_MAP)
    bias = (step.weights["bias"],) if "bias" in step.weights else ()
    reads, writes = (*shares, *bias, c), (y, saved)
    tape.launch("lstm_cell", operations.elementwise(reads, writes, _GATE_COUNT), reads, writes)
    output, state = y.seen_as((step.batch, hidden)), y.seen_as((step.batch, hidden))

    def backward(grads: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        found = tuple(grad for grad in grads if grad is not None)
        dgates = tape.new(f"{step.layer.name}.gates.grad", gates, BlockKind.GRADIENT)
        dc = step.gradient(2) if step.needed[2] else None
        reads, writes = (*found, c, state, saved), (dgates, *((dc,) if dc is not None else ()))
        operation = operations.elementwise(reads, writes, 2 * _GATE_COUNT, backward=True)
        tape.launch("lstm_cell_backward", operation, reads, writes)
        dx, dh = (_share_backward(step, index, name, dgates) for index, name in enumerate(names))
        for total in step.weight_gradients("bias"):
            tape.launch("linear_backward_bias", operations.summed(dgates, total), (dgates,), (total,))
        return dx, dh, dc

    return MadeOfParts((output, state), backward, (*step.inputs, y, saved))


def _share(step: Step, index: int, name: str, gates: tuple[int, ...]) -> Value:
    """What the gates get from one input."""
    x, weight = step.inputs[index], step.weights[name]
    y = step.beside(name.replace("weight", "gates"), gates, kind=BlockKind.FEATURE_MAP)
    shape = GemmShape(step.batch, gates[-1], x.shape[-1])
    step.tape.launch("linear", operations.gemm(shape, (x, weight), (y,)), (x, weight), (y,))
    return y


def _share_backward(step: Step, index: int, name: str, dgates: Value) -> Value | None:
    x, weight = step.inputs[index], step.weights[name]
    outputs, inputs = weight.shape
    forward = GemmShape(step.batch, outputs, inputs)
    dx = step.gradient(index) if step.needed[index] else None
    if dx is not None:
        product(step, "linear_backward_data", replace(forward, n=inputs, k=outputs), (dgates, weight), (dx,))
    shape = GemmShape(outputs, inputs, step.batch)
    target = step.weight_gradients(name)
    product(step, "linear_backward_weights", shape, (dgates, x), target, Direction.BACKWARD_WEIGHTS)
    return dx
