"""Types of tensors and paths of modules, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: The path of the whole model, which no part of it can have.
WHOLE = "."


def tensor_type(dtype: str, shape: Sequence[int]) -> str:
    """A tensor's number format and shape.

    >>> tensor_type("float32", (2, 64)), tensor_type("int64", ())
    ('float32:2x64', 'int64:scalar')
    """
    return f"{dtype}:{'x'.join(map(str, shape)) or 'scalar'}"


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """The model and its parts by their paths."""
    return {path or WHOLE: part for path, part in model.named_modules()}
