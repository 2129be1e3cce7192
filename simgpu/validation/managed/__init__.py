"""A training iteration under real memory management: plain, checkpointing, and two kinds of offload.

Importing this package does not import PyTorch; `managed` does.
"""

from simgpu.validation.managed.copied import Copied
from simgpu.validation.managed.entry import Managed, managed

__all__ = ["Copied", "Managed", "managed"]
