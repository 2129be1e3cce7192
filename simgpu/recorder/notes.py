"""The notes that the recording passes take of kernels and blocks; `assemble` builds a trace from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from simgpu.trace.model import BlockKind, Phase

#: (codec, layout, compressed bytes) of a feature map.
Sizes = tuple[tuple[str, str, int], ...]
#: (codec, layout, bytes of a memory-entry before, bytes after, number of such entries) of a block.
Entries = tuple[tuple[str, str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class KernelNote:
    """An observed kernel.

    call: its position among all operator calls.
    reads, writes: numbers of blocks in the ledger.
    pure: False if it writes a block from before the iteration (an optimizer step, running statistics).
    may_be_in_place: whether autograd may run it in place when operators are not intercepted.
    source: the line of code that ran it, if it is noted.
    """

    call: int
    op: str
    phase: Phase
    layer: str | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    pure: bool | None
    flops: int | None
    may_be_in_place: bool = False
    source: str | None = None


@dataclass(slots=True)
class BlockNote:
    """An observed storage; kernels are positions in the recording.

    name: name of a parameter, buffer, optimizer state or input; empty for results of kernels.
    maker: operator that created it.
    host_write: position of the kernel before which the host wrote it; None if the host did not.
    release: position of the kernel after which it was freed; None while it is live.
    sizes: compressed sizes of its values.
    entries: compressed sizes of its memory-entries.
    map_file: file with its values.
    dumped: files with its memory, by snapshot.
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
    """Measured values of a block at one epoch: fraction of zeros; sizes and entries as in `BlockNote`."""

    sparsity: float | None
    sizes: Sizes
    entries: Entries = ()


@dataclass(slots=True)
class SavedNote:
    """A tensor that autograd saved.

    block: number in the ledger; None while no kernel has accessed that memory.
    bytes: size of the tensor itself.
    after: number of kernels that had run when it was saved.
    before: number of kernels that had run when backward read it; None if backward did not.
    dropped: position of the kernel after which only autograd referenced the block; "end" if it is referenced until the
        iteration's end, None if this could not be observed.
    layer: the layer that saved it; shape, dtype: of the tensor itself.
    unused: position of the kernel after which the operator of backward had dropped what it unpacked, None if not.
    freed: position of the kernel after which autograd had freed it, None if it held it to the end.
    is_reread: whether more than one run of backward unpacked it.
    """

    block: int | None
    bytes: int
    after: int
    layer: str
    shape: tuple[int, ...]
    dtype: str
    before: int | None = None
    dropped: int | Literal["end"] | None = None
    unused: int | None = None
    freed: int | None = None
    is_reread: bool = False


@dataclass(slots=True)
class CallNote:
    """A call of a module in forward, with gradients.

    module: its path, `WHOLE` for the whole model. kind: as `simgpu.torch.types.module_type`. after, until: number of
    kernels that had run when it began and when it returned. first, stop: number of saved tensors then, positions in
    their list. inputs: numbers of the blocks of the tensors it was given. types: as `simgpu.torch.types.tensor_type`,
    of each of these tensors. is_compiled: whether compiled code ran in it.
    """

    module: str
    kind: str
    after: int
    first: int
    inputs: tuple[int, ...]
    types: tuple[str, ...]
    until: int = 0
    stop: int = 0
    is_compiled: bool = False


class Saves(NamedTuple):
    """What autograd saves in an iteration, and the calls of modules, each in order."""

    tensors: tuple[SavedNote, ...] = ()
    calls: tuple[CallNote, ...] = ()


@dataclass(frozen=True, slots=True)
class AlgorithmNote:
    """Duration (ns) and workspace (bytes) of one algorithm for the convolution at operator `call` of the iteration."""

    call: int
    algorithm: str
    duration_ns: int
    workspace_bytes: int


def created_in_iteration(blocks: Sequence[BlockNote]) -> list[int]:
    """Returns the numbers of the blocks that are created in the iteration, without workspaces.

    A pass over forward alone creates the first of them, in the same order, regardless of the optimizer's state.
    """
    return [number for number in without_workspaces(blocks) if not blocks[number].persistent]


def without_workspaces(blocks: Sequence[BlockNote]) -> list[int]:
    """Returns the numbers of all blocks except workspaces."""
    return [number for number, block in enumerate(blocks) if block.kind is not BlockKind.WORKSPACE]
