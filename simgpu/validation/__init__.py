"""Compares simulated training iterations with measured ones, run under PyTorch on a device.

from simgpu.validation import compare_recording, plot_run, validation_text

validation = compare_recording("path/to/recording")
print(validation_text(validation))
validation.frame()
validation["vgg16-b64"]["async_offload"].error("step_ns")
plot_run(validation["vgg16-b64"]["async_offload"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu.validation.comparison import compare_recording
    from simgpu.validation.figures import plot_run, plot_validation
    from simgpu.validation.folder import load_recording, shipped_recordings
    from simgpu.validation.measured import Recording
    from simgpu.validation.outcome import Validation
    from simgpu.validation.tables import validation_text

_MODULES = {
    "Recording": "measured",
    "Validation": "outcome",
    "compare_recording": "comparison",
    "load_recording": "folder",
    "plot_run": "figures",
    "plot_validation": "figures",
    "shipped_recordings": "folder",
    "validation_text": "tables",
}

__all__ = [
    "Recording",
    "Validation",
    "compare_recording",
    "load_recording",
    "plot_run",
    "plot_validation",
    "shipped_recordings",
    "validation_text",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"simgpu.validation.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
