"""What scripts do around a step that fake tensors, or a build of PyTorch without CUDA, do not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from simgpu.errors import InputError
from simgpu.recorder.autocast import replaced

#: Functions of `torch.cuda` that return bytes, here 0; and those that wait or reset counters, and do nothing.
_COUNTS = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
_IDLE = ("synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_device")


@contextmanager
def habits_of_scripts() -> Iterator[None]:
    """Inside the context, a module stays where it is when it is moved, a loss can be formatted, data is loaded, nothing
    is saved, and `torch.cuda` counts no memory and no time.

    Raises `InputError` if a module's number format or memory format is changed, because the optimizer would keep the
    old parameters.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced(nn.Module, "_apply", _apply))
        stack.enter_context(replaced(torch.Tensor, "__format__", _formatted))
        for loader, name in ((DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__"), (torch, "from_numpy")):
            stack.enter_context(replaced(loader, name, _on_real_tensors(getattr(loader, name))))
        stack.enter_context(replaced(torch, "save", _do_nothing))
        if not torch.cuda.is_available():
            for name in _IDLE:
                if hasattr(torch.cuda, name):
                    stack.enter_context(replaced(torch.cuda, name, _do_nothing))
            for name in _COUNTS:
                stack.enter_context(replaced(torch.cuda, name, _zero))
            stack.enter_context(replaced(torch.cuda, "Event", _Event))
        yield


def _apply(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    for dtype in {parameter.dtype for parameter in module.parameters()}:
        changed = function(torch.empty(0, dtype=dtype)).dtype
        if changed is not dtype:
            raise _changed(f"number format from {dtype} to {changed}")
    image = torch.empty(1, 2, 2, 2)
    if function(image).stride() != image.stride():
        raise _changed("memory format")
    return module


def _changed(what: str) -> InputError:
    what = f"it changes its {what} during the step"
    return InputError.single("record_step", "model", what, "convert it before the with block")


def _on_real_tensors(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, run without fake tensors: a loader's workers are processes of their own."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return func(*args, **kwargs)

    return run


def _formatted(tensor: torch.Tensor, format: str) -> str:
    return str(tensor) if tensor.dim() else tensor.item().__format__(format)


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


class _Event:
    """Stands for ``torch.cuda.Event``; no time passes between two."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    record = wait = synchronize = _do_nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: object) -> float:
        return 0.0
