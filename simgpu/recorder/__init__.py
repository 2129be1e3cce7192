"""Records one training iteration of a PyTorch model as a trace.

`record` runs the model; `BUILT_IN_MODELS` and `BUILT_IN_OPTIMIZERS` list the built-in ones. Importing this package does
not import PyTorch; `record` imports it when called.
"""

from simgpu.recorder.catalogue import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS
from simgpu.recorder.entry import record

__all__ = ["BUILT_IN_MODELS", "BUILT_IN_OPTIMIZERS", "record"]
