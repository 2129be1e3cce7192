"""Attributes operators to layers: to the running module in forward, and to the module of the autograd node after."""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from simgpu.torch.patching import Hook
from simgpu.torch.types import WHOLE

#: Layer of operators that run in forward outside the model.
LOSS = "loss"


class CallWatcher(Protocol):
    """Is notified of the calls of modules in forward, from the outermost to those inside it."""

    def called(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before a module runs. path: `WHOLE` for the whole model."""

    def returned(self) -> None:
        """Called when the module that was called last has run."""


class LayerTracker:
    """Tracks which layer of a module runs; a layer is the path of the innermost module, as in ``named_modules``.

    Operators of the outermost module between its children get its class name. Autograd numbers its nodes in creation
    order, so recording the number at every change of module gives the forward module of each node, regardless of the
    form of the module's outputs and without hooks in backward.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> with LayerTracker(model) as tracker:
    ...     loss = model(torch.ones(1, 2)).sum()
    >>> tracker.layer_of(loss.grad_fn), tracker.layer_of(loss.grad_fn.next_functions[0][0])
    ('loss', '1')
    """

    def __init__(self, module: nn.Module) -> None:
        self.watcher: CallWatcher | None = None
        self._module = module
        self._running: list[str] = []
        self._starts: list[int] = []
        self._layers: list[str] = []
        self._thread = threading.get_ident()
        self._handles: list[Any] = []

    def __enter__(self) -> LayerTracker:
        for path, module in self._module.named_modules():
            begin = partial(self._begin, path or WHOLE, path or type(module).__name__)
            self._handles.append(module.register_forward_pre_hook(Hook(begin), with_kwargs=True))
            self._handles.append(module.register_forward_hook(Hook(self._end), always_call=True))
        self._note()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def running(self) -> str | None:
        """The layer whose forward is running now; None outside the model."""
        return self._running[-1] if self._running else None

    def layer_of(self, node: Any) -> str | None:
        """Returns the layer in whose forward an autograd node was created; None if no forward operator created it."""
        number = node._sequence_nr()
        place = bisect_right(self._starts, number) - 1
        is_accumulation = node.name().endswith("AccumulateGrad")
        return None if place < 0 or is_accumulation else self._layers[place]

    @property
    def is_outermost(self) -> bool:
        """Whether the running forward was called from outside the model."""
        return len(self._running) == 1

    def owner(self, name: str) -> str:
        """Returns the layer of the parameter or buffer with this dotted name."""
        return name.rpartition(".")[0] or type(self._module).__name__

    def _begin(self, path: str, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._running.append(name)
        self._note()
        if self.watcher is not None:
            self.watcher.called(path, module, args, kwargs)

    def _end(self, *_: Any) -> None:
        self._running.pop()
        self._note()
        if self.watcher is not None:
            self.watcher.returned()

    def _note(self) -> None:
        # Numbers count per thread: those of a backward thread that recomputes a forward would not be in order here.
        if threading.get_ident() == self._thread:
            self._starts.append(torch.autograd._get_sequence_nr())
            self._layers.append(self.running or LOSS)
