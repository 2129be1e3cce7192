"""Imports packages of models (diffusers, torchvision, transformers), and says how to install a missing one.

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


def diffusers_package() -> Any:
    """The package `diffusers`. Raises `MissingExtraError` without diffusers."""
    _require("diffusers")
    import diffusers
    from diffusers.utils import import_utils

    # Models read no files of images, and torchvision may be built for another PyTorch.
    import_utils._torchvision_available = False
    return diffusers


def _require(package: str) -> None:
    """Declares the two operators that torchvision looks for when it is imported; the other packages import it, too."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"a model of {package}", package, "predict")
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
