"""Real photographs to train on: patches of the two that come with scikit-learn."""

from __future__ import annotations

import importlib.util

import torch

from simgpu.errors import InputError, MissingExtraError

#: Pixels on a side of a patch, and from one patch to the next.
PATCH_SIDE, PATCH_STEP = 64, 16
#: Quarters of the two photographs: the classes.
QUARTERS = 8


def photos(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 3, 64, 64) and labels (n,) of the quarter that each is from, at least `batch` of them.

    The photographs are ``china.jpg`` and ``flower.jpg``, 427x640 pixels. Patches of 64x64 are cut from them every 16
    pixels, each as it is, mirrored, upside down, and both. Labels are the photograph and the quarter of it that the
    patch's place is in. Pixels are shifted and stretched to mean 0 and standard deviation 1 by channel. The order is
    drawn, the same for every seed.

    Raises `MissingExtraError` without scikit-learn and Pillow, `InputError` where the batch is larger than the set.
    """
    for package, name in (("sklearn", "scikit-learn"), ("PIL", "Pillow")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("training on photographs", name, "record")
    from sklearn.datasets import load_sample_images

    cut = [_patches(torch.tensor(photo)) for photo in load_sample_images().images]
    upright = torch.cat([patches for patches, _ in cut])
    quarters = torch.cat([quarter + number * QUARTERS // 2 for number, (_, quarter) in enumerate(cut)])
    images = torch.cat([upright, upright.flip(3), upright.flip(2), upright.flip(2, 3)])
    if batch > len(images):
        what = f"{batch} is more than the {len(images)} patches there are"
        raise InputError.single("record", "batch", what, f"give at most {len(images)}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    channels = (0, 2, 3)
    images = (images - images.mean(channels, keepdim=True)) / images.std(channels, keepdim=True)
    return images[order], quarters.repeat(4)[order]


def _patches(photo: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches (n, 3, side, side) of a photo (height, width, 3), as floating-point numbers, and their quarters."""
    cut = photo.permute(2, 0, 1).float().unfold(1, PATCH_SIDE, PATCH_STEP).unfold(2, PATCH_SIDE, PATCH_STEP)
    _, rows, columns, *_ = cut.shape
    lower, right = torch.arange(rows) * 2 >= rows, torch.arange(columns) * 2 >= columns
    quarters = (2 * lower[:, None] + right[None, :]).flatten()
    return cut.permute(1, 2, 0, 3, 4).reshape(-1, 3, PATCH_SIDE, PATCH_SIDE), quarters
