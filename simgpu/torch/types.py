"""Types of tensors as text, and the path of a whole model."""

from __future__ import annotations

from collections.abc import Sequence

#: The path of the whole model, which no part of it can have.
WHOLE = "."


def tensor_type(dtype: str, shape: Sequence[int]) -> str:
    """A tensor's number format and shape.

    >>> tensor_type("float32", (2, 64)), tensor_type("int64", ())
    ('float32:2x64', 'int64:scalar')
    """
    return f"{dtype}:{'x'.join(map(str, shape)) or 'scalar'}"
