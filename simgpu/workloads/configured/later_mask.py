"""The mask of attention of families that transformers 4.51 lacks, as ``masking_utils.py`` of 4.55 makes it.

The model is given a mask of padded tokens that has none, as the collators of transformers do. Without one, 4.55 looks
for several samples in a row, and then masks attention even where there are none.
"""

from __future__ import annotations

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.parts import Build
from simgpu.workloads.eager.pointwise import cast, elementwise
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor


def later_mask(build: Build, batch: int, positions: Tensor, *, has_window: bool = False) -> Tensor | None:
    """The mask (batch, 1, tokens, tokens) that is added to the scores of eager attention; None for fused attention.

    For the latter, PyTorch waits for the answer whether tokens are padded. has_window: whether it also hides what is
    outside a sliding window.
    """
    session, tokens = build.session, positions.shape[1]
    padding = session.constant("attention_mask", (batch, tokens), "int64", BlockKind.INPUT)
    padding = cast(session, padding, "bool")
    if build.fused is not None:
        (answer,) = session.run("all", (padding,), (((), "bool"),))
        session.run("_local_scalar_dense", (answer,), ())
        return None
    (columns,) = session.run("arange", (), (((tokens,), "int64"),))
    session.run_in_place("add_", columns)
    samples, heads = (session.run("arange", (), (((count,), "int64"),))[0] for count in (batch, 1))
    (ones,) = session.run("new_ones", (), (((tokens,), "bool"),))
    earlier = (_within_window if has_window else _earlier)(session, columns, positions.seen((tokens, 1)))
    earlier = elementwise(session, "bitwise_and", ones.seen((tokens, 1)), earlier)
    (real,) = session.run("index", (samples, padding, columns), (((batch, tokens), "bool"),))
    session.keep((heads, ones, samples, columns, padding))
    visible = elementwise(session, "bitwise_and", real.seen((batch, 1, 1, tokens)), earlier)
    (least,) = session.run("scalar_tensor", (), (((), build.dtype),))
    mask = elementwise(session, "where", visible, least, dtype=build.dtype)
    session.keep((visible, earlier, real))
    return mask


def _earlier(session: Session, columns: Tensor, rows: Tensor) -> Tensor:
    """Whether a token is none behind another one, (tokens, tokens)."""
    return elementwise(session, "le", columns, rows, dtype="bool")


def _within_window(session: Session, columns: Tensor, rows: Tensor) -> Tensor:
    """The same, but only for tokens less than a window before the other one."""
    (ones,) = session.run("new_ones", (), ((columns.shape, "bool"),))
    within = elementwise(session, "gt", columns, elementwise(session, "sub", rows), dtype="bool")
    within = elementwise(session, "bitwise_and", ones.seen(rows.shape), within)
    return elementwise(session, "bitwise_and", within, _earlier(session, columns, rows))
