"""How tokens get to experts on other GPUs and back: permutations and all-to-all exchanges.

Sources: ``MoEAlltoAllTokenDispatcher`` of Megatron-LM at 23e00ed0 (0.14), ``core/transformer/moe/token_dispatcher.py``,
with tokens padded to the experts' capacity, so that no GPU waits for numbers of rows; and the permutations by a map of
TransformerEngine 2.11, ``pytorch/permutation.py`` (``--moe-permute-fusion``).
"""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.megatron.layers import Parts
from simgpu.workloads.megatron.router import Routing

_Grads = Sequence[Tensor | None]


def permuted(session: Session, x: Tensor, routing: Routing, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all experts after each other, the weight of each, and the map by which they are found.

    rows: of all experts together.
    """
    tokens, count = routing.mask.shape
    (places,) = session.run("row_id_map", (routing.mask,), (((tokens, 2 * count + 1), "int32"),))
    shapes = (((rows, x.shape[1]), x.dtype), ((rows,), routing.weights.dtype))
    result, weights = session.run("permute", (x, places, routing.weights), shapes)

    def backward(grads: _Grads) -> _Grads:
        given = [grad for grad in grads if grad is not None]
        shapes = [(each.shape, each.dtype) for each in (x, routing.weights)]
        return session.run("unpermute", (*given, places), shapes)

    session.record((result, weights), (x, routing.weights), backward, (places,), in_python=True)
    return result, weights, places


def unpermuted(session: Session, x: Tensor, places: Tensor) -> Tensor:
    """The sum of each token's rows."""
    (result,) = session.run("unpermute", (x, places), (((places.shape[0], x.shape[1]), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("permute", (only(grads), places), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward, (places,), in_python=True)
    return result


def exchanged(parts: Parts, x: Tensor) -> Tensor:
    """The rows that the other GPUs with experts have for this one; backward sends gradients the other way."""
    exchanges, group = parts.exchanges, parts.experts
    if group.ranks == 1:
        return x
    result = exchanges.exchanged(x, group)

    def backward(grads: _Grads) -> _Grads:
        return (exchanges.exchanged(only(grads), group),)

    parts.session.record((result,), (x,), backward, in_python=True)
    return result


def of_all_parts(parts: Parts, x: Tensor) -> Tensor:
    """The rows that the GPUs which share these experts have received, on each of them."""
    return _spread(parts, x, gathers=True)


def sum_of_parts(parts: Parts, x: Tensor) -> Tensor:
    """The sums of what these GPUs have made of the rows, of which each has its own."""
    return _spread(parts, x, gathers=False)


def _spread(parts: Parts, x: Tensor, *, gathers: bool) -> Tensor:
    exchanges, group = parts.exchanges, parts.of_expert
    if group.ranks == 1:
        return x
    there, back = exchanges.gathered, exchanges.scattered
    if not gathers:
        there, back = back, there
    result = there(x, group)

    def backward(grads: _Grads) -> _Grads:
        return (back(only(grads), group),)

    parts.session.record((result,), (x,), backward, in_python=True)
    return result


def reordered(parts: Parts, x: Tensor, local: int) -> Tensor:
    """Rows by expert instead of by GPU, or the other way, a copy. local: experts of this GPU."""
    if parts.experts.ranks * parts.of_expert.ranks == 1 or local == 1:
        return x
    (result,) = parts.session.run("clone", (x,), ((x.shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return parts.session.run("clone", (only(grads),), ((x.shape, x.dtype),))

    parts.session.record((result,), (x,), backward)
    return result
