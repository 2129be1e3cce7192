"""Tracks autocast and gradient scaling during a recording, and rejects unsupported uses of them.

`watched` tracks every ``torch.autocast`` that is entered in its context. Autocast for CUDA has no effect on CPU
tensors, and PyTorch switches it off with a warning if it sees no CUDA device. A CPU recording would then show a
different training, so it is rejected.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from simgpu.errors import InputError

#: PyTorch's warning when it switches off autocast or a gradient scaler.
_SWITCHED_OFF = "(torch.cuda.amp.GradScaler is enabled, but )?CUDA is not available"
_REQUESTED = "_simgpu_requested"


@dataclass
class Autocasts:
    """The uses of autocast during a recording.

    formats: number formats of the enabled contexts that were entered, in order.
    is_doubtful: whether a disabled CUDA context from before the recording was entered; PyTorch may have disabled it.
    """

    formats: dict[str, None] = field(default_factory=dict)
    is_doubtful: bool = False

    @property
    def notes(self) -> str:
        """Sentences to append to the trace's notes; may be empty."""
        if not self.is_doubtful:
            return ""
        return (
            " An autocast for CUDA that was made before the recording is off: PyTorch switches it off where it sees no "
            "CUDA."
        )


@contextmanager
def watched(
    name: str, refuses: bool, entered: Callable[[torch.autocast], Callable[[], None]] = lambda _: lambda: None
) -> Iterator[Autocasts]:
    """Tracks the autocast contexts that are entered inside this context.

    refuses: whether enabled autocast and gradient scalers for CUDA raise `InputError`, naming `name`.
    entered: called at each entry; returns a function that is called at the exit.
    """
    result = Autocasts()
    autocast, scaler = torch.autocast, torch.amp.GradScaler
    begin, enter, leave, begin_scaler = autocast.__init__, autocast.__enter__, autocast.__exit__, scaler.__init__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _SWITCHED_OFF, UserWarning)
            begin(self, device_type, dtype, enabled, cache_enabled)
        setattr(self, _REQUESTED, enabled)

    def on_enter(self: Any) -> Any:
        requested = getattr(self, _REQUESTED, None)
        if self.device == "cuda":
            if refuses and (requested or self._enabled):
                raise refusal(name, "torch.autocast('cuda')")
            result.is_doubtful |= requested is None and not self._enabled and not torch.cuda.is_available()
        if self._enabled:
            result.formats[str(self.fast_dtype).removeprefix("torch.")] = None
        returned = enter(self)
        undo.append(entered(self))
        return returned

    def on_exit(self: Any, *error: Any) -> Any:
        undo.pop()()
        return leave(self, *error)

    def init_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        enabled = kwargs.get("enabled", args[4] if len(args) > 4 else True)
        if refuses and enabled and device == "cuda":
            raise refusal(name, "torch.amp.GradScaler('cuda')")
        begin_scaler(self, device, *args, **kwargs)

    undo: list[Callable[[], None]] = []
    with (
        replaced(autocast, "__init__", init),
        replaced(autocast, "__enter__", on_enter),
        replaced(autocast, "__exit__", on_exit),
        replaced(scaler, "__init__", init_scaler),
    ):
        yield result


def refusal(name: str, what: str) -> InputError:
    """Returns the error for using CUDA's autocast or gradient scaler in a recording on a CPU."""
    on_cpu = what.replace("cuda", "cpu")
    remedy = f"model it for a GPU (--gpu NODE), record it on one (--device cuda), or write {on_cpu}"
    return InputError.single(name, "iteration", f"{what} has no effect on a CPU, where this is recorded", remedy)


def compute_format(flops: Counter[str], otherwise: str, autocasts: Autocasts) -> str:
    """Returns the number formats of the operands of matrix products, by decreasing number of operations.

    flops: operations by format. otherwise: the format if there are no products. "(autocast)" is appended if autocast
    used one of the formats.

    >>> compute_format(Counter(bfloat16=900, float32=10), "float32", Autocasts({"bfloat16": None}))
    'bfloat16 and float32 (autocast)'
    >>> compute_format(Counter(), "float32", Autocasts({"float16": None}))
    'float32'
    """
    formats = sorted(flops, key=lambda name: (-flops[name], name)) or [otherwise]
    is_autocast = any(name in autocasts.formats for name in formats)
    return " and ".join(formats) + (" (autocast)" if is_autocast else "")


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces the value of an attribute inside the context."""
    saved = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, saved)
