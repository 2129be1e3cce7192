"""The iteration as it is lowered: kernels in order, the memory they touch, and when that is let go of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from simgpu.trace.model import BlockKind, Phase
from simgpu.units import ITEMSIZE
from simgpu.workloads.timemodel.operation import Operation


@dataclass(slots=True, eq=False)
class TapeBlock:
    """One piece of memory. release: position of the kernel after which it is let go of, None: held to the end."""

    id: str
    shape: tuple[int, ...]
    dtype: str
    kind: BlockKind
    layer: str | None
    persistent: bool = False
    release: int | None = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What a kernel reads or writes: a block, or a view of it. shape: of the view, the batch first.

    partial: the view leaves out some of the block, so nothing can be added into the block through it.
    """

    block: TapeBlock
    shape: tuple[int, ...]
    partial: bool = False

    @property
    def count(self) -> int:
        """How many numbers the view has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """What reading or writing it moves."""
        return self.count * ITEMSIZE[self.block.dtype]

    def seen_as(self, shape: tuple[int, ...]) -> Value:
        """The same memory in another shape, which may have fewer values."""
        return Value(self.block, shape, self.partial or prod(shape) != self.count)


@dataclass(frozen=True, slots=True)
class TapeKernel:
    """One kernel: everything but its duration and workspace."""

    id: str
    op: str
    phase: Phase
    layer: str | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    pure: bool
    operation: Operation


@dataclass(slots=True)
class Tape:
    """Takes kernels in order; `phase` and `layer` are those of the kernels to come.

    A block lives until the last kernel that uses it, or that ends while somebody `keep`s it.
    """

    phase: Phase = Phase.FORWARD
    layer: str | None = None
    kernels: list[TapeKernel] = field(default_factory=list)
    blocks: list[TapeBlock] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)
    _kernel_names: dict[str, int] = field(default_factory=dict)

    def constant(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str = "float32") -> Value:
        """A block that is there when the iteration begins, and stays."""
        return self._block(name, shape, kind, dtype, persistent=True)

    def new(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str = "float32") -> Value:
        """A block that the next kernel writes first. A name that is taken gets a number."""
        return self._block(name, shape, kind, dtype, persistent=False)

    def _block(self, name: str, shape: tuple[int, ...], kind: BlockKind, dtype: str, persistent: bool) -> Value:
        note = TapeBlock(_free(name, self._names), shape, dtype, kind, self.layer, persistent)
        self.blocks.append(note)
        return Value(note, shape)

    def launch(
        self, op: str, operation: Operation, reads: Iterable[Value], writes: Iterable[Value], *, pure: bool = True
    ) -> None:
        """The next kernel. A value in `reads` and `writes` is changed in place."""
        read_blocks = list(dict.fromkeys(value.block for value in reads))
        written = list(dict.fromkeys(value.block for value in writes))
        position = len(self.kernels)
        for block in (*read_blocks, *written):
            if not block.persistent:
                block.release = position
        names = tuple(block.id for block in read_blocks), tuple(block.id for block in written)
        name = _free(f"{self.layer or self.phase}.{op}", self._kernel_names)
        self.kernels.append(TapeKernel(name, op, self.phase, self.layer, *names, pure, operation))

    def keep(self, values: Sequence[Value]) -> None:
        """These live at least until after the latest kernel."""
        for value in values:
            if not value.block.persistent:
                value.block.release = len(self.kernels) - 1


def _free(name: str, taken: dict[str, int]) -> str:
    """The name, with a number where it is taken."""
    count = taken[name] = taken.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
