"""``python -m simgpu.compression.codecs.entry_pattern_table > simgpu/compression/codecs/entry_patterns.yaml``: writes
that table again."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simgpu.compression.codecs.entries import histogram, size_classes
from simgpu.compression.codecs.entry_patterns import SCHEMA
from simgpu.compression.codecs.pattern_maps import Pattern, field_of
from simgpu.compression.codecs.patterns import load_patterns

SPARSITY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
SIDES = (1, 2, 4, 7, 14, 28, 56, 112, 224)
#: Of the made-up maps: channels, the least number of images, rows of a plane and elements of which there are enough.
_CHANNELS, _IMAGES, _ROWS, _ELEMENTS = 128, 2, 16, 2**19
_DIGITS = 4


def table() -> str:
    """The whole table as YAML text; with the version of NumPy that it names the same to the byte."""
    parts = {
        "schema": SCHEMA,
        "made_by": {"numpy": np.__version__, "pattern": "that of patterns.yaml"},
        "sparsity": list(SPARSITY),
        "sides": list(SIDES),
        "shares": [shares_of_side(side) for side in SIDES],
    }
    return yaml.safe_dump(parts, sort_keys=False, width=120, default_flow_style=None)


def shares_of_side(side: int) -> list[list[float]]:
    """Over `SPARSITY`, the share of entries that have each size in planes of that side."""
    numbers = load_patterns().pattern
    rows = min(side, _ROWS)
    images = max(_IMAGES, _ELEMENTS // (_CHANNELS * rows * side))
    field = field_of(Pattern(numbers.channels, numbers.length, numbers.gain), (images, _CHANNELS, rows, side), side, 0)
    return [_shares(field.maps(sparsity)) for sparsity in SPARSITY]


def _shares(maps: NDArray[Any]) -> list[float]:
    counts = histogram(size_classes(maps))
    return [round(count / sum(counts), _DIGITS) for count in counts]


if __name__ == "__main__":
    sys.stdout.write(table())
