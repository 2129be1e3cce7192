"""What scripts do around a step that fake tensors, or a build of PyTorch without CUDA, do not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder.autocast import replaced

#: Functions of `torch.cuda` that wait or reset counters, and need not do anything.
_IDLE = ("synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_device")


@contextmanager
def habits_of_scripts() -> Iterator[None]:
    """Inside the context, a module stays where it is when it is moved, and a loss can be formatted.

    Raises `InputError` if a module's number format is changed, because the optimizer would keep the old parameters.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced(nn.Module, "_apply", _apply))
        stack.enter_context(replaced(torch.Tensor, "__format__", _formatted))
        if not torch.cuda.is_available():
            for name in _IDLE:
                if hasattr(torch.cuda, name):
                    stack.enter_context(replaced(torch.cuda, name, _do_nothing))
        yield


def _apply(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    for dtype in {parameter.dtype for parameter in module.parameters()}:
        changed = function(torch.empty(0, dtype=dtype)).dtype
        if changed is not dtype:
            what = f"it changes its number format from {dtype} to {changed} during the step"
            raise InputError.single("record_step", "model", what, "convert it before the with block")
    return module


def _formatted(tensor: torch.Tensor, format: str) -> str:
    return str(tensor) if tensor.dim() else tensor.item().__format__(format)


def _do_nothing(*_: Any, **__: Any) -> None:
    return None
