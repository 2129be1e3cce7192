"""The device that a validation runs on: CUDA, or the CPU build of PyTorch with threads for copy streams.

Importing this package does not import PyTorch; `open_device` does.
"""

from __future__ import annotations

import importlib.util

from simgpu.errors import MissingExtraError
from simgpu.validation.devices.device import CopySpan, Device, DeviceFacts, Event, Peak, Stream

__all__ = ["CopySpan", "Device", "DeviceFacts", "Event", "Peak", "Stream", "open_device"]


def open_device(name: str) -> Device:
    """The device of that name: ``cpu``, ``cuda`` or ``cuda:N``, which becomes the current one.

    Raises `InputError` for another name or a device that is not there, `MissingExtraError` without PyTorch.
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
