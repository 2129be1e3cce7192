"""Real images to train on: the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import importlib.util

import torch

from simgpu.errors import InputError, MissingExtraError

#: Pixels on a side that the digits, 8x8 as they come, are scaled to.
DIGIT_SIDE = 32


def digits(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 32, 32) and labels (n,) of scikit-learn's digits, at least `batch` of them.

    They are the 1797 test digits of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
    1998), in scikit-learn's order: 8x8 pixels from 0 to 16. They are scaled bilinearly and shifted and stretched to
    mean 0 and standard deviation 1 over the whole set.

    Raises `MissingExtraError` without scikit-learn, `InputError` where the batch is larger than the set.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtraError("training on handwritten digits", "scikit-learn", "record")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    if batch > len(pixels):
        what = f"{batch} is more than the {len(pixels)} digits there are"
        raise InputError.single("record", "batch", what, f"give at most {len(pixels)}")
    small = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    images = torch.nn.functional.interpolate(small, DIGIT_SIDE, mode="bilinear", align_corners=False)
    return (images - images.mean()) / images.std(), torch.tensor(labels, dtype=torch.long)
