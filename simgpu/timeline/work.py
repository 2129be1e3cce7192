"""What the work that a timeline names does to the hardware, beside the time that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """Arithmetic operations, and bytes to and from device memory."""

    flops: int
    dram_bytes: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of spans, by the name that they carry.

    kernels: by kernel id, recomputed or not. codecs: by the id of an encoded form, to make it or to undo it alike.
    copies: by block id, bytes to or from device memory, whatever a DMA engine makes of them before they reach the link.
    """

    kernels: Mapping[str, Work]
    codecs: Mapping[str, Work]
    copies: Mapping[str, int]
