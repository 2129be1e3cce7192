"""Describes where a recording was made: device, processor, threads, versions."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from simgpu.errors import InputError

_CPU_INFO = Path("/proc/cpuinfo")


def find_device(name: str, command: str = "record") -> torch.device:
    """Returns the device of that name; raises `InputError`, naming the command, if it is unknown or missing.

    >>> find_device("cpu")
    device(type='cpu')
    """
    remedy = "give cpu, cuda or cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError.single(command, "device", f"{name!r} is not a device", remedy) from None
    if device.type not in ("cpu", "cuda"):
        raise InputError.single(command, "device", f"{name!r} cannot be recorded", remedy)
    if device.type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        what = f"{name!r}: PyTorch sees {count} CUDA devices"
        raise InputError.single(command, "device", what, "give cpu, or an existing device")
    return torch.device("cuda", index)


def device_name(device: torch.device) -> str:
    """Returns the model name of a GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({processor_name()})"


def processor_name(cpu_info: Path = _CPU_INFO) -> str:
    """Returns the processor's model name if the system reports it, else its architecture."""
    lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name), "") or platform.processor() or platform.machine()


def tool_name() -> str:
    """Returns the name of this recorder with the version of PyTorch."""
    return f"simgpu record, PyTorch {torch.__version__}"


def device_notes(device: torch.device) -> str:
    """Returns the sentences about the device for a trace's notes; empty for a GPU."""
    if device.type != "cpu":
        return ""
    threads = torch.get_num_threads()
    return (
        f"Recorded on a CPU ({processor_name()}, {threads} thread{'s' if threads > 1 else ''}): "
        "durations are far longer than on a GPU. "
    )
