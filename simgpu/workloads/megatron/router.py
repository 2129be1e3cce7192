"""The router of Megatron-LM's mixture of experts: scores, the experts of each token, and a loss that balances them.

Source: ``core/transformer/moe/router.py`` and ``moe_utils.py`` at 23e00ed0 (0.14), without ``--moe-router-fusion``. The
softmax follows the choice where the weights of the chosen experts are to have the sum one. Else, and in groups, it is
over all experts (``--moe-router-pre-softmax``); in groups, a number multiplies the weights.
Each expert gets the tokens with its best scores, as many as its capacity, with ``--moe-expert-capacity-factor 1
--moe-pad-expert-input-to-capacity``; the loss is that of ``--moe-router-load-balancing-type seq_aux_loss``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simgpu.hardware.collectives import Collective
from simgpu.workloads.configured.decoder import Experts, Groups
from simgpu.workloads.eager.normalization import softmax
from simgpu.workloads.eager.pointwise import cast, elementwise, only, scale
from simgpu.workloads.eager.products import product
from simgpu.workloads.eager.routing import largest
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.megatron.layers import Parts, turned

_Grads = Sequence[Tensor | None]


class Routing(NamedTuple):
    """Of each token and expert: the weight of the expert's result, and whether it gets the token."""

    weights: Tensor
    mask: Tensor


