"""Asynchronous offload: saved blocks are copied out on one stream and prefetched on another before their use.

A block is a storage, however many saved tensors lie in it. All memory is allocated in the order of the compute stream
and compute waits for a block's copies before the block is released; so no copy reads or writes memory that has another
owner by then, and the allocator need not know the copy streams (``record_stream``).

On a GPU backward runs in a thread of PyTorch's; the thread that called it waits meanwhile. So the hooks are never
called by two threads at once, and nothing here is locked.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from simgpu.validation.devices import Device, Event, Stream
from simgpu.validation.devices.storages import StorageSet, living_storages, storage_of
from simgpu.validation.managed.transfers import HostBuffers, Tally


class Saved(NamedTuple):
    """What autograd keeps in place of a tensor: the block it lies in, and how."""

    block: Block
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class AsyncOffload:
    """Offloads what autograd saves in a step.

    Stays where it is: what was there before the step (weights, buffers, the batch), storages under `min_bytes`, and
    what is no plain memory of the device (tensors on the host, sparse ones, subclasses, lazily conjugated or negated
    ones).

    prefetch: so many blocks, in reverse order of their saving, are fetched with the one that backward takes back.
    stash: so many blocks that are on their way out may still hold device memory.
    """

    def __init__(self, device: Device, tally: Tally, *, prefetch: int, stash: int, min_bytes: int) -> None:
        self._device = device
        self._tally = tally
        self._prefetch = prefetch
        self._stash = stash
        self._min_bytes = max(1, min_bytes)
        self._out = device.new_stream("d2h")
        self._in = device.new_stream("h2d")
        self._buffers = HostBuffers(device)
        self._lasting = living_storages(device.torch_device)
        self._saved: list[weakref.ref[Block]] = []
        self._by_storage: dict[int, weakref.ref[Block]] = {}
        self._leaving: list[weakref.ref[Block]] = []
        self._storages = StorageSet()

    @contextmanager
    def step(self) -> Iterator[None]:
        """What autograd saves while the context lasts is offloaded."""
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            # What outlives the step was made to last: a table that a module fills in its first forward, say.
            for storage in self._storages:
                self._lasting.add(storage)
            self._saved, self._by_storage, self._leaving, self._storages = [], {}, [], StorageSet()

    def _pack(self, tensor: torch.Tensor) -> Saved | torch.Tensor:
        storage = self._offloadable(tensor)
        if storage is None:
            return tensor
        block = self._block_of(tensor, storage)
        return Saved(block, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _unpack(self, saved: Saved | torch.Tensor) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        self._fetch_with_the_next(saved.block)
        view = torch.empty(0, dtype=saved.dtype, device=self._device.torch_device)
        return view.set_(saved.block.use(), saved.offset, saved.shape, saved.stride)

    def _offloadable(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        """The storage that a saved tensor is offloaded with; None for one that stays."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return None
        if tensor.device != self._device.torch_device or tensor.is_conj() or tensor.is_neg():
            return None
        storage = storage_of(tensor)
        if storage is None or storage.nbytes() < self._min_bytes:
            return None
        return None if self._device.is_host(tensor) or storage in self._lasting else storage

    def _block_of(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Block:
        """The block of a storage, on its way out from its first saving."""
        known = self._by_storage.get(storage._cdata)
        block = None if known is None else known()
        if block is not None and block.is_of(tensor, storage):
            return block
        block = Block(self._device, self._buffers, tensor, storage, self._saved)
        reference = weakref.ref(block)
        self._by_storage[storage._cdata] = reference
        self._saved.append(reference)
        self._storages.add(storage)
        block.leave(self._out)
        self._tally.d2h_bytes += block.nbytes
        self._leaving.append(reference)
        self._keep_to_the_stash()
        return block

    def _keep_to_the_stash(self) -> None:
        """Let go of the oldest blocks that are on their way out, until no more are left than may be."""
        leaving = [block for reference in self._leaving if (block := reference()) is not None and block.is_leaving]
        for block in leaving[: max(0, len(leaving) - self._stash)]:
            block.let_go()
        self._leaving = [weakref.ref(block) for block in leaving[max(0, len(leaving) - self._stash) :]]

    def _fetch_with_the_next(self, block: Block) -> None:
        """Start copying back a block and those that backward will want next, as far as they are on the host."""
        first = max(0, block.number - self._prefetch)
        for reference in reversed(block.order[first : block.number + 1]):
            wanted = reference()
            if wanted is not None and wanted.here is None:
                wanted.fetch(self._in)
                self._tally.h2d_bytes += wanted.nbytes


class Block:
    """A storage that autograd saved something in, from when it was first saved until nothing of it is needed.

    It holds device memory while it leaves and once it has been fetched; `here` is a tensor in that memory. What
    refers to a block are the saved tensors alone: with the last of them it goes, wherever it is, as the storage would
    have gone without offload. Compute waits for a copy that is under way then, so that the copy is over before the
    memory is handed out again.

    order: the blocks of the same step in the order of their first saving, this one to be at `number`.
    """

    def __init__(
        self,
        device: Device,
        buffers: HostBuffers,
        tensor: torch.Tensor,
        storage: torch.UntypedStorage,
        order: list[weakref.ref[Block]],
    ) -> None:
        self.nbytes = int(storage.nbytes())
        self.number = len(order)
        self.order = order
        self.here: torch.Tensor | None = tensor.detach()
        self._device = device
        self._buffer = buffers.take(self.nbytes)
        self._storage = weakref.ref(storage)
        self._version = tensor._version
        self._is_first_copy = True
        self._was_changed = False
        self._under_way: Event | None = None

    def is_of(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Whether a tensor lies in the storage this was made for, unchanged since.

        A tensor's version counts in-place changes of it and of all its views.
        """
        return self._storage() is storage and self._version == tensor._version

    @property
    def is_leaving(self) -> bool:
        """Whether it still holds the memory in which it was saved."""
        return self.here is not None and self._is_first_copy

    def leave(self, stream: Stream) -> None:
        """Start the copy to the host, behind what compute has been asked for so far."""
        storage = self._storage()
        assert storage is not None
        stream.wait(self._device.compute.record())
        stream.copy(self._buffer.bytes, torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        self._under_way = stream.record()

    def let_go(self) -> None:
        """Have compute wait for the copy to the host, and give up the device memory."""
        self._look_for_changes()
        self._wait()
        self.here, self._is_first_copy = None, False

    def fetch(self, stream: Stream) -> None:
        """Take new device memory and start the copy into it.

        The memory may be such as compute still works in, for whoever had it before; so the stream waits for that.
        """
        self.here = self._device.empty(self.nbytes)
        stream.wait(self._device.compute.record())
        stream.copy(self.here, self._buffer.bytes)
        self._under_way = stream.record()

    def use(self) -> torch.UntypedStorage:
        """The device memory with its values, for work that compute is asked for from now on.

        Nobody need wait for a copy to the host that is still under way: it only reads. Raises `RuntimeError` where the
        values were changed in place before they had left, as PyTorch does where no hooks are.
        """
        assert self.here is not None
        self._look_for_changes()
        if self._was_changed:
            raise RuntimeError("a tensor that was saved for backward has been changed in place since")
        if not self._is_first_copy:
            self._wait()
        return self.here.untyped_storage()

    def __del__(self) -> None:
        with suppress(Exception):  # what went wrong on a stream is told to who waits for the stream
            self._wait()

    def _wait(self) -> None:
        if self._under_way is not None:
            self._device.compute.wait(self._under_way)
            self._under_way = None

    def _look_for_changes(self) -> None:
        if self._is_first_copy and self.here is not None:
            self._was_changed = self.here._version != self._version
