"""`Tape` collects an iteration's kernels in order, the blocks they access, and when each block is freed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from simgpu.trace.model import BlockKind, Phase
from simgpu.units import ITEMSIZE
from simgpu.workloads.timemodel.operation import Operation


@dataclass(slots=True, eq=False)
class TapeBlock:
    """A block of memory. release: position of the kernel after which it is freed; None if at the end."""

    id: str
    shape: tuple[int, ...]
    dtype: str
    kind: BlockKind
    layer: str | None
    persistent: bool = False
    release: int | None = None

    @property
    def bytes(self) -> int:
        """Size of the block in bytes."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A block that a kernel reads or writes, or a view of it.

    shape: of the view, the batch first.
    partial: whether the view covers only part of the block, so that a gradient cannot be added through it.
    """

    block: TapeBlock
    shape: tuple[int, ...]
    partial: bool = False

    @property
    def count(self) -> int:
        """Number of values in the view."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the view."""
        return self.count * ITEMSIZE[self.block.dtype]

    def seen_as(self, shape: tuple[int, ...]) -> Value:
        """A view of the same memory in another shape, which may have fewer values."""
        return Value(self.block, shape, self.partial or prod(shape) != self.count)


@dataclass(frozen=True, slots=True)
class TapeKernel:
    """One kernel, without its duration and workspace. operations: its work, one after another; mostly one."""

    id: str
    op: str
    phase: Phase
    layer: str | None
    reads: tuple[TapeBlock, ...]
    writes: tuple[TapeBlock, ...]
    pure: bool
    operations: tuple[Operation, ...]


@dataclass(slots=True)
class Tape:
    """Records kernels in order. phase, layer: those of the next kernels.

    A block is freed after the last kernel that uses it, or after the latest kernel at the last `keep`, if later.
    """

    phase: Phase = Phase.FORWARD
    layer: str | None = None
    kernels: list[TapeKernel] = field(default_factory=list)
    blocks: list[TapeBlock] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)
    _kernel_names: dict[str, int] = field(default_factory=dict)

    def constant(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str = "float32") -> Value:
        """A persistent block, allocated before the iteration."""
        return self._block(name, shape, kind, dtype, persistent=True)

    def new(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str = "float32") -> Value:
        """A new block, which the next kernel writes first. A name that is in use gets a number."""
        return self._block(name, shape, kind, dtype, persistent=False)

    def _block(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str, persistent: bool) -> Value:
        block = TapeBlock(_unique(name, self._names), shape, dtype, kind, self.layer, persistent)
        self.blocks.append(block)
        return Value(block, shape)

    def launch(
        self, op: str, operation: Operation, reads: Iterable[Value], writes: Iterable[Value], *, pure: bool = True
    ) -> None:
        """Appends a kernel. A value in both `reads` and `writes` is changed in place."""
        self.launch_blocks(op, (operation,), (x.block for x in reads), (x.block for x in writes), pure=pure)

    def launch_blocks(
        self,
        op: str,
        operations: Sequence[Operation],
        reads: Iterable[TapeBlock],
        writes: Iterable[TapeBlock],
        *,
        pure: bool = True,
    ) -> None:
        """Appends a kernel of several operations. A block in both `reads` and `writes` is changed in place."""
        read, written = tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))
        position = len(self.kernels)
        for block in (*read, *written):
            if not block.persistent:
                block.release = position
        name = _unique(f"{self.layer or self.phase}.{op}", self._kernel_names)
        self.kernels.append(TapeKernel(name, op, self.phase, self.layer, read, written, pure, tuple(operations)))

    def keep(self, values: Sequence[Value]) -> None:
        """Frees these values no earlier than after the latest kernel."""
        self.keep_blocks(value.block for value in values)

    def keep_blocks(self, blocks: Iterable[TapeBlock]) -> None:
        """Frees these blocks no earlier than after the latest kernel."""
        for block in blocks:
            if not block.persistent:
                block.release = len(self.kernels) - 1


def _unique(name: str, counts: dict[str, int]) -> str:
    """The name, with a number if it is in use."""
    count = counts[name] = counts.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
