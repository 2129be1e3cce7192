"""Cross-entropies of logits that need no copy in float32: `fused_linear_loss` and `compiled_loss`.

`fused_linear_loss` is the output layer and the loss in one function, as Liger-Kernel 0.8.2 fuses them.
``ops/fused_linear_cross_entropy.py``: forward computes the logits of a chunk of rows, replaces them by their gradient,
and adds its products to the gradients of the input and the weight, which are all that autograd saves. Under autocast
(``amp_custom_fwd``, which converts nothing itself) each product converts its factors: the transposed weight again for
each chunk, because PyTorch caches casts of weights and not of their views.
"""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.workloads.eager.autocast import lowered
from simgpu.workloads.eager.pointwise import cast, elementwise, only
from simgpu.workloads.eager.products import product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import work_of

_Grads = Sequence[Tensor | None]


def fused_chunk(rows: int, width: int, vocabulary: int) -> int:
    """Rows whose logits exist at once: about as many values as the whole input has, rounded up to a power of two.

    >>> fused_chunk(8192, 2048, 128256), fused_chunk(256, 256, 1000)
    (256, 64)
    """
    least = -(-rows // -(-vocabulary // width))
    return int(1 << (least - 1).bit_length())


def fused_linear_loss(session: Session, x: Tensor, weight: Tensor, target: Tensor, *, scaled: bool) -> Tensor:
    """The mean loss of the rows of x, a matrix, in float32; saves the gradients of x and of a trained weight.

    scaled: whether backward starts from a number other than 1, by which a kernel multiplies both gradients.
    The comparison with 1, and the copy of each chunk's losses onto themselves, are left out.
    """
    created = _with_gradients(session, x, weight, target)
    loss, gradients = created[0], created[1:]

    def backward(grads: _Grads) -> _Grads:
        if scaled:
            for each in gradients:
                session.run_in_place("element_mul_kernel", each, (only(grads),))
        return [*gradients, None][:2]

    session.record((loss,), (x, weight), backward, gradients)
    return loss


def compiled_loss(session: Session, logits: Tensor, target: Tensor) -> Tensor:
    """The loss in float32 of a matrix of logits, as ``torch.compile`` runs ``cross_entropy(logits.float(), target)``.

    Forward is one kernel that reads the logits, and backward one that reads them again and writes their gradient in
    their format. Saved are the logits, and of each row the largest value and the logarithm of the sum, as PyTorch's
    partitioner decides (torch/_functorch/partitioners.py, 2.13). Inductor's online softmax, its default there, reads a
    row once; the table of targets that the graph has in backward it replaces by a comparison
    (``scatter_upon_const_tensor``).
    """
    rows = ((logits.shape[0], 1), "float32")
    loss, most, total = session.run("_log_softmax", (logits, target), (((), "float32"), rows, rows))

    def backward(grads: _Grads) -> _Grads:
        reads = (only(grads), logits, target, most, total)
        return session.run("_log_softmax_backward_data", reads, ((logits.shape, logits.dtype),))

    session.record((loss,), (logits,), backward, (logits, target, most, total))
    return loss


def _with_gradients(session: Session, x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """The loss and the gradients. Python's variables hold a chunk's logits until the next one's have been used."""
    rows, width = x.shape
    (of_x,) = session.run("zeros_like", (), ((x.shape, x.dtype),))
    of_weight = [session.run("zeros_like", (), ((weight.shape, weight.dtype),))[0]] if weight.node is not None else []
    (losses,) = session.run("zeros", (), (((rows,), "float32"),))
    mask = elementwise(session, "ne", target, dtype="bool")
    (count,) = session.run("sum", (mask,), (((), "int64"),))
    session.run("_local_scalar_dense", (count,), ())
    size, held = fused_chunk(rows, width, weight.shape[0]), list[Tensor]()
    turned = weight.seen((width, weight.shape[0]), (1, width))
    for begin in range(0, rows, size):
        part = _rows(x, begin, min(size, rows - begin))
        logits = product(session, "mm", *lowered(session, part, turned))
        _losses_in_place(session, logits, _rows(losses, begin, part.shape[0]), _rows(target, begin, part.shape[0]))
        if not of_weight:
            session.keep(held)
        of_part = product(session, "mm", *lowered(session, logits, weight))
        session.run_in_place("copy_", _rows(of_x, begin, part.shape[0]), (of_part,))
        session.keep(held)
        for each in of_weight:
            seen = logits.seen((logits.shape[1], logits.shape[0]), (1, logits.shape[1]))
            change = product(session, "mm", *lowered(session, seen, part))
            wide = cast(session, change, "float32")
            session.run_in_place("add_", each, (wide,))
        held = [logits]
    (loss,) = session.run("sum", (losses,), (((), "float32"),))
    session.keep((*held, mask, count, of_x))
    return loss, of_x, *of_weight


def _rows(x: Tensor, begin: int, count: int) -> Tensor:
    """These rows, outside autograd's graph."""
    result = x.seen((count, *x.shape[1:]), x.strides)
    result.offset = x.offset + begin * x.strides[0]
    return result


def _losses_in_place(session: Session, logits: Tensor, losses: Tensor, target: Tensor) -> None:
    """A kernel that replaces the rows' losses, which are zeros, and their logits by the gradient."""
    op, changed = "liger_cross_entropy_kernel", (logits, losses)
    work = work_of(op, (*changed, target), changed, session.in_backward)
    session.tape.launch_blocks(op, (work,), [x.block for x in (*changed, target)], [x.block for x in changed])
