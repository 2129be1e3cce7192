"""Places in a user's own files, for messages: where an error was raised, or what is running now."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

import simgpu

_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib")})
_NOT_THEIRS = tuple(str(Path(package.__file__).parent) + os.sep for package in (torch, simgpu))


def raised_at(error: BaseException) -> str:
    """The innermost line of the user's that an error went through, as ``file:line``; empty where there is none."""
    return _first(reversed(list(traceback.walk_tb(error.__traceback__))))


def running_at() -> str:
    """The innermost line of the user's that is running now, as ``file:line``; empty where there is none."""
    return _first(traceback.walk_stack(None))


def _first(frames: Iterable[tuple[FrameType, int]]) -> str:
    for frame, line in frames:
        file = frame.f_code.co_filename
        if _is_theirs(file):
            inside = Path(file).is_relative_to(Path.cwd())
            return f"{os.path.relpath(file) if inside else file}:{line}"
    return ""


def _is_theirs(file: str) -> bool:
    if file.startswith("<") or file.startswith(_NOT_THEIRS):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_LIBRARY)
