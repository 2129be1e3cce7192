"""Recording one real training iteration of a PyTorch model as a trace.

`record` runs the model; `BUILT_IN_MODELS` and `BUILT_IN_OPTIMIZERS` name those that need no code of your own. Importing
this package does not import PyTorch: the modules next to `catalogue` and `entry` do, and are loaded by the first
recording.
"""

from simgpu.recorder.catalogue import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS
from simgpu.recorder.entry import record

__all__ = ["BUILT_IN_MODELS", "BUILT_IN_OPTIMIZERS", "record"]
