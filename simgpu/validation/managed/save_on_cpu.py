"""Synchronous offload: PyTorch's `save_on_cpu`, and an equivalent for a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from simgpu.torch.transfers import HostBuffer, HostBuffers, Tally
from simgpu.validation.devices import Device

#: Long enough to see whether the host waits for a busy device.
_BUSY_NS = 50_000_000
_PROBE_BYTES = 2**20


def save_on_cpu_hooks(device: Device, tally: Tally) -> Callable[[], AbstractContextManager[object]]:
    """Returns a factory of each step's hooks: PyTorch's on a GPU, `_OnCpu`'s on a CPU, where PyTorch copies nothing."""
    if device.kind == "cuda":
        return lambda: _counting(save_on_cpu(pin_memory=True), device, tally)
    hooks = _OnCpu(device, tally)
    return lambda: saved_tensors_hooks(hooks.pack, hooks.unpack)


def save_on_cpu_blocks_host(device: Device) -> bool:
    """Whether the host waits for every device-to-host copy; tested by saving a tensor while the device is busy.

    Older releases of PyTorch block here even with pinned memory; newer ones queue the copies.
    """
    if device.kind != "cuda":
        return True
    hooks, tensor = save_on_cpu(pin_memory=True), device.empty(_PROBE_BYTES)
    hooks.pack_hook(tensor)  # warm-up: PyTorch caches the pinned memory
    device.synchronize()
    device.compute.busy(_BUSY_NS)
    begin = time.perf_counter_ns()
    hooks.pack_hook(tensor)
    took = time.perf_counter_ns() - begin
    device.synchronize()
    return took > _BUSY_NS // 2


def _counting(hooks: saved_tensors_hooks, device: Device, tally: Tally) -> saved_tensors_hooks:
    """PyTorch's hooks, with the copied bytes counted."""

    def pack(tensor: torch.Tensor) -> object:
        if not device.is_host(tensor):
            tally.d2h_bytes += tensor.nbytes
        return hooks.pack_hook(tensor)

    def unpack(packed: object) -> torch.Tensor:
        tensor = hooks.unpack_hook(packed)
        if not device.is_host(tensor):
            tally.h2d_bytes += tensor.nbytes
        return tensor

    return saved_tensors_hooks(pack, unpack)


class _Packed(NamedTuple):
    """A packed tensor: `values` is a view of `buffer`."""

    values: torch.Tensor
    buffer: HostBuffer


class _OnCpu:
    """The hooks of PyTorch's `save_on_cpu(pin_memory=True)`, for a CPU as the device.

    On a CPU, PyTorch's host-to-device copy (``tensor.to(device)``) copies nothing, because the tensor is already there.
    These hooks copy into new device memory, as from pinned memory to a GPU. As in PyTorch, every saved tensor is copied
    each time it is saved, weights too. The copy is contiguous and holds all elements of an expanded tensor.
    """

    def __init__(self, device: Device, tally: Tally) -> None:
        self._device = device
        self._tally = tally
        self._buffers = HostBuffers(device)

    def pack(self, tensor: torch.Tensor) -> _Packed | torch.Tensor:
        """Copies a tensor to the host and waits."""
        if tensor.layout is not torch.strided or tensor.nbytes == 0 or self._device.is_host(tensor):
            return tensor
        buffer = self._buffers.take(tensor.nbytes)
        values = buffer.bytes.view(tensor.dtype).view(tensor.shape)
        self._device.compute.copy(values, tensor)
        self._tally.d2h_bytes += tensor.nbytes
        return _Packed(values, buffer)

    def unpack(self, packed: _Packed | torch.Tensor) -> torch.Tensor:
        """Copies a tensor into new device memory and waits."""
        if isinstance(packed, torch.Tensor):
            return packed
        values = packed.values
        back = self._device.empty(values.nbytes).view(values.dtype).view(values.shape)
        self._device.compute.copy(back, values)
        self._tally.h2d_bytes += values.nbytes
        return back
