"""`parallel_next_token_loss`: cross-entropy where each GPU has the logits of an equal part of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.eager.collectives import LocalIndices, PeerGroup, all_reduce
from simgpu.workloads.eager.normalization import shifted_labels
from simgpu.workloads.eager.pointwise import cast, elementwise, only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape

_Grads = Sequence[Tensor | None]


def parallel_next_token_loss(session: Session, group: PeerGroup, logits: Tensor, labels: Tensor) -> Tensor:
    """As `next_token_loss` under ``loss_parallel`` of PyTorch (``torch/distributed/tensor/parallel/loss.py``).

    logits: this GPU's, of all tokens. The GPUs exchange three numbers for each token: the largest logit, the sum of the
    exponentials and the target's logarithm.
    """
    scores = cast(session, logits, "float32")
    target, padded = shifted_labels(session, labels)
    logarithms = _log_softmax(session, group, reshape(session, scores, (labels.count, logits.shape[-1])))
    loss = _likelihood_loss(session, group, logarithms, target)
    session.keep((scores, padded))
    return loss


def _log_softmax(session: Session, group: PeerGroup, x: Tensor) -> Tensor:
    """Saves its result. Backward hands the gradient on: that of the loss is already one of the logits."""
    column = (x.shape[0], 1)
    (own,) = session.run("amax", (x,), ((column, x.dtype),))
    largest = all_reduce(session, group, own)
    shifted = elementwise(session, "sub", x, largest)
    (own,) = session.run("sum", (elementwise(session, "exp", shifted),), ((column, x.dtype),))
    total = all_reduce(session, group, own)
    result = elementwise(session, "sub", shifted, elementwise(session, "log", total))
    session.keep((largest, shifted, total))
    session.record((result,), (x,), lambda grads: (only(grads),), (result,))
    return result


def _likelihood_loss(session: Session, group: PeerGroup, logarithms: Tensor, target: Tensor) -> Tensor:
    """The mean of the negative logarithms of the targets' probabilities, and the gradient of the logits."""
    safe = _without_ignored(session, target, target)
    local = LocalIndices.of(session, safe)
    (own,) = session.run("gather", (logarithms, local.values), ((target.shape, logarithms.dtype),))
    session.run_in_place("index_put_", own, (local.absent,))
    chosen = all_reduce(session, group, own)
    losses = _without_ignored(session, target, elementwise(session, "neg", chosen))
    valid = elementwise(session, "ne", target, dtype="bool")
    (number,) = session.run("sum", (valid,), (((), "int64"),))
    weight = cast(session, number, logarithms.dtype)
    (total,) = session.run("sum", (losses,), (((), logarithms.dtype),))
    loss = elementwise(session, "div", total, weight)
    session.keep((safe, local.values, own, chosen))

    def backward(grads: _Grads) -> _Grads:
        part = elementwise(session, "div", only(grads), weight)
        safe = _without_ignored(session, target, target)
        (result,) = session.run("zeros_like", (), ((logarithms.shape, logarithms.dtype),))
        local = LocalIndices.of(session, safe)
        change = elementwise(session, "sub", cast(session, local.absent, logarithms.dtype))
        (rows,) = session.run("arange", (), ((target.shape, "int64"),))
        session.run_in_place("index_put_", result, (rows, local.values, change), as_called=True)
        factor = _without_ignored(session, target, part, (target.count, 1))
        summed = elementwise(session, "add", result, elementwise(session, "exp", logarithms))
        gradient = elementwise(session, "mul", summed, factor)
        session.keep((safe, result, local.values, local.absent, change, rows))
        return (gradient,)

    session.record((loss,), (logarithms,), backward, (logarithms, target, weight))
    return loss


def _without_ignored(session: Session, target: Tensor, x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Values, but 0 for tokens whose target is ignored. shape: of the target; by default its own."""
    mask = elementwise(session, "ne", target if shape is None else target.seen(shape), dtype="bool")
    return elementwise(session, "where", mask, x, dtype=x.dtype)