def capacity(experts: Experts, tokens: int) -> int:
    """Rows that each expert gets of one GPU's tokens.

    >>> capacity(Experts(count=160, chosen=6, inner=1536), 4096)
    154
    """
    return -(-tokens * experts.chosen // experts.count)


def routed(parts: Parts, x: Tensor, weight: Tensor, sizes: Experts) -> Routing:
    """The routing of the rows. weight: of the router."""
    session = parts.session
    logits = _logits(session, x, weight)
    scores, places = _chosen(session, logits, sizes)
    weights = _scattered(session, scores, places, logits)
    _mask(session, logits, places)
    mask = _with_capacity(session, weights, capacity(sizes, x.shape[0]))
    weights = _masked(session, weights, mask)
    return Routing(_with_loss(session, weights, _balance(parts, logits, sizes.chosen)), mask)


def _logits(session: Session, x: Tensor, weight: Tensor) -> Tensor:
    """``RouterGatingLinearFunction``. The gradient of its weight is an ordinary one."""
    result = product(session, "mm", x, turned(weight))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        of_x = product(session, "mm", grad, weight)
        return of_x, product(session, "mm", turned(grad), x)

    session.record((result,), (x, weight), backward, (x, weight), in_python=True)
    return result


def _chosen(session: Session, logits: Tensor, sizes: Experts) -> tuple[Tensor, Tensor]:
    """The scores and numbers of each token's experts."""
    groups = sizes.groups
    if groups is None and sizes.normalized:
        best, places = largest(session, logits, sizes.chosen)
        return cast(session, softmax(session, best, dtype="float32"), logits.dtype), places
    scores = cast(session, softmax(session, logits, dtype="float32"), logits.dtype)
    if groups is not None and groups.count > 1:
        scores = _within_groups(session, scores, groups, sizes.chosen)
    best, places = largest(session, scores, sizes.chosen)
    return best if groups is None else scale(session, best), places


def _within_groups(session: Session, scores: Tensor, groups: Groups, experts: int) -> Tensor:
    """Scores in each token's groups, which are chosen by their best experts; others are minus infinity.

    experts: of each token.
    """
    tokens, count = scores.shape
    parts = scores.seen((tokens, groups.count, count // groups.count))
    best, _ = largest(session, parts, max(1, experts // groups.chosen))
    (sums,) = session.run("sum", (best,), (((tokens, groups.count), scores.dtype),))
    _, chosen = largest(session, sums, groups.chosen)
    (mask,) = session.run("zeros_like", (), ((sums.shape, sums.dtype),))
    session.run_in_place("scatter_", mask, (chosen,))
    (spread,) = session.run("clone", (mask,), ((scores.shape, scores.dtype),))
    is_outside = elementwise(session, "bitwise_not", cast(session, spread, "bool"))
    inside = elementwise(session, "masked_fill", scores, is_outside, dtype=scores.dtype)

    def backward(grads: _Grads) -> _Grads:
        return (elementwise(session, "masked_fill", only(grads), is_outside, dtype=scores.dtype),)

    session.record((inside,), (scores,), backward, (is_outside,))
    return inside


def _scattered(session: Session, scores: Tensor, places: Tensor, logits: Tensor) -> Tensor:
    """The scores at the places of their experts, and zeros."""
    (zeros,) = session.run("zeros_like", (), ((logits.shape, logits.dtype),))
    (result,) = session.run("scatter", (zeros, places, scores), ((logits.shape, logits.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("gather", (only(grads), places), ((scores.shape, scores.dtype),))

    session.record((result,), (scores,), backward, (places,))
    return result


def _mask(session: Session, logits: Tensor, places: Tensor) -> Tensor:
    """Whether each expert is at these places."""
    (zeros,) = session.run("zeros_like", (), ((logits.shape, logits.dtype),))
    numbers = cast(session, zeros, "int32")
    (ones,) = session.run("scatter", (numbers, places), ((logits.shape, "int32"),))
    return cast(session, ones, "bool")


def _with_capacity(session: Session, weights: Tensor, rows: int) -> Tensor:
    """Whether each expert gets a token: as many as it has capacity for, those with the largest weights."""
    by_expert = weights.seen(weights.shape[::-1], weights.strides[::-1])
    _, places = largest(session, by_expert, rows)
    (zeros,) = session.run("zeros_like", (), ((weights.shape, weights.dtype),))
    (ones,) = session.run("scatter", (zeros, places), ((weights.shape, weights.dtype),))
    return cast(session, ones, "bool")


def _masked(session: Session, weights: Tensor, mask: Tensor) -> Tensor:
    result = elementwise(session, "mul", weights, mask, dtype=weights.dtype)

    def backward(grads: _Grads) -> _Grads:
        return (elementwise(session, "mul", only(grads), mask, dtype=weights.dtype),)

    session.record((result,), (weights,), backward, (mask,))
    return result


def _balance(parts: Parts, logits: Tensor, chosen: int) -> Tensor:
    """The loss of experts that get different numbers of tokens, of scores that are computed again.

    The GPUs that share a sample add up the tokens of each expert.
    """
    session = parts.session
    scores = softmax(session, logits, dtype="float32")
    _, places = largest(session, scores.seen(scores.shape), chosen)
    mask = _mask(session, logits, places)
    count = (logits.shape[1],)
    (tokens,) = session.run("sum", (mask,), ((count, "int64"),))
    parts.exchanges.in_place(Collective.ALL_REDUCE, [tokens], parts.of_samples)
    (sums,) = session.run("sum", (scores,), ((count, scores.dtype),))
    products = elementwise(session, "mul", sums, tokens, dtype=scores.dtype)
    (total,) = session.run("sum", (products,), (((), scores.dtype),))

    def backward(grads: _Grads) -> _Grads:
        spread = only(grads).seen(count, (0,))
        of_sums = elementwise(session, "mul", spread, tokens, dtype=scores.dtype)
        return (of_sums.seen(scores.shape, (0, 1)),)

    session.record((total,), (scores,), backward, (tokens,))
    return scale(session, scale(session, total), "div")


def _with_loss(session: Session, weights: Tensor, loss: Tensor) -> Tensor:
    """``MoEAuxLossAutoScaler``: the same values; backward begins with the loss's gradient, too."""
    result = Tensor(weights.block, weights.shape, weights.strides)

    def backward(grads: _Grads) -> _Grads:
        (ones,) = session.run("ones_like", (), ((loss.shape, loss.dtype),))
        return only(grads), elementwise(session, "mul", ones)

    session.record((result,), (weights, loss), backward, (loss,), in_python=True)
    return result
