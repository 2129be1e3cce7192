"""The optimizer step: SGD with and without momentum, Adam and AdamW.

Each kernel updates all weights, like PyTorch's ``foreach`` implementation, its default on a GPU; fused AdamW has one
kernel, and keeps the number of steps of each weight on the GPU. States have the number format of their weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.lowering.operations import elementwise, updated_rows
from simgpu.workloads.lowering.tape import Tape, TapeBlock, Value


class Optimizer(StrEnum):
    """The optimizers; the comments list the state that they keep between iterations."""

    SGD = "sgd"  # with momentum: one buffer per weight
    PLAIN_SGD = "plain-sgd"  # without momentum: no state
    ADAM = "adam"  # two averages per weight
    ADAMW = "adamw"  # the same; decays the weights in a kernel of its own
    ADAMW_FUSED = "adamw-fused"  # the same, and a count of steps


#: What each is called in notes.
UPDATES = {
    Optimizer.SGD: "SGD with momentum",
    Optimizer.PLAIN_SGD: "SGD without momentum",
    Optimizer.ADAM: "Adam",
    Optimizer.ADAMW: "AdamW",
    Optimizer.ADAMW_FUSED: "fused AdamW",
}

_STEPS = "step"
_STATE: dict[Optimizer, tuple[str, ...]] = {
    Optimizer.SGD: ("momentum_buffer",),
    Optimizer.PLAIN_SGD: (),
    Optimizer.ADAM: ("exp_avg", "exp_avg_sq"),
    Optimizer.ADAMW: ("exp_avg", "exp_avg_sq"),
    Optimizer.ADAMW_FUSED: ("exp_avg", "exp_avg_sq", _STEPS),
}


def states(tape: Tape, optimizer: Optimizer, weights: Sequence[Value]) -> dict[str, list[Value]]:
    """The optimizer's state by name, with one block for each weight."""
    result: dict[str, list[Value]] = {}
    for name in _STATE[optimizer]:
        result[name] = []
        for weight in weights:
            tape.layer = weight.block.layer
            shape, dtype = ((), "float32") if name == _STEPS else (weight.shape, weight.block.dtype)
            result[name].append(tape.constant(f"{weight.block.id}.{name}", shape, BlockKind.OPTIMIZER_STATE, dtype))
    return result


def update(
    tape: Tape,
    optimizer: Optimizer,
    weights: Sequence[Value],
    gradients: Mapping[TapeBlock, Value],
    state: Mapping[str, list[Value]],
) -> None:
    """Puts the step's kernels on the tape; a weight whose gradient covers only some rows has a separate kernel.

    Gradients are live until the step ends, as in a training loop that drops them after it.
    """
    tape.phase, tape.layer = Phase.OPTIMIZER, None
    grads = {index: gradients[weight.block] for index, weight in enumerate(weights) if weight.block in gradients}
    complete = [index for index, grad in grads.items() if grad.shape == weights[index].shape]
    states_of = [[values[index] for index in complete] for values in state.values()]
    dense = [weights[index] for index in complete], [grads[index] for index in complete]
    if optimizer is Optimizer.SGD:
        _sgd(tape, *dense, *states_of)
    elif optimizer is Optimizer.PLAIN_SGD:
        _each(tape, "_foreach_add_", *dense, per_value=2)
    elif optimizer is Optimizer.ADAMW_FUSED:
        _adamw_fused(tape, *dense, *states_of)
    else:
        if optimizer is Optimizer.ADAMW:
            _each(tape, "_foreach_mul_", dense[0])
        _adam(tape, *dense, *states_of)
    for index in sorted(grads.keys() - set(complete)):
        changed = (weights[index], *(values[index] for values in state.values()))
        operation = updated_rows(grads[index], len(state))
        tape.launch("sparse_update_", operation, (*changed, grads[index]), changed, pure=False)
    tape.keep(list(grads.values()))


def _each(tape: Tape, op: str, targets: Sequence[Value], *others: Sequence[Value], per_value: int = 1) -> None:
    """Puts on the tape a kernel that updates every target in place from itself and the others."""
    reads = [*targets, *(value for values in others for value in values)]
    tape.launch(op, elementwise(reads, targets, per_value), reads, targets, pure=False)


def _sgd(tape: Tape, weights: Sequence[Value], grads: Sequence[Value], momentum: Sequence[Value]) -> None:
    _each(tape, "_foreach_mul_", momentum)
    _each(tape, "_foreach_add_", momentum, grads)
    _each(tape, "_foreach_add_", weights, momentum, per_value=2)


def _adam(
    tape: Tape, weights: Sequence[Value], grads: Sequence[Value], mean: Sequence[Value], square: Sequence[Value]
) -> None:
    _each(tape, "_foreach_lerp_", mean, grads, per_value=3)
    _each(tape, "_foreach_mul_", square)
    _each(tape, "_foreach_addcmul_", square, grads, per_value=3)
    roots = [
        tape.new(f"{weight.block.id}.denominator", weight.shape, BlockKind.OTHER, weight.block.dtype)
        for weight in weights
    ]
    tape.launch("_foreach_sqrt", elementwise(square, roots), square, roots, pure=False)
    _each(tape, "_foreach_div_", roots)
    _each(tape, "_foreach_add_", roots)
    _each(tape, "_foreach_addcdiv_", weights, mean, roots, per_value=3)


def _adamw_fused(
    tape: Tape,
    weights: Sequence[Value],
    grads: Sequence[Value],
    mean: Sequence[Value],
    square: Sequence[Value],
    steps: Sequence[Value],
) -> None:
    _each(tape, "_foreach_add_", steps)
    changed = [*weights, *mean, *square]
    reads = [*changed, *grads, *steps]
    tape.launch("_fused_adamw_", elementwise(reads, changed), reads, changed, pure=False)
