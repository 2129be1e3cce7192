"""The optimizer step: SGD with and without momentum, Adam and AdamW.

Each kernel updates all weights, like PyTorch's ``foreach`` implementation, its default on a GPU; fused AdamW has one
kernel, and keeps the number of steps of each weight on the GPU. States have the number format of their weight. AdamW
in 8 bits is that of bitsandbytes (``optim/optimizer.py``, ``AdamW8bit``): one kernel for each weight, states of one
byte a value with a scale in float32 for 256 values, and in float32 for weights of fewer than 4,096 values. Its two
tables of 256 values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial

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
    ADAMW_8BIT = "adamw-8bit"  # two averages per weight in 8 bits, and their scales


#: What each is called in notes.
UPDATES = {
    Optimizer.SGD: "SGD with momentum",
    Optimizer.PLAIN_SGD: "SGD without momentum",
    Optimizer.ADAM: "Adam",
    Optimizer.ADAMW: "AdamW",
    Optimizer.ADAMW_FUSED: "fused AdamW",
    Optimizer.ADAMW_8BIT: "AdamW in 8 bits",
}

#: Puts on a tape the kernels that compute what an operand of a kernel has of the gradients of some weights.
LocalOperands = Callable[[Tape, Sequence[Value], Sequence[Value]], Sequence[Value]]
#: Called for each operand that has the gradients.
_Operands = Callable[[], Sequence[Value]]

_STEPS = "step"
_SCALES = ("absmax1", "absmax2")
#: Values that share a scale, and values of the smallest weight whose states have 8 bits.
_SHARED, _LEAST = 256, 4096
_STATE: dict[Optimizer, tuple[str, ...]] = {
    Optimizer.SGD: ("momentum_buffer",),
    Optimizer.PLAIN_SGD: (),
    Optimizer.ADAM: ("exp_avg", "exp_avg_sq"),
    Optimizer.ADAMW: ("exp_avg", "exp_avg_sq"),
    Optimizer.ADAMW_FUSED: ("exp_avg", "exp_avg_sq", _STEPS),
    Optimizer.ADAMW_8BIT: ("state1", "state2", *_SCALES),
}


def states(tape: Tape, optimizer: Optimizer, weights: Sequence[Value]) -> list[dict[str, Value]]:
    """The state of each weight by name."""
    result: list[dict[str, Value]] = [{} for _ in weights]
    for name in _STATE[optimizer]:
        for weight, own in zip(weights, result, strict=True):
            for shape, dtype in _layout(optimizer, name, weight):
                tape.layer = weight.block.layer
                own[name] = tape.constant(f"{weight.block.id}.{name}", shape, BlockKind.OPTIMIZER_STATE, dtype)
    return result


def _layout(optimizer: Optimizer, name: str, weight: Value) -> Iterator[tuple[tuple[int, ...], str]]:
    """Shape and number format of a state; nothing for one that the weight does not have."""
    is_small = weight.count < _LEAST
    if name == _STEPS:
        yield (), "float32"
    elif optimizer is not Optimizer.ADAMW_8BIT:
        yield weight.shape, weight.block.dtype
    elif name not in _SCALES:
        yield weight.shape, "float32" if is_small else "uint8"
    elif not is_small:
        yield (-(-weight.count // _SHARED),), "float32"


def update(
    tape: Tape,
    optimizer: Optimizer,
    weights: Sequence[Value],
    gradients: Mapping[TapeBlock, Value],
    state: Sequence[Mapping[str, Value]],
    local: LocalOperands | None = None,
) -> None:
    """Puts the step's kernels on the tape; a weight whose gradient covers only some rows has a separate kernel.

    Gradients are live until the step ends, as in a training loop that drops them after it.
    local: what kernels read in place of the gradients, which must cover all weights then; None for the gradients.
    """
    tape.phase, tape.layer = Phase.OPTIMIZER, None
    grads = {index: gradients[weight.block] for index, weight in enumerate(weights) if weight.block in gradients}
    complete = [index for index, grad in grads.items() if grad.shape == weights[index].shape]
    covered = [weights[index] for index in complete], [grads[index] for index in complete]
    operands = partial(local, tape, *covered) if local is not None else lambda: covered[1]
    _dense(tape, optimizer, covered[0], operands, [state[index] for index in complete])
    for index in sorted(grads.keys() - set(complete)):
        changed = (weights[index], *state[index].values())
        operation = updated_rows(grads[index], len(state[index]))
        tape.launch("sparse_update_", operation, (*changed, grads[index]), changed, pure=False)
    tape.keep(list(grads.values()))


def _dense(
    tape: Tape,
    optimizer: Optimizer,
    weights: Sequence[Value],
    grads: _Operands,
    state: Sequence[Mapping[str, Value]],
) -> None:
    """Updates weights whose gradients cover all of them."""
    if optimizer is Optimizer.ADAMW_8BIT:
        for weight, grad, own in zip(weights, grads(), state, strict=True):
            op = f"optimizer_update_{'8bit_blockwise' if _SCALES[0] in own else '32bit'}"
            _each(tape, op, (weight, *own.values()), (grad,), per_value=10)
        return
    states_of = [[own[name] for own in state] for name in _STATE[optimizer]]
    if optimizer is Optimizer.SGD:
        _sgd(tape, weights, grads, *states_of)
    elif optimizer is Optimizer.PLAIN_SGD:
        _each(tape, "_foreach_add_", weights, grads(), per_value=2)
    elif optimizer is Optimizer.ADAMW_FUSED:
        _adamw_fused(tape, weights, grads, *states_of)
    else:
        if optimizer is Optimizer.ADAMW:
            _each(tape, "_foreach_mul_", weights)
        _adam(tape, weights, grads, *states_of)


def _each(tape: Tape, op: str, targets: Sequence[Value], *others: Sequence[Value], per_value: int = 1) -> None:
    """Puts on the tape a kernel that updates every target in place from itself and the others."""
    reads = list(dict.fromkeys((*targets, *(value for values in others for value in values))))
    tape.launch(op, elementwise(reads, targets, per_value), reads, targets, pure=False)


def _sgd(tape: Tape, weights: Sequence[Value], grads: _Operands, momentum: Sequence[Value]) -> None:
    _each(tape, "_foreach_mul_", momentum)
    _each(tape, "_foreach_add_", momentum, grads())
    _each(tape, "_foreach_add_", weights, momentum, per_value=2)


def _adam(
    tape: Tape, weights: Sequence[Value], grads: _Operands, mean: Sequence[Value], square: Sequence[Value]
) -> None:
    _each(tape, "_foreach_lerp_", mean, grads(), per_value=3)
    _each(tape, "_foreach_mul_", square)
    _each(tape, "_foreach_addcmul_", square, grads(), grads(), per_value=3)
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
    grads: _Operands,
    mean: Sequence[Value],
    square: Sequence[Value],
    steps: Sequence[Value],
) -> None:
    _each(tape, "_foreach_add_", steps)
    changed = [*weights, *mean, *square]
    reads = [*changed, *grads(), *steps]
    tape.launch("_fused_adamw_", elementwise(reads, changed), reads, changed, pure=False)
