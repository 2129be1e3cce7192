"""A policy's decisions about blocks: in a gap, a block is swapped or recomputed; without a decision it stays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Swap:
    """Move a block to the host during the gap between kernel `after`, its last use, and kernel `before`, its next.

    The fetch is issued when kernel `fetch_with` is reached, `after < fetch_with <= before`; if a recomputation needs
    the block earlier, the same number of layer steps ahead of that. out_with: without a layer barrier, the kernel at
    whose start the offload is issued, after the last one that writes the block; None for the end of `after`. drain:
    without a layer barrier, the fetch waits for all copies issued before it, not only for the block's own copy out.
    form: the encoded form in which the block is moved, None for the block itself. on_host: the host instead of the GPU
    encodes it after the copy out and decodes it before the fetch.
    """

    block: int
    after: int
    before: int
    fetch_with: int
    form: int | None = None
    on_host: bool = False
    out_with: int | None = None
    drain: bool = False

    def __hash__(self) -> int:
        # A block is moved once in a gap; lowering looks swaps up often.
        return hash((self.block, self.after))

    @property
    def encoded_by_gpu(self) -> bool:
        """Whether the GPU encodes the block, so that its encoded form is copied."""
        return self.form is not None and not self.on_host

    @property
    def encoded_by_host(self) -> bool:
        """Whether it is encoded in host memory only."""
        return self.form is not None and self.on_host


@dataclass(frozen=True, slots=True)
class Recompute:
    """Drop a block after kernel `after`, its last use, and recompute it for kernel `before`, its next use.

    It is recomputed earlier where another recomputation reads it.
    """

    block: int
    after: int
    before: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The swaps and recomputations of one iteration. `layer_barrier`: a layer step ends only when the copies issued
    with it have ended (vDNN); otherwise kernels and copies wait only for what they need."""

    swaps: tuple[Swap, ...] = ()
    layer_barrier: bool = False
    recomputes: tuple[Recompute, ...] = ()
