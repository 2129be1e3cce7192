"""What a policy decides about blocks: for a gap of a block, swap it out and back in, or make it again; all else
stays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Swap:
    """Move a block to the host during the gap between kernel `after`, its last use, and kernel `before`, its next.

    The copy back is issued when kernel `fetch_with` is reached, `after < fetch_with <= before`; where something that is
    made again needs the block earlier, as many layer steps ahead of that. out_with: without a layer barrier, the kernel
    at whose start the copy out is issued, after the last one that writes the block; None for the end of `after`. drain:
    likewise, the fetch waits for all copies issued before it, not for the block's own copy out alone.
    form: the encoded form of the block that it travels in, None where it travels as it is. on_host: the host encodes it
    after the copy out and decodes it before the copy back, instead of the GPU.
    """

    block: int
    after: int
    before: int
    fetch_with: int
    form: int | None = None
    on_host: bool = False
    out_with: int | None = None
    drain: bool = False

    @property
    def encoded_by_gpu(self) -> bool:
        """Whether the GPU encodes it, so that its encoded form is what is copied."""
        return self.form is not None and not self.on_host

    @property
    def encoded_by_host(self) -> bool:
        """Whether it is encoded in host memory only."""
        return self.form is not None and self.on_host


@dataclass(frozen=True, slots=True)
class Recompute:
    """Let go of a block after kernel `after`, its last use, and make it again for kernel `before`, its next, or for
    what is made again from it before that."""

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
