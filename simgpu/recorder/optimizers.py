"""The built-in optimizers, and functions to find and create an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import optim

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.catalogue import BUILT_IN_OPTIMIZERS, find_callable, optimizer_path

_Parameters = Iterable[torch.nn.Parameter]


def sgd(parameters: _Parameters) -> optim.Optimizer:
    """Stochastic gradient descent with momentum: one state tensor for each weight."""
    return optim.SGD(parameters, lr=0.01, momentum=0.9)


def plain_sgd(parameters: _Parameters) -> optim.Optimizer:
    """Stochastic gradient descent without momentum: no state."""
    return optim.SGD(parameters, lr=0.01)


def adam(parameters: _Parameters) -> optim.Optimizer:
    """Adam: two state tensors for each weight."""
    return optim.Adam(parameters, lr=0.001)


def adamw(parameters: _Parameters) -> optim.Optimizer:
    """Adam with decoupled weight decay: two state tensors for each weight."""
    return optim.AdamW(parameters, lr=0.001, weight_decay=0.01)


def rmsprop(parameters: _Parameters) -> optim.Optimizer:
    """RMSprop: one state tensor for each weight."""
    return optim.RMSprop(parameters, lr=0.001)


def adagrad(parameters: _Parameters) -> optim.Optimizer:
    """Adagrad: one state tensor for each weight."""
    return optim.Adagrad(parameters, lr=0.01)


def find_optimizer(name: str) -> Callable[..., Any]:
    """Returns the factory of a built-in optimizer or ``module.path:factory``; raises `InputError` if there is none.

    >>> find_optimizer("adamw").__name__, find_optimizer("torch.optim:SGD").__name__
    ('adamw', 'SGD')
    """
    known = {built_in: optimizer_path(built_in) for built_in in BUILT_IN_OPTIMIZERS}
    return find_callable(name, known, kind="a built-in optimizer", place="optimizer")


def make_optimizer(factory: Callable[..., Any], module: torch.nn.Module) -> optim.Optimizer:
    """Creates an optimizer for the module's parameters; raises `InputError` if the factory returns no optimizer."""
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    remedy = "give a factory that takes only the model's parameters and returns a torch.optim.Optimizer"
    try:
        created = factory(module.parameters())
    except SimgpuError:
        raise
    except Exception as error:
        what = f"calling {name} raised {type(error).__name__}: {error}"
        raise InputError.single("record", "optimizer", what, remedy) from error
    if not isinstance(created, optim.Optimizer):
        raise InputError.single("record", "optimizer", f"{name} returned a {type(created).__name__}", remedy)
    return created
