"""Imports packages of models (diffusers, torchvision, transformers), and says how to install a missing one.

torchvision's models need only its Python code; its compiled operators may be missing.
"""

from __future__ import annotations

import importlib
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
    """Raises `MissingExtraError` without the package, and imports torchvision, which the others import if it exists."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"a model of {package}", package, "predict")
    if importlib.util.find_spec("torchvision") is not None:
        _import_torchvision()


def _import_torchvision() -> None:
    """Imports it as it is or, where it cannot load its compiled operators, after declaring the two that it looks for.

    They are built for one version of PyTorch. Operators that are declared twice may end the process.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        if hasattr(torch.ops.torchvision, "nms"):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
        importlib.import_module("torchvision")
