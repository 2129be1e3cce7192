"""Synchronous offload: PyTorch's `save_on_cpu`, and the same written out for a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from simgpu.validation.devices import Device
from simgpu.validation.managed.transfers import HostBuffer, HostBuffers, Tally

#: A device that is busy for so long is waited for, or not, beyond doubt.
_BUSY_NS = 50_000_000
_PROBE_BYTES = 2**20


def save_on_cpu_hooks(device: Device, tally: Tally) -> Callable[[], AbstractContextManager[object]]:
    """What makes the hooks for each step: PyTorch's own where it copies anything, else `_OnCpu`'s."""
    if device.kind == "cuda":
        return lambda: _counting(save_on_cpu(pin_memory=True), device, tally)
    hooks = _OnCpu(device, tally)
    return lambda: saved_tensors_hooks(hooks.pack, hooks.unpack)


def save_on_cpu_blocks_host(device: Device) -> bool:
    """Whether the host waits for every copy out, found by saving a tensor behind a device that is busy.

    PyTorch's `save_on_cpu` did so with pinned memory, too, until it began to queue these copies.
    """
    if device.kind != "cuda":
        return True
    hooks, tensor = save_on_cpu(pin_memory=True), device.empty(_PROBE_BYTES)
    hooks.pack_hook(tensor)  # from now on PyTorch has the pinned memory at hand
    device.synchronize()
    device.compute.busy(_BUSY_NS)
    begin = time.perf_counter_ns()
    hooks.pack_hook(tensor)
    took = time.perf_counter_ns() - begin
    device.synchronize()
    return took > _BUSY_NS // 2


def _counting(hooks: saved_tensors_hooks, device: Device, tally: Tally) -> saved_tensors_hooks:
    """PyTorch's hooks, told apart from themselves only by what is counted on the way."""

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
    """Where a tensor's values are now: `values` lies in `buffer`."""

    values: torch.Tensor
    buffer: HostBuffer


class _OnCpu:
    """The hooks of PyTorch's `save_on_cpu(pin_memory=True)` for a device that is the CPU itself.

    There PyTorch's copy back (``tensor.to(device)``) copies nothing, because the tensor is there already. Here it is a
    real copy into device memory, as it is from pinned memory into a GPU's. As in PyTorch every saved tensor is copied,
    weights too, as often as it is saved, and laid out anew: contiguous, each element of an expanded tensor.
    """

    def __init__(self, device: Device, tally: Tally) -> None:
        self._device = device
        self._tally = tally
        self._buffers = HostBuffers(device)

    def pack(self, tensor: torch.Tensor) -> _Packed | torch.Tensor:
        """Copy to the host and wait."""
        if tensor.layout is not torch.strided or tensor.nbytes == 0 or self._device.is_host(tensor):
            return tensor
        buffer = self._buffers.take(tensor.nbytes)
        values = buffer.bytes.view(tensor.dtype).view(tensor.shape)
        self._device.compute.copy(values, tensor)
        self._tally.d2h_bytes += tensor.nbytes
        return _Packed(values, buffer)

    def unpack(self, packed: _Packed | torch.Tensor) -> torch.Tensor:
        """Copy into new device memory and wait."""
        if isinstance(packed, torch.Tensor):
            return packed
        values = packed.values
        back = self._device.empty(values.nbytes).view(values.dtype).view(values.shape)
        self._device.compute.copy(back, values)
        self._tally.h2d_bytes += values.nbytes
        return back
