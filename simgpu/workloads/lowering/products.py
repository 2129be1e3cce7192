"""Lowers product layers: convolution, linear, product of two inputs, embedding, and one time step of an LSTM.

Backward of a convolution and of a linear layer has separate kernels for data, weights and bias, as in the libraries.
Gradients that are not needed are not computed: the first layer has no backward for its data.

A time step of an LSTM is two products and one fused kernel, like PyTorch's cell on a GPU. The fused kernel saves the
gates; backward reads them with the cell states before and after. The gate contributions of input and recurrence are
freed immediately. Every time step uses the weights, so their gradients add up.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from simgpu.trace.model import BlockKind
from simgpu.workloads.lowering import operations
from simgpu.workloads.lowering.step import LayerLowering, LoweredLayer, LoweredParts
from simgpu.workloads.lowering.tape import Value
from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape

#: Operations per gate value: a sum, an exponential, a product.
_GATE_COUNT = 10


def lstm_cell(step: LayerLowering) -> LoweredParts:
    """Inputs: x, h, c. Parts of the result: the output h and the cell state c, in one block."""
    tape, (_, _, c) = step.tape, step.inputs
    hidden = c.shape[-1]
    gates = (step.batch, 4 * hidden)
    names = ("weight_input", "weight_recurrent")
    contributions = [_gates_from(step, index, name, gates) for index, name in enumerate(names)]
    y = step.result()
    saved = step.extra_output("gates", gates, kind=BlockKind.ACTIVATION)
    bias = (step.weights["bias"],) if "bias" in step.weights else ()
    reads, writes = (*contributions, *bias, c), (y, saved)
    tape.launch("lstm_cell", operations.elementwise(reads, writes, _GATE_COUNT), reads, writes)
    output, state = y.seen_as((step.batch, hidden)), y.seen_as((step.batch, hidden))

    def backward(grads: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        result = tuple(grad for grad in grads if grad is not None)
        dgates = tape.new(f"{step.layer.name}.gates.grad", gates, BlockKind.GRADIENT)
        dc = step.gradient(2) if step.needed[2] else None
        reads, writes = (*result, c, state, saved), (dgates, *((dc,) if dc is not None else ()))
        operation = operations.elementwise(reads, writes, 2 * _GATE_COUNT, backward=True)
        tape.launch("lstm_cell_backward", operation, reads, writes)
        dx, dh = (_gates_backward(step, index, name, dgates) for index, name in enumerate(names))
        for total in step.weight_gradients("bias"):
            tape.launch("linear_backward_bias", operations.summed(dgates, total), (dgates,), (total,))
        return dx, dh, dc

    return LoweredParts((output, state), backward, (*step.inputs, y, saved))


def _gates_from(step: LayerLowering, index: int, name: str, gates: tuple[int, ...]) -> Value:
    """The contribution of one input to the gates."""
    x, weight = step.inputs[index], step.weights[name]
    y = step.extra_output(name.replace("weight", "gates"), gates, kind=BlockKind.ACTIVATION)
    shape = GemmShape(step.batch, gates[-1], x.shape[-1])
    step.tape.launch("linear", operations.gemm(shape, (x, weight), (y,)), (x, weight), (y,))
    return y


def _gates_backward(step: LayerLowering, index: int, name: str, dgates: Value) -> Value | None:
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


_Pair = tuple[int, int]
_OPPOSITE = {
    Direction.FORWARD: Direction.BACKWARD_DATA,
    Direction.BACKWARD_DATA: Direction.FORWARD,
    Direction.BACKWARD_WEIGHTS: Direction.BACKWARD_WEIGHTS,
}


def convolution(step: LayerLowering) -> LoweredLayer:
    """Saves input and weight. A transposed convolution swaps the forward and backward-data kernels of a plain one.

    The bias is part of the operator, as in PyTorch's ``convolution``, although a separate kernel adds it.
    """
    x, weight, y = step.x, step.weights["weight"], step.result()
    transposed = step.attribute("transposed", False)
    shape = _convolution_shape(step, transposed)
    op = "conv_transpose2d" if transposed else "conv2d"

    def launch(suffix: str, way: Direction, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> None:
        bias = step.weights.get("bias") if way is Direction.FORWARD else None
        operation = operations.convolution(shape, _OPPOSITE[way] if transposed else way, reads, writes, bias)
        step.tape.launch(op + suffix, operation, reads, writes)

    launch("", Direction.FORWARD, (x, *step.weights.values()), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx, begun = step.gathered(grad) if step.needed[0] else (None, ())
        if dx is not None:
            launch("_backward_data", Direction.BACKWARD_DATA, (grad, weight, *begun), (dx,))
        launch("_backward_weights", Direction.BACKWARD_WEIGHTS, (grad, x), step.weight_gradients("weight"))
        _bias(step, f"{op}_backward_bias", grad)
        return (None if begun else dx,)

    return LoweredLayer(y, backward, (x,))


def _convolution_shape(step: LayerLowering, transposed: bool) -> ConvolutionShape:
    """Shape of the convolution; that from its result to its input for a transposed one."""
    wide, narrow = (step.shape, step.x.shape) if transposed else (step.x.shape, step.shape)
    unit: _Pair = (1, 1)
    shape = ConvolutionShape(
        step.batch,
        in_channels=wide[1],
        in_size=(wide[2], wide[3]),
        out_channels=narrow[1],
        kernel=step.attribute("kernel", unit),
        stride=step.attribute("stride", unit),
        padding=step.attribute("padding", (0, 0)),
        dilation=step.attribute("dilation", unit),
        groups=step.attribute("groups", 1),
    )
    assert shape.out_size == narrow[2:], f"{step.layer.name}: {shape.out_size} is not {narrow[2:]}"
    return shape


def _bias(step: LayerLowering, op: str, grad: Value) -> None:
    for total in step.weight_gradients("bias"):
        step.tape.launch(op, operations.summed(grad, total), (grad,), (total,))


def linear(step: LayerLowering) -> LoweredLayer:
    """Saves input and weight; every row of the input is one row of the product."""
    if sampled := step.attribute("sampled_rows", 0):
        return sampled_linear(step, sampled)
    x, weight, y = step.x, step.weights["weight"], step.result()
    outputs, inputs = weight.shape
    forward = GemmShape(operations.rows_of(x.shape), outputs, inputs)
    reads = (x, *step.weights.values())
    step.tape.launch("linear", operations.gemm(forward, reads, (y,)), reads, (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx, begun = step.gathered(grad) if step.needed[0] else (None, ())
        if dx is not None:
            shape = replace(forward, n=inputs, k=outputs)
            product(step, "linear_backward_data", shape, (grad, weight, *begun), (dx,))
        target = step.weight_gradients("weight")
        shape = GemmShape(outputs, inputs, forward.m)
        product(step, "linear_backward_weights", shape, (grad, x), target, Direction.BACKWARD_WEIGHTS)
        _bias(step, "linear_backward_bias", grad)
        return (None if begun else dx,)

    return LoweredLayer(y, backward, (x,))


def product(
    step: LayerLowering,
    op: str,
    shape: GemmShape,
    reads: tuple[Value, ...],
    writes: tuple[Value, ...],
    direction: Direction = Direction.BACKWARD_DATA,
) -> None:
    """Puts one backward product on the tape."""
    step.tape.launch(op, operations.gemm(shape, reads, writes, direction), reads, writes)


def matmul(step: LayerLowering) -> LoweredLayer:
    """The product of two inputs; saves both. Their leading dimensions are batches of products."""
    a, b, y = *step.inputs, step.result()
    rows, depth, columns = a.shape[-2], a.shape[-1], y.shape[-1]
    shape = GemmShape(rows, columns, depth, prod(a.shape[:-2]))
    step.tape.launch("bmm", operations.gemm(shape, (a, b), (y,)), (a, b), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        da = step.gradient(0) if step.needed[0] else None
        if da is not None:
            product(step, "bmm_backward", replace(shape, n=depth, k=columns), (grad, b), (da,))
        db = step.gradient(1) if step.needed[1] else None
        if db is not None:
            product(step, "bmm_backward", GemmShape(depth, columns, rows, shape.count), (a, grad), (db,))
        return da, db

    return LoweredLayer(y, backward, (a, b))


def sampled_linear(step: LayerLowering, rows: int) -> LoweredLayer:
    """A product with `rows` sampled rows of its weight, which are gathered first; only they get a gradient.

    Gathering is not pure: every iteration samples other rows.
    """
    x, y = step.x, step.result()
    drawn: dict[str, Value] = {}
    for name, table in step.weights.items():
        drawn[name] = step.extra_output(f"sampled_{name}", (rows, *table.shape[1:]), kind=BlockKind.ACTIVATION)
        operation = operations.gathered(drawn[name], drawn[name])
        step.tape.launch("index_select", operation, (table,), (drawn[name],), pure=False)
    forward = GemmShape(operations.rows_of(x.shape), rows, x.shape[-1])
    reads = (x, *drawn.values())
    step.tape.launch("linear", operations.gemm(forward, reads, (y,)), reads, (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        dx = step.gradient()
        shape = replace(forward, n=forward.k, k=rows)
        product(step, "linear_backward_data", shape, (grad, drawn["weight"]), (dx,))
        target = step.gradients.into_weight(step.weights["weight"], drawn["weight"].shape)
        shape = GemmShape(rows, forward.k, forward.m)
        product(step, "linear_backward_weights", shape, (grad, x), (target,), Direction.BACKWARD_WEIGHTS)
        total = step.gradients.into_weight(step.weights["bias"], drawn["bias"].shape)
        step.tape.launch("linear_backward_bias", operations.summed(grad, total), (grad,), (total,))
        return (dx,)

    return LoweredLayer(y, backward, (x, drawn["weight"]))


def embedding(step: LayerLowering) -> LoweredLayer:
    """Rows of a table; saves the tokens. The gradient has the table's shape, or only the rows read if it is sparse."""
    tokens, table, y = step.x, step.weights["weight"], step.result()
    sparse = step.attribute("sparse_gradient", False)
    step.tape.launch("embedding", operations.gathered(tokens, y), (tokens, table), (y,))

    def backward(grad: Value) -> tuple[Value | None, ...]:
        rows = (tokens.count, table.shape[-1]) if sparse else table.shape
        total = step.gradients.into_weight(table, rows)
        op = "embedding_sparse_backward" if sparse else "embedding_dense_backward"
        step.tape.launch(op, operations.scattered(tokens, grad, total), (grad, tokens), (total,))
        return step.for_first_input(None)

    return LoweredLayer(y, backward, (tokens,))
