"""What the passes note of kernels and blocks, before it becomes a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from simgpu.trace.model import BlockKind, Phase

#: Codec, layout and bytes of what a feature map becomes.
Sizes = tuple[tuple[str, str, int], ...]
#: Codec, layout, bytes of an entry before and after, and how many entries of a block become that.
Entries = tuple[tuple[str, str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class KernelNote:
    """A kernel as seen: `call` is its position among all operator calls, blocks are numbers in the ledger.

    sums_gradients: it may be autograd's addition of the gradients of two branches.
    One that writes a block from before the iteration (an optimizer step, running statistics) is not pure.
    """

    call: int
    op: str
    phase: Phase
    layer: str | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    pure: bool | None
    flops: int | None
    sums_gradients: bool = False


@dataclass(slots=True)
class BlockNote:
    """A storage as seen so far; kernels are positions in the recording.

    name: the name of a parameter, buffer, optimizer state or input, empty for what kernels made.
    maker: operator that made it. host_write: position of the kernel at whose start the host had put it there.
    release: position of the kernel after whose end it was let go, None while it is held.
    sizes: of its values, codec, layout and bytes. entries: the same of its memory, entry by entry. map_file: the file
    that holds its values. dumped: the files that hold its memory, by snapshot.
    """

    bytes: int
    kind: BlockKind
    layer: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    name: str = ""
    maker: str = ""
    persistent: bool = False
    host_write: int | None = None
    release: int | None = None
    sparsity: float | None = None
    sizes: Sizes = ()
    entries: Entries = ()
    map_file: Path | None = None
    dumped: dict[int, Path] = field(default_factory=dict)


class ValueNote(NamedTuple):
    """What was seen of a block's values at one epoch: share of zeros, sizes and entries as in `BlockNote`."""

    sparsity: float | None
    sizes: Sizes
    entries: Entries = ()


@dataclass(slots=True)
class SavedNote:
    """A tensor that autograd saved: `block` is a number in the ledger, None while no kernel has touched that memory.

    bytes: of the tensor itself. after: how many kernels had run when it was saved; before: how many when backward took
    it back, None where it did not. dropped: position of the kernel after whose end nobody but autograd held the block;
    "end" where somebody does to the iteration's end, None where that could not be seen.
    """

    block: int | None
    bytes: int
    after: int
    before: int | None = None
    dropped: int | Literal["end"] | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmNote:
    """One way to run the convolution that is operator `call` of the iteration: nanoseconds and bytes."""

    call: int
    algorithm: str
    duration_ns: int
    workspace_bytes: int


def created_in_iteration(blocks: Sequence[BlockNote]) -> list[int]:
    """Numbers of the blocks that come to be in the iteration, without workspaces.

    A pass over the forward part alone meets the first of them, in the same order, whatever state the optimizer has.
    """
    return [number for number in without_workspaces(blocks) if not blocks[number].persistent]


def without_workspaces(blocks: Sequence[BlockNote]) -> list[int]:
    """Numbers of the blocks that tensors show: all but workspaces."""
    return [number for number, block in enumerate(blocks) if block.kind is not BlockKind.WORKSPACE]
