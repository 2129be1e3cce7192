"""The built-in models at a size that a test can run; imported only where torch is present."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from simgpu.recorder import BUILT_IN_MODELS
from simgpu.recorder.large_models import gpt2_small, resnet50, vgg16

#: The large ones, narrower or on smaller data; the same layers.
SMALLER: Mapping[str, Callable[..., Any]] = {
    "vgg16": partial(vgg16, image=32, classes=10),
    "resnet50": partial(resnet50, image=32, classes=10),
    "gpt2-small": partial(gpt2_small, tokens=16, layers=2, width=32, heads=4, vocabulary=100),
}


def small(name: str) -> str | Callable[..., Any]:
    """What to record instead of a built-in model: itself, or a smaller variant of a large one."""
    assert name in BUILT_IN_MODELS
    return SMALLER.get(name, name)
