"""Held against real hardware: the same iteration run under real memory management, beside what is simulated.

from simgpu.validation import compare_recording

found = compare_recording("path/to/recording")
found.frame()
found["vgg16-b64"]["async_offload"].error("step_ns")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu.validation.comparison import compare_recording
    from simgpu.validation.folder import load_recording, shipped_recordings
    from simgpu.validation.measured import Recording
    from simgpu.validation.outcome import Validation

_HOMES = {
    "Recording": "simgpu.validation.measured",
    "Validation": "simgpu.validation.outcome",
    "compare_recording": "simgpu.validation.comparison",
    "load_recording": "simgpu.validation.folder",
    "shipped_recordings": "simgpu.validation.folder",
}

__all__ = ["Recording", "Validation", "compare_recording", "load_recording", "shipped_recordings"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
