"""`iteration` puts a decoder's training iteration on a tape: forward, loss, backward and optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.decoders.adapters import ALL_LINEAR, Lora
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.decoders.gpt2 import Gpt2Model
from simgpu.workloads.decoders.llama import LlamaModel
from simgpu.workloads.decoders.loss_scaler import LossScaler
from simgpu.workloads.decoders.losses import LOSSES, LossModel
from simgpu.workloads.decoders.master_weights import Masters
from simgpu.workloads.decoders.neox import NeoxModel
from simgpu.workloads.decoders.options import LossForm, MasterForm, TrainingOptions
from simgpu.workloads.decoders.parts import Build
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.pointwise import scale
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.lowering.tape import TapeBlock, Value

_MODELS: Mapping[str, Callable[[Build], LossModel]] = MappingProxyType(
    {"gpt2": Gpt2Model, "gpt_neox": NeoxModel, "phi": NeoxModel}
)


def iteration(decoder: Decoder, *, batch: int, length: int, fused: str | None, options: TrainingOptions) -> Session:
    """One iteration of `batch` samples of `length` tokens; the loop holds the loss, and logits if any, to the end.

    fused: the operator for attention, a result of `simgpu.workloads.eager.attention.fused_kernel`; None for eager
    attention, which GPT-2 does not have here.
    """
    session = Session()
    tape, optimizer = session.tape, Optimizer(options.optimizer)
    lora = None if options.lora is None else Lora(options.lora, options.lora_targets)
    build = Build(session, decoder, options.dtype, fused, lora)
    model = _MODELS.get(decoder.family, LlamaModel)(build)
    if lora is not None:
        _check_targets(lora, build.linear)
    tape.layer = None
    shape = batch // options.micro_batches, length
    tokens = session.constant("input_ids", shape, "int64", BlockKind.INPUT)
    labels = session.constant("labels", shape, "int64", BlockKind.LABEL)
    masters = None if options.master_weights is None else Masters(session, optimizer)
    weights = [Value(weight.block, weight.shape) for weight in session.weights]
    states = [] if masters is not None else step.states(tape, optimizer, weights)
    tape.layer = None
    scaler = LossScaler(session) if options.grad_scaler else None
    gradients: dict[TapeBlock, Tensor] = {}
    if masters is not None and options.master_weights == MasterForm.MAIN_GRAD:
        gradients = masters.main_gradients()
    held: tuple[Tensor, ...] = ()
    for _ in range(options.micro_batches):
        tape.phase = Phase.FORWARD
        with session.autocasting(options.autocast):
            results = LOSSES[LossForm(options.loss)](session, model, tokens, labels, options)
        session.keep(held)
        loss, held = results[0], tuple(results)
        part = _part(session, loss, options.micro_batches)
        root = part if scaler is None else scaler.scaled(part)
        run_backward(session, root, gradients)
        session.keep((root,))
    found = None if scaler is None else scaler.unscale(gradients)
    if masters is not None:
        masters.update(gradients)
    else:
        of_weights = {block: Value(grad.block, block.shape) for block, grad in gradients.items()}
        step.update(tape, optimizer, weights, of_weights, states)
    if scaler is not None and found is not None:
        scaler.update(found, gradients)
    for each in held:
        each.block.release = None
    return session


def _check_targets(lora: Lora, names: set[str]) -> None:
    """Raises `InputError` for targets that are no linear layers of the model."""
    known = sorted((*names, ALL_LINEAR))
    problems = [
        Problem("", "lora_targets", f"the model has no linear layer {each!r}", did_you_mean(each, known))
        for each in lora.targets
        if each not in known
    ]
    if problems:
        raise InputError(problems)


def _part(session: Session, loss: Tensor, micro_batches: int) -> Tensor:
    """What backward starts from: the loss, divided by the number of micro-batches."""
    with session.layer("loss"):
        return loss if micro_batches == 1 else scale(session, loss, "div")
