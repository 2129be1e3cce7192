"""One block of asynchronous offload: on its way out, on the host, or back."""

from __future__ import annotations

import weakref
from contextlib import suppress

import torch

from simgpu.validation.devices import Device, Event, Stream
from simgpu.validation.managed.host_buffers import HostBuffers


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
