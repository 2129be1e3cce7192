"""Places in a user's own files, for messages: where an error was raised, or what is running now."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from types import FrameType

import torch

_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib")})
_TORCH = torch.__path__[0] + os.sep
_SIMGPU = str(Path(__file__).parents[1]) + os.sep


def raised_at(error: BaseException) -> str:
    """The innermost line of the user's that an error went through, as ``file:line``; empty where there is none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _first(reversed(lines))


def running_at(frame: FrameType) -> str:
    """The innermost line of the user's that called this frame, as ``file:line``; empty where simgpu did."""
    lines = ((caller.f_code.co_filename, line) for caller, line in traceback.walk_stack(frame))
    return _first(takewhile(lambda line: not line[0].startswith(_SIMGPU), lines))


def _first(lines: Iterable[tuple[str, int]]) -> str:
    for file, line in lines:
        if _is_theirs(file):
            inside = Path(file).is_relative_to(Path.cwd())
            return f"{os.path.relpath(file) if inside else file}:{line}"
    return ""


def _is_theirs(file: str) -> bool:
    if file.startswith(("<", _TORCH, _SIMGPU)):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_LIBRARY)
