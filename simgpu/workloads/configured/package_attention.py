"""Attention of the package flash-attn as ``flash_attention_forward`` of transformers 4.51 calls it.

Each head of keys and values is read once for several query heads, operands are not copied, and a window replaces the
mask. Before each call transformers looks whether the positions of the tokens only rise, as those of packed samples do
not; the host waits for the answer.
"""

from __future__ import annotations

from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.attention import attention
from simgpu.workloads.eager.autocast import lowered
from simgpu.workloads.eager.pointwise import elementwise
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import padded, sliced


def package_attended(
    session: Session, query: Tensor, key: Tensor, value: Tensor, rate: float, places: Places
) -> Tensor:
    """Attention of heads, (batch, heads, tokens, width), by the operator ``flash``. rate: of dropout.

    Narrower values than queries are padded, and the result is cut, as DeepSeek-V3's modules do.
    """
    width = value.shape[-1]
    if width != query.shape[-1]:
        value = padded(session, value, query.shape[-1])
    query, key, value = lowered(session, query, key, value)
    if places.positions is not None and query.shape[2] > 1:
        _check(session, places.positions)
    return sliced(session, attention(session, "flash", query, key, value, rate, window=places.window), 0, width)


def _check(session: Session, positions: Tensor) -> None:
    shape = (1, positions.shape[-1] - 1)
    (steps,) = session.run("sub", (positions,), ((shape, "int64"),))
    rising = elementwise(session, "ge", steps, dtype="bool")
    (answer,) = session.run("all", (rising,), (((), "bool"),))
    session.run("_local_scalar_dense", (answer,), ())
