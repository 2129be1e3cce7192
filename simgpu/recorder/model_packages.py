"""`transformers_package` and `torchvision_models` import packages of models, and say how to install a missing one.

torchvision's models need only its Python code; its compiled operators may be missing.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from simgpu.errors import MissingExtraError

#: Declarations live as long as their library.
_LIBRARIES: list[Any] = []


def torchvision_models() -> Any:
    """The module `torchvision.models`. Raises `MissingExtraError` without torchvision."""
    _require("torchvision")
    import torchvision

    return torchvision.models


def transformers_package() -> Any:
    """The package `transformers`. Raises `MissingExtraError` without transformers."""
    _require("transformers")
    import transformers

    return transformers


def _require(package: str) -> None:
    """Declares the two operators that torchvision looks for when it is imported; transformers imports it, too."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"a model of {package}", package, "predict")
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
