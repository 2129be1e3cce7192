"""Layer and group normalization, softmax and losses: cross-entropy and squared error."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.eager.pointwise import cast, gradients, only, widened
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import contiguous, reshape

_Grads = Sequence[Tensor | None]


def layer_norm(session: Session, x: Tensor, *affine: Tensor) -> Tensor:
    """Over the last dimension; saves its operands, and a mean and an inverse deviation per row in float32.

    affine: weight and bias; none of them for a normalization without weights.
    """
    x, *wide = [widened(session, each) for each in reversed((x, *affine))][::-1]
    rows = (*x.shape[:-1], 1)
    results = ((x.shape, x.dtype), (rows, "float32"), (rows, "float32"))
    y, *statistics = session.run("native_layer_norm", (x, *wide), results)

    def backward(grads: _Grads) -> _Grads:
        read = (only(grads), x, *statistics, *wide)
        return gradients(session, "native_layer_norm_backward", read, (x, *wide))

    session.record((y,), (x, *wide), backward, (x, *wide, *statistics))
    return y


def group_norm(session: Session, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """Over groups of channels of a contiguous (batch, channels, ...) tensor; saves its input, the weight, and a mean
    and an inverse deviation of each sample's groups in the input's format (``group_norm.cpp``)."""
    bias, weight, x = (widened(session, each) for each in (bias, weight, x))
    rows = (x.shape[0], groups)
    results = ((x.shape, x.dtype), (rows, x.dtype), (rows, x.dtype))
    y, *statistics = session.run("native_group_norm", (x, weight, bias), results)

    def backward(grads: _Grads) -> _Grads:
        grad = contiguous(session, only(grads))
        read = (grad, x, *statistics, weight)
        return gradients(session, "native_group_norm_backward", read, (x, weight, bias))

    session.record((y,), (x, weight, bias), backward, (x, weight, *statistics))
    return y


def softmax(session: Session, x: Tensor, op: str = "_softmax", dtype: str | None = None) -> Tensor:
    """Softmax, or its logarithm, over the last dimension; saves its result.

    dtype: of the result, by default that of x. CUDA converts only float16 in the same kernel (``SoftMax.cpp``).
    """
    if dtype is not None and x.dtype != "float16":
        x = cast(session, x, dtype)
    (y,) = session.run(op, (x,), ((x.shape, dtype or x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run(f"{op}_backward_data", (only(grads), y), ((x.shape, x.dtype),))

    session.record((y,), (x,), backward, (y,))
    return y


def next_token_loss(session: Session, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each token's logits with the next token's label, in float32.

    As ``ForCausalLMLoss`` of transformers: the labels are shifted and padded, not the logits.
    """
    scores = cast(session, logits, "float32")
    target, padded = shifted_labels(session, labels)
    logarithms = softmax(session, reshape(session, scores, (labels.count, logits.shape[-1])), "_log_softmax")
    session.keep((scores, padded))
    return likelihood_loss(session, logarithms, target)


def shifted_labels(session: Session, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The next token's label of each token, in one row; and the padded labels of which it is a copy."""
    batch, length = labels.shape
    (padded,) = session.run("constant_pad_nd", (labels,), (((batch, length + 1), labels.dtype),))
    return contiguous(session, padded.seen(labels.shape, (length + 1, 1))).seen((labels.count,)), padded


def token_loss(session: Session, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each token's logits with its label, in the format of the logits.

    Under autocast, ``cross_entropy`` computes the logarithms in the format of the logits, and its loss in float32.
    """
    rows = reshape(session, logits, (labels.count, logits.shape[-1]))
    logarithms = widened(session, softmax(session, rows, "_log_softmax"))
    return likelihood_loss(session, logarithms, labels.seen((labels.count,)))


def likelihood_loss(session: Session, logarithms: Tensor, target: Tensor) -> Tensor:
    """The mean of the negative logarithms of the targets' probabilities."""
    results = (((), logarithms.dtype), ((), logarithms.dtype))
    loss, weight = session.run("nll_loss_forward", (logarithms, target), results, priced=(target,))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        result = ((logarithms.shape, logarithms.dtype),)
        reads = (grad, logarithms, target, weight)
        return session.run("nll_loss_backward", reads, result, priced=(grad, target, weight))

    session.record((loss,), (logarithms,), backward, (logarithms, target, weight))
    return loss


def squared_loss(session: Session, x: Tensor, target: Tensor) -> Tensor:
    """The mean of the squared differences (``mse_loss``), in the format of x; saves both."""
    (loss,) = session.run("mse_loss", (x, target), (((), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("mse_loss_backward", (only(grads), x, target), ((x.shape, x.dtype),))

    session.record((loss,), (x,), backward, (x, target))
    return loss
