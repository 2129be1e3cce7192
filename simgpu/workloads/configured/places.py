"""`Places`: what attention of all layers reads of the tokens' places in their sample."""

from __future__ import annotations

from typing import NamedTuple

from simgpu.workloads.eager.tensor import Tensor


class Places(NamedTuple):
    """angles: cosines and sines of the rotary embedding, if any. mask: added to the scores, if any.

    positions: numbers of the tokens, where attention reads them. window: number of earlier keys that a layer's queries
    see without a mask; None for all. local: the angles of layers with a window, where others have theirs (Gemma 3).
    windowed: the mask of layers with a window, where all share one (GPT-OSS).
    """

    angles: tuple[Tensor, ...] = ()
    mask: Tensor | None = None
    positions: Tensor | None = None
    window: int | None = None
    local: tuple[Tensor, ...] = ()
    windowed: Tensor | None = None
