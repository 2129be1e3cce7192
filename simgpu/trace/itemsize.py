"""How long one number is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Bytes of one value.
ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "complex64": 8,
        "complex128": 16,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)
