"""Replaces the forward of a module and adds hooks to it, so that copies of the module are plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import new_class
from typing import Any

from torch import nn

#: Of a module and its plain forward, the forward that runs.
Choose = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]


class Hook:
    """A hook of a module. Copied or pickled it does nothing."""

    def __init__(self, run: Callable[..., None] | None = None) -> None:
        self._run = run

    def __call__(self, *args: Any) -> None:
        if self._run is not None:
            self._run(*args)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


@contextmanager
def replaced_forward(module: nn.Module, choose: Choose) -> Iterator[None]:
    """Inside the context, calls of a module run the forward that `choose` returns.

    The module gets a class of its own, derived from its class. Copied or pickled it has its own class again. A forward
    that the module itself has, not its class, is put aside meanwhile. Of a module that is compiled in place, by
    ``module.compile()``, the compiled call is replaced, which Dynamo must not trace into what `choose` returns.
    """
    compiled = module._compiled_call_impl
    if compiled is not None:
        module._compiled_call_impl = lambda *args, **kwargs: choose(module, compiled)(*args, **kwargs)
        try:
            yield
        finally:
            module._compiled_call_impl = compiled
        return
    plain, own = type(module), vars(module).pop("forward", None)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        usual = own if own is not None else super(planned, self).forward
        return choose(self, usual)(*args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        _, arguments, *state = super(planned, self).__reduce_ex__(protocol)
        return _plain_module, tuple(plain if each is planned else each for each in arguments), *state

    replaced = {"forward": forward, "__reduce_ex__": reduce}
    names = {name: getattr(plain, name) for name in ("__qualname__", "__module__")}
    planned: Any = new_class(plain.__name__, (plain,), exec_body=lambda body: body.update(replaced | names))
    module.__class__ = planned
    try:
        yield
    finally:
        module.__class__ = plain
        if own is not None:
            module.forward = own


def _plain_module(kind: type[nn.Module], *args: Any) -> nn.Module:
    """A module before its state is set."""
    return kind.__new__(kind, *args)
