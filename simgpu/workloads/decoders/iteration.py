"""`iteration` puts a decoder's training iteration on a tape: forward, loss, backward and optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simgpu.trace.model import BlockKind
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.decoders.gpt2 import Gpt2Model
from simgpu.workloads.decoders.llama import LlamaModel
from simgpu.workloads.decoders.neox import NeoxModel
from simgpu.workloads.decoders.parts import Build
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.normalization import next_token_loss
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.lowering.tape import Value

_MODELS: Mapping[str, Callable[[Build], Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"gpt2": Gpt2Model, "gpt_neox": NeoxModel, "phi": NeoxModel}
)


def iteration(
    decoder: Decoder, *, batch: int, length: int, dtype: str, fused: str | None, optimizer: Optimizer
) -> Session:
    """One iteration of `batch` samples of `length` tokens; the loop holds the logits and the loss to the end.

    dtype: of weights and activations. fused: the operator for attention, a result of
    `simgpu.workloads.eager.attention.fused_kernel`; None for eager attention, which GPT-2 does not have here.
    """
    session = Session()
    tape = session.tape
    model = _MODELS.get(decoder.family, LlamaModel)(Build(session, decoder, dtype, fused))
    tape.layer = None
    tokens = session.constant("input_ids", (batch, length), "int64", BlockKind.INPUT)
    labels = session.constant("labels", (batch, length), "int64", BlockKind.LABEL)
    weights = [Value(weight.block, weight.shape) for weight in session.weights]
    states = step.states(tape, optimizer, weights)
    tape.layer = None
    logits = model(tokens)
    with session.layer("loss"):
        loss = next_token_loss(session, logits, labels)
    gradients = run_backward(session, loss)
    of_weights = {block: Value(grad.block, block.shape) for block, grad in gradients.items()}
    step.update(tape, optimizer, weights, of_weights, states)
    logits.block.release = loss.block.release = None
    return session
