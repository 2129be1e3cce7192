"""Helpers that importers share to build blocks and kernels: ids, block kinds, readers and writers."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from simgpu.trace.model import BlockKind, Phase


def kind_of_old(
    reading: Set[Phase], writing: Set[Phase], arguments: Set[str], shape: tuple[int, ...] | None, batch: int | None
) -> BlockKind:
    """The kind of a block that was allocated before the iteration.

    - weight: read in forward and written by the optimizer; or a forward argument named weight or bias, never written
    - weight gradient: written in backward
    - optimizer state: accessed only by the optimizer
    - label: passed to the loss as its target
    - input: read in forward, never written, with the batch size as its first dimension
    - other: everything else

    reading, writing: phases of the kernels that read and write the block.
    arguments: names of the operator arguments through which the block is passed.
    shape: dimensions; None if not recorded.
    batch: samples per iteration; None if unknown.

    >>> kind_of_old({Phase.FORWARD, Phase.OPTIMIZER}, {Phase.OPTIMIZER}, {"self"}, (4,), 8).value
    'weight'
    """
    is_parameter = bool(arguments & {"weight", "bias"})
    if Phase.FORWARD in reading and (Phase.OPTIMIZER in writing or (is_parameter and not writing)):
        return BlockKind.WEIGHT
    if Phase.BACKWARD in writing:
        return BlockKind.WEIGHT_GRADIENT
    if reading | writing == {Phase.OPTIMIZER}:
        return BlockKind.OPTIMIZER_STATE
    if "target" in arguments:
        return BlockKind.LABEL
    if Phase.FORWARD in reading and not writing and shape and shape[0] == batch:
        return BlockKind.INPUT
    return BlockKind.OTHER


def kind_of_new(maker: Phase | None, reading: Set[Phase]) -> BlockKind:
    """The kind of a block that a kernel created: activation in forward, gradient in backward, else `other`.

    maker: phase of the first kernel that wrote the block; None if no kernel did.
    reading: phases of the kernels that read it.

    >>> kind_of_new(Phase.FORWARD, {Phase.BACKWARD}).value
    'activation'
    """
    if maker is Phase.FORWARD:
        return BlockKind.ACTIVATION
    return kind_of_gradient(reading) if maker is Phase.BACKWARD else BlockKind.OTHER


def kind_of_gradient(reading: Set[Phase]) -> BlockKind:
    """Weight gradient if the optimizer reads the block, else gradient.

    >>> kind_of_gradient({Phase.OPTIMIZER}).value, kind_of_gradient({Phase.BACKWARD}).value
    ('weight_gradient', 'gradient')
    """
    return BlockKind.WEIGHT_GRADIENT if Phase.OPTIMIZER in reading else BlockKind.GRADIENT


class StorageNames:
    """Names each new block of a storage uniquely, because storage ids are reused once their memory is free.

    >>> names = StorageNames()
    >>> names.next(7), names.next(7), names.next(8)
    ('s7', 's7.2', 's8')
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def next(self, storage: int) -> str:
        """The name of the next block in a storage."""
        count = self._counts[storage] = self._counts.get(storage, 0) + 1
        return f"s{storage}" if count == 1 else f"s{storage}.{count}"


def kernel_ids(count: int) -> list[str]:
    """Numbers from 1, padded with zeros so that they sort as text.

    >>> kernel_ids(10)[0], kernel_ids(10)[9]
    ('01', '10')
    """
    return [str(position + 1).zfill(len(str(count))) for position in range(count)]


def printable(name: str) -> str:
    r"""Returns a name that the trace format allows: printable, without surrounding spaces.

    >>> printable(" a\nkernel "), printable("")
    ('a kernel', 'unnamed')
    """
    return "".join(letter if letter.isprintable() else " " for letter in name).strip() or "unnamed"


@dataclass(slots=True, eq=False)
class BlockDraft:
    """A block and the positions of the kernels that read and write it."""

    id: str
    bytes: int = 0
    kind: BlockKind = BlockKind.OTHER
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    readers: set[int] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)

    @property
    def is_used(self) -> bool:
        return bool(self.readers or self.writers)

    @property
    def first(self) -> int:
        return min(self.readers | self.writers)

    def drop_read_of_nothing(self) -> None:
        """Drop the read of an in-place kernel that is the first user of new memory: there was nothing to read."""
        if self.is_used and self.first in self.writers:
            self.readers.discard(self.first)


def reads_and_writes(count: int, drafts: Iterable[BlockDraft]) -> tuple[list[list[str]], list[list[str]]]:
    """Ids of the blocks that each of `count` kernels reads, and ids of the blocks that it writes.

    >>> reads_and_writes(2, [BlockDraft("x", readers={1}, writers={0}), BlockDraft("y", writers={1})])
    ([[], ['x']], [['x'], ['y']])
    """
    reads: list[list[str]] = [[] for _ in range(count)]
    writes: list[list[str]] = [[] for _ in range(count)]
    for draft in drafts:
        for position in draft.readers:
            reads[position].append(draft.id)
        for position in draft.writers:
            writes[position].append(draft.id)
    return reads, writes
