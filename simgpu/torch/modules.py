"""Paths of modules, and their types as text."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn

from simgpu.torch.types import WHOLE


def module_type(module: nn.Module) -> str:
    """A module's class, and the settings that PyTorch prints for one of its own without parts.

    >>> module_type(nn.GELU()), module_type(nn.Sequential(nn.ReLU()))
    ("GELU(approximate='none')", 'Sequential')
    """
    name = type(module).__name__
    own = next(filter(_is_of_pytorch, type(module).__mro__), None)
    has_own_text = own is None or type(module).extra_repr is not own.extra_repr
    if has_own_text or next(module.children(), None) is not None:
        return name
    return f"{name}({module.extra_repr()})"


def is_like(module: nn.Module, kind: str) -> bool:
    """Whether a module has a type, or is a subclass of that type with its settings, as a wrapper may make of it.

    >>> is_like(nn.ReLU(), "ReLU()"), is_like(nn.ReLU(), "GELU(approximate='none')")
    (True, False)
    """
    name, bracket, settings = kind.partition("(")
    _, own_bracket, own_settings = module_type(module).partition("(")
    names = {each.__name__ for each in type(module).__mro__}
    return name in names and (bracket, settings) == (own_bracket, own_settings)


def _is_of_pytorch(kind: type) -> TypeGuard[type[nn.Module]]:
    return kind.__module__.startswith("torch.nn.modules.") and kind is not nn.Module


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """The model and its parts by their paths."""
    return {path or WHOLE: part for path, part in model.named_modules()}
