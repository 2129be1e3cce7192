"""Autocast: which operands are converted to its lower precision, and which of these casts it caches.

As ``cached_cast`` and the list ``AT_FORALL_LOWER_PRECISION_FP`` in PyTorch's ``ATen/autocast_mode.cpp`` and ``.h``.
Operators that run in float32 use `simgpu.workloads.eager.pointwise.widened`; others run in their operands' format.
"""

from __future__ import annotations

from simgpu.workloads.eager.pointwise import cast
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor


def lowered(session: Session, *operands: Tensor) -> list[Tensor]:
    """The operands of a product in autocast's format; the last one is converted first, as PyTorch for Linux does."""
    return [_lowered(session, x) for x in reversed(operands)][::-1]


def _lowered(session: Session, x: Tensor) -> Tensor:
    """One operand; a trained weight in float32 is converted once until autocast is left."""
    if session.autocast is None:
        return x
    is_cached = x.node is not None and x.node.weight is x and x.dtype == "float32"
    if not is_cached:
        return cast(session, x, session.autocast)
    if x.block not in session.casts:
        session.casts[x.block] = cast(session, x, session.autocast)
    return session.casts[x.block]
