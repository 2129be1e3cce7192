"""Lines of the user's own code that run: those in no installed package, not in PyTorch, and not in simgpu."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

import torch

from simgpu.trace.allocations import Frame

_LIBRARY = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
_SIMGPU = str(Path(__file__).parents[1]) + os.sep
_TORCH = torch.__path__[0] + os.sep
#: Lines that are kept of each stack.
_MOST = 4


def own_lines() -> tuple[Frame, ...]:
    """The lines of the user's code that are running, innermost first; none while autograd runs backward by itself."""
    frame, result = sys._getframe(1), []
    while frame is not None and len(result) < _MOST:
        code = frame.f_code
        if _is_own(code.co_filename):
            result.append(Frame(code.co_name, code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(result)


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    return not file.startswith(("<", _SIMGPU, _TORCH, *_LIBRARY))
