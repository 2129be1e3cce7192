"""Built-in small VGG, ResNet and SqueezeNet, trained on patches of the photographs of scikit-learn."""

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


class _Dropout(nn.Module):  # type: ignore[misc]
    """Dropout as it runs on a GPU: one kernel, whose mask has a byte for each value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, 0.5, self.training)[0]


def photos_vgg(batch: int) -> Workload:
    """Seven 3x3 convolutions and three linear layers, ReLU after each but the last, as in VGG and AlexNet.

    Four poolings, dropout behind two of the linear layers.
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


class _ResidualBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions with batch norm; where the size changes, the shortcut has a 1x1 convolution of its own."""

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
    """A convolution, batch norm and pooling, then three residual blocks of growing width, as in ResNet."""
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


class _Fire(nn.Module):  # type: ignore[misc]
    """A 1x1 convolution that squeezes, then one of 1x1 and one of 3x3 side by side, joined."""

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
    """A convolution, four fire modules with pooling between them, dropout, a last 1x1 convolution, as in SqueezeNet."""
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
    """Weights begin normal, scaled for ReLU (He et al. 2015, equation 10), biases zero."""
    images, labels = photos(batch)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return Workload(
        module,
        (images[:batch].clone(),),  # a slice would count the memory of all images
        (labels[:batch].clone(),),
        nn.functional.cross_entropy,
        DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=True),
        f"the first {batch} of {len(images)} patches of scikit-learn's two photographs, of {PATCH_SIDE}x{PATCH_SIDE} "
        "pixels, to tell from where each is",
    )


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
