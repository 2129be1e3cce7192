"""What a recording notes of autocast and gradient scaling, and which uses of them it refuses.

`watched` follows every ``torch.autocast`` that is entered while it lasts. For CUDA it has no effect on the tensors of a
CPU, and PyTorch switches it off, with a warning, where it sees no CUDA: a recording would be of another training. So
that is an error here.
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

#: What PyTorch warns of where it switches autocast, or a gradient scaler, off.
_SWITCHED_OFF = "(torch.cuda.amp.GradScaler is enabled, but )?CUDA is not available"
_REQUESTED = "_simgpu_requested"


@dataclass
class Autocasts:
    """What was seen of autocast.

    formats: those it was entered with while it was on, in order. is_doubtful: whether one for CUDA was entered that is
    off and was made before the recording began, when PyTorch may have switched it off.
    """

    formats: dict[str, None] = field(default_factory=dict)
    is_doubtful: bool = False

    @property
    def notes(self) -> str:
        """What a reader of the trace should know, as sentences behind others; empty for nothing."""
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
    """Follow what is entered of autocast while the context lasts.

    refuses: whether autocast and a gradient scaler for CUDA, switched on, raise `InputError`, naming `name`.
    entered: called whenever one is entered, gives what is called when it is left.
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
    """A use of CUDA's number formats in a recording on a CPU."""
    on_cpu = what.replace("cuda", "cpu")
    remedy = f"model it for a GPU (--gpu NODE), record it on one (--device cuda), or write {on_cpu}"
    return InputError.single(name, "iteration", f"{what} has no effect on a CPU, where this is recorded", remedy)


def compute_format(flops: Counter[str], otherwise: str, autocasts: Autocasts) -> str:
    """What kernels computed in: formats of the operands of products, that of most operations first.

    flops: operations by format; where there are no products, the format is `otherwise`. Whether autocast chose one of
    them is added.

    >>> compute_format(Counter(bfloat16=900, float32=10), "float32", Autocasts({"bfloat16": None}))
    'bfloat16 and float32 (autocast)'
    >>> compute_format(Counter(), "float32", Autocasts({"float16": None}))
    'float32'
    """
    formats = sorted(flops, key=lambda each: (-flops[each], each)) or [otherwise]
    chosen = any(each in autocasts.formats for each in formats)
    return " and ".join(formats) + (" (autocast)" if chosen else "")


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value while the context lasts."""
    saved = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, saved)
