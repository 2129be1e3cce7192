"""The device that a validation runs on: CUDA, or the CPU build of PyTorch with threads for copy streams.

Importing this package does not import PyTorch; `open_device` does.
"""

from simgpu.validation.devices.device import CopySpan, Device, DeviceFacts, Event, Peak, Stream
from simgpu.validation.devices.opening import open_device

__all__ = ["CopySpan", "Device", "DeviceFacts", "Event", "Peak", "Stream", "open_device"]
