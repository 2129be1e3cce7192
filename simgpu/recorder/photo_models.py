"""Built-in small VGG, ResNet and SqueezeNet, trained on patches of scikit-learn's photographs."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simgpu.errors import InputError, MissingExtraError
from simgpu.recorder.models import convolutions
from simgpu.recorder.workload import Workload

_VGG = (16, 16, "M", 32, 32, "M", 64, 64, "M", 128, "M")
_RESNET = ((32, 1), (64, 2), (128, 2))
_FIRES = ((16, 32), (16, 32), "M", (32, 64), (32, 64))


class _Dropout(nn.Module):
    """Dropout as on a GPU: one kernel, with a mask of one byte per value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, 0.5, self.training)[0]


def photos_vgg(batch: int) -> Workload:
    """A small VGG: seven 3x3 convolutions and three linear layers, with ReLU after each but the last.

    There are four pooling layers, and dropout after two of the linear layers, as in VGG and AlexNet.
    """
    layers, channels = convolutions(_VGG)
    layers["flatten"] = nn.Flatten()
    features = channels * (PATCH_SIDE // 16) ** 2
    for number in (6, 7):
        layers[f"fc{number}"] = nn.Linear(features, 512)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        layers[f"drop{number}"] = _Dropout()
        features = 512
    layers["fc8"] = nn.Linear(features, QUARTERS)
    return _on_photos(nn.Sequential(layers), batch)


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm; if the size changes, the shortcut has a 1x1 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


def photos_resnet(batch: int) -> Workload:
    """A small ResNet: convolution, batch norm and pooling, then three residual blocks of growing width."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 32, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(32),
        relu1=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(3, 2, padding=1),
    )
    channels = 32
    for number, (width, stride) in enumerate(_RESNET, start=1):
        layers[f"layer{number}"] = _ResidualBlock(channels, width, stride)
        channels = width
    layers |= {"pool2": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(channels, QUARTERS)}
    return _on_photos(nn.Sequential(layers), batch)


class _Fire(nn.Module):
    """A 1x1 convolution that squeezes, then a 1x1 and a 3x3 convolution in parallel, concatenated."""

    def __init__(self, channels: int, squeezed: int, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, width, 1)
        self.expand3x3 = nn.Conv2d(squeezed, width, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.expand1x1(x)), self.relu(self.expand3x3(x))], 1)


def photos_squeezenet(batch: int) -> Workload:
    """A small SqueezeNet: a convolution, four fire modules with pooling between, dropout, a last 1x1 convolution."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 32, 3, stride=2, padding=1),
        relu1=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(3, 2, padding=1),
    )
    channels, number, pools = 32, 2, 2
    for entry in _FIRES:
        if isinstance(entry, tuple):
            layers[f"fire{number}"] = _Fire(channels, *entry)
            channels, number = 2 * entry[1], number + 1
        else:
            layers[f"pool{pools}"] = nn.MaxPool2d(3, 2, padding=1)
            pools += 1
    layers |= {
        "drop": _Dropout(),
        "conv10": nn.Conv2d(channels, QUARTERS, 1),
        "relu10": nn.ReLU(inplace=True),
        "pool10": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
    }
    return _on_photos(nn.Sequential(layers), batch)


def _on_photos(module: nn.Sequential, batch: int) -> Workload:
    """Weights are initialized normally, scaled for ReLU (He et al. 2015, equation 10); biases are zero."""
    images, labels = photos(batch)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return Workload(
        module,
        (images[:batch].clone(),),  # a slice would share, and count, the memory of all images
        (labels[:batch].clone(),),
        nn.functional.cross_entropy,
        DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=True),
        f"the first {batch} of {len(images)} patches of scikit-learn's two photographs, of {PATCH_SIDE}x{PATCH_SIDE} "
        "pixels, to tell from where each is",
    )


#: Side length of a patch, and distance between patches, in pixels.
PATCH_SIDE, PATCH_STEP = 64, 16
#: Number of classes: the quarters of the two photographs.
QUARTERS = 8


def photos(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images (n, 3, 64, 64) and labels (n,), the quarter that each patch is from; n is at least `batch`.

    The photographs are ``china.jpg`` and ``flower.jpg``, 427x640 pixels. Patches of 64x64 are cut every 16 pixels; each
    is used unchanged, mirrored, upside down, and both. A label is the photograph and its quarter that contains the
    patch. Pixels are normalized to mean 0 and standard deviation 1 per channel. The order is random, but the same for
    every seed.

    Raises `MissingExtraError` without scikit-learn and Pillow, `InputError` if the batch is larger than the set.
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
        what = f"{batch} exceeds the {len(images)} patches of the data set"
        raise InputError.single("record", "batch", what, f"give at most {len(images)}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    channels = (0, 2, 3)
    images = (images - images.mean(channels, keepdim=True)) / images.std(channels, keepdim=True)
    return images[order], quarters.repeat(4)[order]


def _patches(photo: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns patches (n, 3, side, side) of a photo (height, width, 3) as floating-point numbers, and quarters (n,)."""
    cut = photo.permute(2, 0, 1).float().unfold(1, PATCH_SIDE, PATCH_STEP).unfold(2, PATCH_SIDE, PATCH_STEP)
    _, rows, columns, *_ = cut.shape
    lower, right = torch.arange(rows) * 2 >= rows, torch.arange(columns) * 2 >= columns
    quarters = (2 * lower[:, None] + right[None, :]).flatten()
    return cut.permute(1, 2, 0, 3, 4).reshape(-1, 3, PATCH_SIDE, PATCH_SIDE), quarters
