"""Runs the compiled parts of a step operator by operator, so that what they do can be watched.

A function of ``torch.compile`` gives Dynamo a callback that converts its code; Dynamo looks up converted code by the
innermost backend of the callback. Here each callback of TorchInductor gets a backend that splits graphs as
TorchInductor does, with PyTorch's partitioner, and runs them unfused (`simgpu.torch.graphs.one_by_one`). Code of other
backends runs operator by operator anyway. All of that is private to PyTorch, and tested on the supported releases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import fx, nn

from simgpu.torch.patching import replaced_forward

#: Callbacks by TorchInductor's settings: kept, so that another recording need not convert the same code again.
_CONVERTED: dict[str, Callable[..., Any]] = {}
_FLEX = "flex_attention"
_VERSIONS = 10**6


class FlexAttentionError(Exception):
    """A compiled part calls flex attention, which has no operators to run one by one."""


class CompiledParts:
    """The compiled parts of a module, and compiled functions that its loop calls.

    ran: called when one of them runs. has_modes: whether a `TorchFunctionMode` is active then; it is set aside, because
    Dynamo would trace it.
    """

    def __init__(self, module: nn.Module, ran: Callable[[], None], *, has_modes: bool) -> None:
        self._parts = list(module.modules())
        self._ran = ran
        self._has_modes = has_modes
        self._hooks = [(each, frozenset(each)) for part in self._parts for each in _hooks_of(part)]
        self._callbacks: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._own: list[Callable[..., Any]] = []
        self._outermost: FrameType | None = None
        self._set_aside: list[Any] = []

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        """Runs them operator by operator inside the context. Enter it before hooks that watch the module are added."""
        from torch._dynamo import config, eval_frame  # every optimizer imports them too

        own: Callable[[Any], Any] = eval_frame._maybe_set_eval_frame
        with ExitStack() as stack:
            for part in self._parts:
                if part._compiled_call_impl is not None:
                    stack.enter_context(_compiled_forward(part))
            stack.enter_context(config.patch(recompile_limit=_VERSIONS, accumulated_recompile_limit=_VERSIONS))
            stack.callback(setattr, eval_frame, "_maybe_set_eval_frame", own)
            eval_frame._maybe_set_eval_frame = partial(self._switch, own)
            yield

    def _switch(self, own: Callable[[Any], Any], callback: Any) -> Any:
        """In place of Dynamo's own function, which begins and ends the conversion of code."""
        caller = sys._getframe(1)
        if callback in (None, False):
            if caller is self._outermost:
                self._outermost = None
                while self._set_aside:
                    torch._C._push_on_torch_function_stack(self._set_aside.pop())
            return own(callback)
        if self._outermost is None:
            self._outermost = caller
            self._ran()
            while self._has_modes and torch._C._len_torch_function_stack():
                self._set_aside.append(torch._C._pop_torch_function_stack())
        return own(callback if callback in self._own else self._replaced(callback))

    def _replaced(self, callback: Any) -> Callable[..., Any]:
        if id(callback) not in self._callbacks:
            backend = callback
            while hasattr(backend, "_torchdynamo_orig_backend"):
                backend = backend._torchdynamo_orig_backend
            is_inductor = isinstance(backend, torch._TorchCompileInductorWrapper)
            converted = _converted(backend.config) if is_inductor else callback

            convert = _Converting(converted, self._without_own_hooks)
            self._callbacks[id(callback)] = callback, convert
            self._own.append(convert)
        return self._callbacks[id(callback)][1]

    @contextmanager
    def _without_own_hooks(self) -> Iterator[None]:
        """Takes the hooks off that were added since this object was made: Dynamo would trace them."""
        saved = [(hooks, dict(hooks), before) for hooks, before in self._hooks if hooks.keys() - before]
        try:
            for hooks, _, before in saved:
                for key in hooks.keys() - before:
                    del hooks[key]
            yield
        finally:
            for hooks, values, _ in saved:
                hooks.clear()
                hooks.update(values)


class _Converting:
    """A callback of Dynamo's in a context; Dynamo finds the innermost backend by the name of the attribute."""

    def __init__(self, converted: Callable[..., Any], around: Callable[[], AbstractContextManager[None]]) -> None:
        self._torchdynamo_orig_backend = converted
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._around():
            return self._torchdynamo_orig_backend(*args, **kwargs)


def _hooks_of(part: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return part._forward_pre_hooks, part._forward_hooks


@contextmanager
def _compiled_forward(part: nn.Module) -> Iterator[None]:
    """Of a part that is compiled in place, the forward is compiled instead of the call, so that hooks stay outside."""
    compiled, part._compiled_call_impl = part._compiled_call_impl, None
    run: Callable[..., Any] | None = None

    def choose(_: nn.Module, own: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal run
        if run is None:
            run = torch.compile(own)
        return run

    try:
        with replaced_forward(part, choose):
            yield
    finally:
        part._compiled_call_impl = compiled


def _converted(settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Dynamo's callback for a backend that runs graphs operator by operator."""
    key = repr(sorted(settings.items()))
    if key not in _CONVERTED:
        from torch._dynamo.convert_frame import catch_errors_wrapper, convert_frame
        from torch._dynamo.hooks import Hooks

        from simgpu.torch.graphs import one_by_one  # PyTorch's compiler takes long to import

        def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            if any(_FLEX in str(node.target) for node in graph.graph.nodes):
                raise FlexAttentionError
            return one_by_one(graph, inputs, settings)

        hooks = Hooks()
        _CONVERTED[key] = catch_errors_wrapper(convert_frame(backend, hooks), hooks)
    return _CONVERTED[key]
