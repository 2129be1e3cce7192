"""Asynchronous offload: saved blocks are offloaded on one stream and prefetched on another before their use.

`simgpu.policies.async_offload` is its counterpart in a simulation, and says what is copied and freed when.

A block is one storage, shared by all saved tensors in it. All memory is allocated in compute-stream order, and compute
waits for a block's copies before the block is released. So no copy accesses memory that was allocated again, and the
allocator need not know the copy streams (``record_stream``).

On a GPU, PyTorch runs backward in its own thread while the calling thread waits. Two threads never call the hooks at
once, so there are no locks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.torch.copies import CopyDevice, CopyStream, Event
from simgpu.torch.storages import storage_of
from simgpu.torch.transfers import HostBuffers, Tally


class Saved(NamedTuple):
    """Autograd's substitute for a saved tensor: its block, and its layout in the block."""

    block: Block
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Kept(NamedTuple):
    """Autograd's substitute for a tensor that is not offloaded, and the tensor's version when it was saved."""

    tensor: torch.Tensor
    version: int


class Choice(Protocol):
    """Which saved tensors are offloaded."""

    def begin(self) -> None:
        """Called before a step."""

    def chooses(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is offloaded; called for every tensor that autograd saves, in order."""

    def end(self) -> None:
        """Called after a step."""


class AsyncOffload:
    """Offloads some of the tensors that autograd saves in a step.

    Never offloaded are tensors that are not plain device memory (host, sparse, subclassed, lazily conjugated or negated
    tensors).

    prefetch: number of blocks fetched along with the one that backward needs, in reverse order of saving.
    stash: number of blocks being offloaded that may still hold device memory.
    """

    def __init__(self, device: CopyDevice, tally: Tally, choice: Choice, *, prefetch: int, stash: int) -> None:
        self._device = device
        self._tally = tally
        self._choice = choice
        self._prefetch = prefetch
        self._stash = stash
        self._out = device.new_stream("d2h")
        self._in = device.new_stream("h2d")
        self._buffers = HostBuffers(device)
        self._saved: list[weakref.ref[Block]] = []
        self._by_storage: dict[int, weakref.ref[Block]] = {}
        self._offloading: list[weakref.ref[Block]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Offloads what autograd saves inside the context."""
        self.begin_step()
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._choice.end()
            self._forget()

    def begin_step(self) -> None:
        """Begins another step inside the context."""
        self._forget()
        self._choice.begin()

    def _forget(self) -> None:
        self._saved, self._by_storage, self._offloading = [], {}, []

    def _pack(self, tensor: torch.Tensor) -> Saved | Kept:
        storage = self._offloadable(tensor) if self._choice.chooses(tensor) else None
        if storage is None:
            # A result that an operator saves refers to that operator, which would then never be freed.
            with _disable_current_modes():
                return Kept(tensor if tensor.grad_fn is None else tensor.detach(), _version(tensor))
        block = self._block_of(tensor, storage)
        return Saved(block, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _unpack(self, saved: Saved | Kept) -> torch.Tensor:
        if isinstance(saved, Kept):
            if _version(saved.tensor) != saved.version:  # PyTorch does not look where there are hooks
                shape = tuple(saved.tensor.shape)
                raise RuntimeError(f"a tensor of shape {shape} that is saved for backward was changed in place")
            return saved.tensor
        self._fetch_ahead(saved.block)
        memory = saved.block.use()
        with _disable_current_modes():  # a view, which is no operator of the step
            view = torch.empty(0, dtype=saved.dtype, device=self._device.torch_device)
            return view.set_(memory, saved.offset, saved.shape, saved.stride)

    def _offloadable(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        """The storage to offload for a saved tensor; None if the tensor is not offloaded."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return None
        if tensor.device != self._device.torch_device or tensor.is_conj() or tensor.is_neg():
            return None
        storage = storage_of(tensor)
        return None if storage is None or not storage.nbytes() or self._device.is_host(tensor) else storage

    def _block_of(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Block:
        """The block of a storage; starts its offload when it is first saved."""
        existing = self._by_storage.get(storage._cdata)
        block = None if existing is None else existing()
        if block is not None and block.matches(tensor, storage):
            return block
        block = Block(self._device, self._buffers, tensor, storage, self._saved)
        reference = weakref.ref(block)
        self._by_storage[storage._cdata] = reference
        self._saved.append(reference)
        block.start_offload(self._out)
        self._tally.d2h_bytes += block.nbytes
        self._offloading.append(reference)
        self._trim_stash()
        return block

    def _trim_stash(self) -> None:
        """Releases the oldest blocks being offloaded, until at most `stash` hold device memory."""
        offloading = [
            block for reference in self._offloading if (block := reference()) is not None and block.is_offloading
        ]
        for block in offloading[: max(0, len(offloading) - self._stash)]:
            block.release()
        self._offloading = [weakref.ref(block) for block in offloading[max(0, len(offloading) - self._stash) :]]

    def _fetch_ahead(self, block: Block) -> None:
        """Starts fetching a block and the next ones in backward order, skipping resident blocks."""
        first = max(0, block.number - self._prefetch)
        for reference in reversed(block.order[first : block.number + 1]):
            wanted = reference()
            if wanted is not None and wanted.data is None:
                wanted.fetch(self._in)
                self._tally.h2d_bytes += wanted.nbytes


def _version(tensor: torch.Tensor) -> int:
    """Counts in-place changes; PyTorch does not count those of a tensor made in inference mode."""
    return -1 if tensor.is_inference() else int(tensor._version)


class Block:
    """A storage with saved tensors, from its first saving until none of them is needed.

    It holds device memory until its offload ends, and again once fetched; `data` is a tensor in that memory. Only saved
    tensors refer to a block, so it is freed with the last of them, just as the storage without offload. Compute then
    waits for an unfinished copy, so that the memory is not reused before the copy ends.

    order: the step's blocks in the order of their first saving; this block gets index `number`.
    """

    def __init__(
        self,
        device: CopyDevice,
        buffers: HostBuffers,
        tensor: torch.Tensor,
        storage: torch.UntypedStorage,
        order: list[weakref.ref[Block]],
    ) -> None:
        self.nbytes = int(storage.nbytes())
        self.number = len(order)
        self.order = order
        self.data: torch.Tensor | None = tensor.detach()
        self._device = device
        self._buffer = buffers.take(self.nbytes)
        self._storage = weakref.ref(storage)
        self._version = tensor._version
        self._is_first_copy = True
        self._was_changed = False
        self._pending_copy: Event | None = None

    def matches(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Whether a tensor is in this block's storage, unchanged since it was saved.

        A tensor's version counts in-place changes of the tensor and all its views.
        """
        return self._storage() is storage and self._version == tensor._version

    @property
    def is_offloading(self) -> bool:
        """Whether it still holds the memory it was saved in."""
        return self.data is not None and self._is_first_copy

    def start_offload(self, stream: CopyStream) -> None:
        """Starts the copy to the host, after the work already queued on compute."""
        storage = self._storage()
        assert storage is not None
        stream.wait(self._device.compute.record())
        with _disable_current_modes():
            bytes_ = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        stream.copy(self._buffer.bytes, bytes_)
        self._pending_copy = stream.record()

    def release(self) -> None:
        """Makes compute wait for the copy to the host, and releases the device memory."""
        self._check_version()
        self._wait()
        self.data, self._is_first_copy = None, False

    def fetch(self, stream: CopyStream) -> None:
        """Allocates device memory and starts the copy into it.

        The stream first waits for compute, which may still use the memory on behalf of its previous owner.
        """
        self.data = self._device.empty(self.nbytes)
        stream.wait(self._device.compute.record())
        stream.copy(self.data, self._buffer.bytes)
        self._pending_copy = stream.record()

    def use(self) -> torch.UntypedStorage:
        """Returns the device memory with the block's values, for use by compute.

        An unfinished copy to the host only reads, so compute does not wait for it. Raises `RuntimeError` if the values
        were changed in place before they were offloaded, as PyTorch does without hooks.
        """
        assert self.data is not None
        self._check_version()
        if self._was_changed:
            raise RuntimeError("a tensor saved for backward was changed in place before it was offloaded")
        if not self._is_first_copy:
            self._wait()
        return self.data.untyped_storage()

    def __del__(self) -> None:
        with suppress(Exception):  # a stream's error is raised where the stream is synchronized
            self._wait()

    def _wait(self) -> None:
        if self._pending_copy is not None:
            self._device.compute.wait(self._pending_copy)
            self._pending_copy = None

    def _check_version(self) -> None:
        if self._is_first_copy and self.data is not None:
            self._was_changed = self.data._version != self._version
