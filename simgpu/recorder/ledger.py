"""Tracks storages: which block a tensor belongs to, and when the framework freed it.

The ledger holds only weak references, so recording does not change the lifetime of any storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from simgpu.errors import InputError
from simgpu.recorder.allocation_log import AllocationLog
from simgpu.recorder.notes import BlockNote
from simgpu.trace.model import BlockKind


@dataclass
class Ledger:
    """All blocks of one iteration on one device, in order of first use.

    kernels: number of kernels recorded so far; the recording pass increments it.
    host: tensors that count as the host's although their device is the recorded one.
    log: notes every allocation and free, if given.
    """

    device: torch.device
    host: InitVar[Sequence[torch.Tensor]] = ()
    blocks: list[BlockNote] = field(default_factory=list)
    kernels: int = 0
    log: AllocationLog | None = None
    _living: dict[int, int] = field(default_factory=dict)
    _references: dict[int, Any] = field(default_factory=dict)
    _from_host: set[int] = field(default_factory=set)
    _on_host: set[int] = field(default_factory=set)
    _closed: bool = False

    def __post_init__(self, host: Sequence[torch.Tensor]) -> None:
        self._on_host.update(self._storage(tensor)._cdata for tensor in host)

    def find(self, tensor: torch.Tensor) -> int | None:
        """Returns the number of the block behind a tensor; None if it has none yet."""
        return self._living.get(self._storage(tensor)._cdata)

    def living(self) -> Iterator[tuple[int, torch.UntypedStorage]]:
        """Yields (number, storage) of all blocks that are allocated now, in order of first use."""
        for number in list(self._references):
            storage = self.storage_of(number)
            if storage is not None:
                yield number, storage

    def storage_of(self, number: int) -> torch.UntypedStorage | None:
        """Returns the storage of a block; None for a freed block or a workspace."""
        reference = self._references.get(number)
        storage: torch.UntypedStorage | None = None if reference is None else reference()
        return storage

    def holds_memory(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is backed by memory of the recorded device; empty tensors are not."""
        return bool(tensor.device == self.device and self._storage(tensor).nbytes() > 0 and not self.is_on_host(tensor))

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is one of the `host` tensors."""
        return bool(self._on_host) and self._storage(tensor)._cdata in self._on_host

    def keep(self, tensor: torch.Tensor, kind: BlockKind, name: str, layer: str | None = None) -> None:
        """Enter a tensor that exists before the iteration; a shared storage keeps its first name."""
        if self.holds_memory(tensor) and self.find(tensor) is None:
            self.blocks[self._enter(tensor, kind, layer)].persistent = True
            self.blocks[-1].name = name

    def receive(self, tensor: torch.Tensor, kind: BlockKind, name: str) -> None:
        """Enter a tensor that was copied from the host."""
        self._on_host.discard(self._storage(tensor)._cdata)
        if self.holds_memory(tensor) and self.find(tensor) is None:
            block = self.blocks[self._enter(tensor, kind, None)]
            block.name, block.host_write = name, self.kernels

    def note_from_host(self, tensor: torch.Tensor) -> None:
        """Note that the host has just written this tensor; its block is entered when a kernel first accesses it."""
        if self.holds_memory(tensor) and self.find(tensor) is None:
            key = self._storage(tensor)._cdata
            self._from_host.add(key)
            weakref.finalize(self._storage(tensor), self._from_host.discard, key).atexit = False

    def block_read(self, tensor: torch.Tensor, layer: str | None) -> int:
        """Returns the block behind a tensor that the current kernel reads.

        A block that no kernel wrote was written by the host in this iteration, or existed before it.
        """
        number = self.find(tensor)
        if number is None:
            number = self._enter(tensor, BlockKind.OTHER, layer)
            if self._storage(tensor)._cdata in self._from_host:
                self.blocks[number].host_write = self.kernels
            else:
                self.blocks[number].persistent = True
        return number

    def block_created(self, tensor: torch.Tensor, kind: BlockKind, layer: str | None, maker: str) -> int:
        """Returns the block behind a result of the current kernel; a new block if the storage is new."""
        number = self.find(tensor)
        if number is None:
            number = self._enter(tensor, kind, layer)
            self.blocks[number].maker = maker
        return number

    def scratch(self, size: int, layer: str | None, maker: str) -> int:
        """Returns a new workspace block of the current kernel, which is freed when the kernel ends."""
        note = BlockNote(size, BlockKind.WORKSPACE, layer, None, None, maker=maker, release=self.kernels)
        self.blocks.append(note)
        number = len(self.blocks) - 1
        if self.log is not None and not self.log.knows_workspaces:
            self.log.allocated(number)
            self.log.freed(number)
        return number

    def moved_to_host(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is on the host: its block is none of the device. Copied there later, it is a new block."""
        storage = self._storage(tensor)
        self._on_host.add(storage._cdata)
        weakref.finalize(storage, self._on_host.discard, storage._cdata).atexit = False  # another may get its address
        number = self._living.pop(storage._cdata, None)
        if number is not None:
            self._references.pop(number)
            if self.log is not None:
                self.log.on_host(number)

    def moved_to_device(self, tensor: torch.Tensor) -> None:
        """Note that a tensor that was on the host is on the device from now on; of a view, only what it shows."""
        self._on_host.discard(self._storage(tensor)._cdata)
        if self.holds_memory(tensor) and self.find(tensor) is None:
            block = self.blocks[self._enter(tensor, BlockKind.OTHER, None)]
            block.persistent, block.bytes = True, min(block.bytes, tensor.numel() * tensor.element_size())

    def close(self) -> None:
        """End the iteration: blocks that are allocated now count as live at its end; later frees are ignored."""
        self._closed = True
        self._references.clear()

    def _enter(self, tensor: torch.Tensor, kind: BlockKind, layer: str | None) -> int:
        storage = self._storage(tensor)
        number, key = len(self.blocks), storage._cdata
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.blocks.append(BlockNote(storage.nbytes(), kind, layer, tuple(tensor.shape), dtype))
        self._living[key] = number
        self._references[number] = weakref.ref(storage, lambda _: self._let_go(number, key))
        if self.log is not None:
            self.log.allocated(number)
        return number

    def _let_go(self, number: int, key: int) -> None:
        if self._closed:
            return
        del self._living[key], self._references[number]
        self.blocks[number].release = max(self.kernels - 1, 0)
        if self.log is not None:
            self.log.freed(number)

    @staticmethod
    def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
        try:
            return tensor.untyped_storage()
        except NotImplementedError as error:
            what = f"a {tensor.layout} tensor of shape {tuple(tensor.shape)} has no storage of its own"
            remedy = "record a model without sparse tensors (for example Embedding(sparse=False))"
            raise InputError.single("recording", "tensors", what, remedy) from error
