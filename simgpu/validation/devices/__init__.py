"""Devices for measured runs: CUDA, or PyTorch on a CPU with threads as copy streams.

Importing this package does not import PyTorch; `open_device` does.
"""

from __future__ import annotations

import importlib.util

from simgpu.errors import MissingExtraError
from simgpu.validation.devices.device import CopySpan, Device, DeviceFacts, Event, Peak, Stream

__all__ = ["CopySpan", "Device", "DeviceFacts", "Event", "Peak", "Stream", "open_device"]


def open_device(name: str) -> Device:
    """Opens the device ``cpu``, ``cuda`` or ``cuda:N``; a CUDA device becomes PyTorch's current one.

    Raises `InputError` for another name or an unavailable device, `MissingExtraError` without PyTorch.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("a validation on a device", "torch", "record")
    from simgpu.recorder.environment import find_device

    result = find_device(name, "validate")
    if result.type == "cpu":
        from simgpu.validation.devices.cpu import CpuDevice

        return CpuDevice()
    from simgpu.validation.devices.cuda import CudaDevice

    return CudaDevice(result)
