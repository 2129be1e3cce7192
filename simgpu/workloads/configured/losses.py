"""The forms of a decoder's loss: all logits at once, in chunks (torchtune), or fused with the output layer (Liger).

Each function puts the model's forward pass and loss on a session, and returns the loss and then what else the training
loop holds to the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.compiled.regions import returned
from simgpu.workloads.configured.options import CHUNKS, IN_CHUNKS, LossForm, TrainingOptions
from simgpu.workloads.configured.parts import Linear
from simgpu.workloads.eager.linear_loss import compiled_loss, fused_linear_loss
from simgpu.workloads.eager.normalization import likelihood_loss, next_token_loss, shifted_labels, softmax
from simgpu.workloads.eager.parallel_loss import parallel_next_token_loss
from simgpu.workloads.eager.pointwise import add_in_place, cast, elementwise, scale
from simgpu.workloads.eager.routing import selected_rows
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape, row_chunks


class LossModel(Protocol):
    """A model whose output layer can be called alone."""

    head: Linear

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads, (batch, tokens, width)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer's results."""
        ...


def _eager(
    session: Session, model: LossModel, tokens: Tensor, labels: Tensor, options: TrainingOptions
) -> Sequence[Tensor]:
    """``ForCausalLMLoss`` of transformers 4.51; the loop may hold the logits."""
    logits = model.logits(model.hidden(tokens))
    with session.layer("loss"):
        if options.compile == CompileForm.MODEL:
            logits = returned(session, logits)
        group = model.head.build.group
        if group is not None:
            return parallel_next_token_loss(session, group, logits, labels), logits
        return next_token_loss(session, logits, labels), logits


def _chunked(
    session: Session, model: LossModel, tokens: Tensor, labels: Tensor, options: TrainingOptions
) -> Sequence[Tensor]:
    """``LinearCrossEntropyLoss`` of torchtune 0.7 (``modules/loss/cross_entropy_loss.py``).

    The labels come shifted from the data set, which marks the last one of each sample as ignored; the rows of these are
    left out before the output layer. Of each chunk's logits, autograd saves the logarithms in float32; where each chunk
    is compiled (``apply_compile_strategy``), the logits themselves.
    """
    hidden = model.hidden(tokens)
    width, rows = hidden.shape[-1], labels.shape[0] * (labels.shape[1] - 1)
    with session.layer("loss"):
        _valid(session, labels, (rows, 2))
        targets = reshape(session, labels, (labels.count,))
        places = _valid(session, targets, (rows, 1)).seen((rows,))
        flat = selected_rows(session, reshape(session, hidden, (labels.count, width)), places)
        targets = selected_rows(session, targets, places)
        (total,) = session.run("zeros", (), (((), "float32"),))  # there a copy of a number from the host
        parts = zip(row_chunks(session, flat, CHUNKS), row_chunks(session, targets, CHUNKS), strict=True)
    for part, target in parts:
        logits = model.logits(part)
        with session.layer("loss"):
            if options.loss == LossForm.CHUNKED_COMPILED:
                loss = compiled_loss(session, logits, target)
            else:
                scores = cast(session, logits, "float32")
                loss = likelihood_loss(session, softmax(session, scores, "_log_softmax"), target)
                session.keep((logits, scores))
            total = add_in_place(session, total, loss)
    with session.layer("loss"):
        loss = scale(session, total, "div")
    session.keep((hidden, flat, targets))
    return (loss,)


def _valid(session: Session, labels: Tensor, shape: tuple[int, int]) -> Tensor:
    """The places of labels that are not ignored, one row each."""
    mask = elementwise(session, "ne", labels, dtype="bool")
    (places,) = session.run("nonzero", (mask,), ((shape, "int64"),))
    return places


def _fused(
    session: Session, model: LossModel, tokens: Tensor, labels: Tensor, options: TrainingOptions
) -> Sequence[Tensor]:
    """``LigerForCausalLMLoss`` of Liger-Kernel 0.8.2 (``transformers/model/loss_utils.py``)."""
    hidden = model.hidden(tokens)
    with session.layer("loss"):
        target, padded = shifted_labels(session, labels)
        flat = reshape(session, hidden, (labels.count, hidden.shape[-1]))
        loss = fused_linear_loss(session, flat, model.head.weight, target, scaled=options.micro_batches > 1)
        session.keep((padded,))
    return (loss,)


_Form = Callable[[Session, LossModel, Tensor, Tensor, TrainingOptions], Sequence[Tensor]]
LOSSES: Mapping[LossForm, _Form] = MappingProxyType(
    {LossForm.EAGER: _eager, **dict.fromkeys(IN_CHUNKS, _chunked), LossForm.FUSED: _fused}
)
