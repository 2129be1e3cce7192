"""The line of code that runs an operator: the innermost that is not PyTorch's own, such as one of a ``forward``."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from os import sep
from pathlib import Path
from types import FrameType

import torch

from simgpu.trace.allocations import Frame

#: Folders of installed packages, and of what is no code of a model.
_INSTALLED = tuple({sysconfig.get_paths()[kind] + sep for kind in ("purelib", "platlib")})
_RECORDER = Path(__file__).parent
#: Modules of this package that run the user's code.
_CALLERS = frozenset(
    str(_RECORDER / path) for path in ("arguments.py", "iteration.py", "loop/training.py", "loop/watch.py")
)
_SKIPPED = (
    "<",
    str(_RECORDER.parent) + sep,
    torch.__path__[0] + sep,
    sysconfig.get_paths()["scripts"] + sep,
)
_CELL = f"{sep}ipykernel_"
_LIBRARY = sysconfig.get_paths()["stdlib"] + sep


def source_line() -> Frame | None:
    """The line that runs; None while autograd runs backward by itself, and in simgpu's own models."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _CALLERS:
        if not _is_skipped(frame.f_code.co_filename):
            file = frame.f_code.co_filename
            # Jupyter runs a cell as a temporary file, whose name says nothing and differs from run to run.
            return Frame(frame.f_code.co_name, "notebook.py" if _CELL in file else file, frame.f_lineno)
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _is_skipped(file: str) -> bool:
    return file.startswith(_SKIPPED) or (file.startswith(_LIBRARY) and not file.startswith(_INSTALLED))
