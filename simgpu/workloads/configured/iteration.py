"""`train` puts a training iteration on a tape: forward, loss and backward of micro-batches, and the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.trace.model import Phase
from simgpu.workloads.configured.adapters import ALL_LINEAR, Lora
from simgpu.workloads.configured.loss_scaler import LossScaler
from simgpu.workloads.configured.master_weights import Masters
from simgpu.workloads.configured.options import MasterForm, TrainingOptions
from simgpu.workloads.eager.engine import Hook, run_backward
from simgpu.workloads.eager.pointwise import scale
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import LocalOperands, Optimizer
from simgpu.workloads.lowering.tape import TapeBlock, Value


def train(
    session: Session,
    options: TrainingOptions,
    forward: Callable[[], tuple[Tensor, ...]],
    local: LocalOperands | None = None,
) -> None:
    """One iteration of a model whose weights and inputs exist.

    forward: runs the model, under autocast if that is chosen, and the loss of one micro-batch; returns the loss, which
    the loop holds until the next one, or the end of the iteration, and then what it also holds with `hold_output`.
    local: what the optimizer's kernels read in place of gradients, as `step.update` takes it.
    """
    tape, optimizer = session.tape, Optimizer(options.optimizer)
    masters = None if options.master_weights is None else Masters(session, optimizer)
    weights = [Value(weight.block, weight.shape) for weight in session.weights]
    states = [] if masters is not None else step.states(tape, optimizer, weights)
    tape.layer = None
    scaler = LossScaler(session) if options.grad_scaler else None
    gradients: dict[TapeBlock, Tensor] = {}
    if masters is not None and options.master_weights == MasterForm.MAIN_GRAD:
        gradients = masters.main_gradients()
    hook = _updating(session, optimizer, states) if options.optimizer_in_backward else None
    held: tuple[Tensor, ...] = ()
    for _ in range(options.micro_batches):
        tape.phase, tape.layer = Phase.FORWARD, None  # backward leaves the layer of its last kernel
        results = forward()
        session.keep(held)
        held = results if options.hold_output else results[:1]
        session.keep(results)
        part = _part(session, held[0], options.micro_batches)
        root = part if scaler is None else scaler.scaled(part)
        run_backward(session, root, gradients, hook)
        session.keep((root,))
    found = None if scaler is None else scaler.unscale(gradients)
    if masters is not None:
        masters.update(gradients)
    elif hook is None:
        of_weights = {block: Value(grad.block, block.shape) for block, grad in gradients.items()}
        step.update(tape, optimizer, weights, of_weights, states, local)
    if scaler is not None and found is not None:
        scaler.update(found, gradients)
    for each in held:
        each.block.release = None


def _updating(session: Session, optimizer: Optimizer, states: Sequence[Mapping[str, Value]]) -> Hook:
    """Updates each weight with an optimizer of its own as soon as its gradient is complete, which is then freed, as
    torchtune's ``optimizer_in_bwd`` does (``register_optim_in_bwd_hooks`` of training/memory.py, 0.7)."""
    tape = session.tape
    state_of = {weight.block: state for weight, state in zip(session.weights, states, strict=True)}

    def hook(weight: Tensor, grad: Tensor) -> None:
        before = tape.phase, tape.layer
        own, of_own = Value(weight.block, weight.shape), Value(grad.block, weight.shape)
        step.update(tape, optimizer, [own], {own.block: of_own}, [state_of[own.block]])
        tape.phase, tape.layer = before

    return hook


def _part(session: Session, loss: Tensor, micro_batches: int) -> Tensor:
    """What backward starts from: the loss, divided by the number of micro-batches."""
    with session.layer("loss"):
        return loss if micro_batches == 1 else scale(session, loss, "div")


def check_targets(lora: Lora | None, names: set[str]) -> None:
    """Raises `InputError` for targets of LoRA that are no linear layers of the model. names: of those it has."""
    known = sorted((*names, ALL_LINEAR))
    problems = [
        Problem("", "lora_targets", f"the model has no linear layer {each!r}", did_you_mean(each, known))
        for each in (() if lora is None else lora.targets)
        if each not in known
    ]
    if problems:
        raise InputError(problems)
